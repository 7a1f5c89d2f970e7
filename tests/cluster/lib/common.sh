# shellcheck shell=bash
# shellcheck disable=SC2034 # the names set here are used by the scripts that read this file
# What every script of the test cluster shares: the folder's layout, its knobs, its clean
# environment, and how a process is recognised as belonging to it.
#
# Every daemon is started with an empty environment plus MESH_CLUSTER_DIR=<folder>. That mark, not
# a process name, decides what may be signalled: several clusters, and a site's own Slurm, can run
# side by side.

readonly CLEAN_PATH=/usr/sbin:/usr/bin:/sbin:/bin
# knob=default; a value given in the environment wins over the one of the last `up`.
readonly KNOBS=(CLUSTER=mesh NODES=4 GPU_NODES=2 CLOUD=2 CLOUD_BOOT=1 SUSPEND_TIME=20
  RESUME_TIMEOUT=30 MINJOBAGE=300 SLURMD_TIMEOUT=10 CG=auto NODB=0 EXTRA_CONF= SLURM_USER=slurm ROOT= REST=0 REST_ADDRESS=127.0.0.1 EVERY_ADDRESS=0 BACKUP=0)

say() { printf '%s\n' "cluster: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# open_cluster DIR: names of everything inside a cluster's folder.
open_cluster() {
  DIR=$(readlink -m -- "$1")
  RUN=$DIR/run LOG=$DIR/log
  MUNGE_SOCKET=$DIR/munge/socket
  MYSQL_SOCKET=$DIR/mysql-run/socket
  # Not /tmp: a MariaDB that starts removes there what looks like a temporary table, of others, too.
  MYSQL_TMP=$DIR/mysql-run
  SLURM_CONF=$DIR/etc/slurm.conf
  export SLURM_CONF
}

# need_cluster DIR: the same for a folder that must already be a cluster.
need_cluster() {
  open_cluster "$1"
  [[ -f $DIR/knobs ]] || die "$DIR is not a test cluster (no file knobs in it); make one with tests/cluster/up DIR BASEPORT"
  [[ $EUID -eq 0 ]] || die "needs root: it starts and stops daemons of several users"
  # Its Slurm is the one it was made with, whatever this environment says.
  ROOT=$(saved_knob ROOT)
  load_knobs
}

load_knobs() {
  local knob name default saved
  for knob in "${KNOBS[@]}"; do
    name=${knob%%=*} default=${knob#*=}
    saved=$(saved_knob "$name")
    [[ -n ${!name+set} ]] || printf -v "$name" %s "${saved:-$default}"
  done
  BASE=${BASE:-$(saved_knob BASE)}
  # Some 10,000 ids for each block of 100 ports, see FirstJobId in config.sh.
  FIRST_JOB_ID=$(((BASE % 10000 / 100) * 10000 + 1))
}

saved_knob() { [[ ! -e $DIR/knobs ]] || sed -n "s/^$1=//p" "$DIR/knobs"; }

save_knobs() {
  local knob name
  for knob in "${KNOBS[@]}" BASE=; do
    name=${knob%%=*}
    printf '%s=%s\n' "$name" "${!name}"
  done >"$DIR/knobs"
}

# clean CMD…: run with nothing of the caller's environment. slurmctld hands its own environment to
# some of the programs it starts (seen with strigger on 22.05), so nothing may leak in; nor may a
# daemon keep the lock (descriptor 9) of the `up` that started it.
clean() {
  env -i PATH=$CLEAN_PATH HOME=/ LC_ALL=C.UTF-8 SLURM_CONF="$SLURM_CONF" MESH_CLUSTER_DIR="$DIR" "$@" 9>&-
}

# wait_for SECONDS CMD…: true as soon as CMD is, false at the deadline.
wait_for() {
  local deadline=$((SECONDS + $1 + 1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || return 1
    sleep 0.05
  done
}

port_open() { (exec 3<>"/dev/tcp/$(cat "$DIR/addr")/$1") 2>/dev/null; }

# marked: ids of all processes that carry this cluster's mark.
marked() { with_environment "MESH_CLUSTER_DIR=$DIR" | cut -d/ -f3; }

with_environment() { grep -slzxF -- "$1" /proc/[0-9]*/environ; }

# steps NODE: slurmstepds of a node, of all for *. They have no mark, and newer ones write their title over
# their environment (seen on 24.11); each keeps its node's log open.
steps() {
  local pid
  for pid in $(pgrep -x slurmstepd); do
    # In another root the path has that in front, and of a folder that is gone "(deleted)" behind.
    find "/proc/$pid/fd" -lname "*$LOG/slurmd-$1.log*" 2>/dev/null | grep -q . && echo "$pid"
  done
  return 0
}

# members: the marked, the slurmstepds, what jobs of this cluster left behind, and all their
# descendants. A job's processes have the user's environment, to which slurmstepd adds SLURM_JOB_ID
# and the slurm.conf it was started with (seen on 22.05).
members() {
  {
    marked
    steps '*'
    with_environment "SLURM_CONF=$SLURM_CONF" | xargs -r grep -slz '^SLURM_JOB_ID=' | cut -d/ -f3
  } | descendants
}

# descendants: the process ids on stdin and all their children, without this script itself.
descendants() {
  cat - <(echo --) <(cat /proc/[0-9]*/stat 2>/dev/null) | awk -v self=$$ '
    $1 == "--" && NF == 1 { tree = 1; next }
    !tree { want[$1]; next }
    { pid = $1; sub(/^.*\) /, ""); parent[pid] = $2 }
    END {
      do {
        grew = 0
        for (p in parent) if (!(p in want) && parent[p] in want) { want[p]; grew = 1 }
      } while (grew)
      for (p in want) if (p in parent && p != self && parent[p] != self) print p
    }'
}

# pid_of NAME: the process id in NAME's pid file, if that process is alive and ours.
pid_of() {
  local pid
  pid=$(cat "$RUN/$1.pid" 2>/dev/null) && [[ $pid =~ ^[0-9]+$ ]] || return 1
  grep -qszxF -- "MESH_CLUSTER_DIR=$DIR" "/proc/$pid/environ" || return 1
  # An empty command line is a zombie: dead, only not yet collected.
  [[ -n $(tr -d '\0' 2>/dev/null <"/proc/$pid/cmdline") ]] && echo "$pid"
}

alive() { pid_of "$1" >/dev/null; }
dead() { ! alive "$1"; }
