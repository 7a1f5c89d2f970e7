# shellcheck shell=bash
# Start and stop one daemon. Each start does nothing if that daemon already runs, and returns when
# the daemon can be used.

start_munge() {
  alive munge && return
  rm -f "$MUNGE_SOCKET"*
  clean setpriv --reuid=munge --regid=munge --init-groups munged --key-file="$DIR/munge/key" \
    --socket="$MUNGE_SOCKET" --pid-file="$DIR/munge/pid" --log-file="$DIR/munge/log" --seed-file="$DIR/munge/seed" ||
    die "munged did not start; see $DIR/munge/log"
  wait_for 60 alive munge || die "munged did not start; see $DIR/munge/log"
}

sql() { clean mariadb --no-defaults --socket="$MYSQL_SOCKET" -uroot "$@"; }

start_mariadb() {
  alive mariadb && return
  # =2: every commit reaches the kernel, so a killed MariaDB loses nothing; no fsync, since a test
  # cluster need not survive a power cut.
  clean TMPDIR="$MYSQL_TMP" setsid --fork mariadbd --no-defaults --user=mysql --datadir="$DIR/mysql" --socket="$MYSQL_SOCKET" \
    --pid-file="$DIR/mysql-run/pid" --bind-address=127.0.0.1 --port=$((BASE + 3)) --skip-log-bin --skip-name-resolve \
    --innodb-flush-log-at-trx-commit=2 --innodb-flush-method=nosync --innodb-lock-wait-timeout=900 \
    --innodb-buffer-pool-size=128M </dev/null >>"$LOG/mariadb.log" 2>&1
  wait_for 120 sql -e 'SELECT 1' || die "MariaDB did not start; see $LOG/mariadb.log"
  wait_for 60 alive mariadb || die "MariaDB wrote no pid file; see $LOG/mariadb.log"
}

start_slurmdbd() {
  alive slurmdbd && return
  slurm slurmdbd || die "slurmdbd did not start; see $LOG/slurmdbd.log"
  wait_for 120 port_open $((BASE + 1)) || die "slurmdbd does not listen on port $((BASE + 1)); see $LOG/slurmdbd.log"
}

ctld_answers() { slurm timeout 5 scontrol ping | grep -q '(primary.*is UP'; }

# without_usage: the option for a slurmctld that finds state without usage. One that was killed in its
# first minutes has saved none yet, and 26.05 then neither starts nor takes over ("fatal: No Assoc usage
# file"), unless told to go on without. 24.11 and 22.05 go on.
without_usage() { [[ ! -e $DIR/state/clustername || -e $DIR/state/assoc_usage ]] || echo -i; }

start_slurmctld() {
  alive slurmctld && return
  local run=(slurm) without
  mapfile -t without < <(without_usage)
  [[ $BACKUP != 1 ]] || run=(as_host "$(hostname -s)")
  "${run[@]}" slurmctld "${without[@]}" || die "slurmctld did not start; see $LOG/slurmctld.log"
  wait_for 120 ctld_answers || die "slurmctld does not answer; see $LOG/slurmctld.log"
}

# start_slurmd NODE [-b]: -b says that the node has just booted. A node that Slurm is powering up must
# say so; any other that does is set DOWN, "unexpectedly rebooted" (seen on 22.05, ReturnToService=1).
start_slurmd() {
  alive "slurmd-$1" && return
  mkdir -p "$DIR/spool/$1"
  slurm slurmd -N "$@" && wait_for 60 alive "slurmd-$1" || return 1
  [[ $1 != c* ]] || touch "$DIR/cloud/$1"
}

start_power() {
  alive power && return
  clean setsid --fork "$HERE/bin/power-watch" "$DIR" </dev/null >>"$LOG/power.log" 2>&1
  wait_for 60 alive power || die "power-watch did not start; see $LOG/power.log"
}

# start_reaper PID: wipes the cluster when that process is gone, however it ended.
start_reaper() {
  alive reaper && return
  clean setsid --fork "$HERE/bin/reaper" "$DIR" "$1" </dev/null >>"$LOG/reaper.log" 2>&1
}

# stop_daemon NAME: ask, wait, and only then force.
stop_daemon() {
  local pid
  pid=$(pid_of "$1") || return 0
  kill -TERM "$pid" 2>/dev/null
  wait_for "${2:-60}" dead "$1" || kill -KILL "$pid" 2>/dev/null
  wait_for 60 dead "$1"
}

# steps_of NODE: the slurmstepds of a node and the job processes below them. They outlive slurmd.
steps_of() { steps "$1" | descendants; }

# kill_all CMD…: SIGKILL what CMD lists until it lists nothing.
kill_all() {
  local pids tries=0
  # Not its exit status: processes that vanish while they are listed make it fail.
  while pids=$("$@" || true) && [[ -n $pids ]]; do
    # shellcheck disable=SC2086 # a list of numbers
    kill -KILL $pids 2>/dev/null
    ((++tries < 200)) || return 1
    sleep 0.05
  done
  return 0
}
