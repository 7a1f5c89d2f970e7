# shellcheck shell=bash disable=SC2154
# A Debian with systemd, Slurm, slurmdbd and munge in a container of systemd-nspawn, made fresh on an overlay.
# Needs: $tools (a folder that stays), $work (a folder that goes).

say() { printf '%s\n' "packages: $*" >&2; }
die() {
  say "$*"
  exit 1
}

make_root() {
  [[ ! -d $tools/root ]] || return 0
  say "making a Debian with Slurm in $tools/root"
  rm -rf --one-file-system "$tools/root.new"
  mkdir -p "$tools/root.new"
  mmdebstrap --variant=minbase --format=dir --skip=output/dev --include=systemd,systemd-sysv,dbus,procps,iproute2,ca-certificates,tzdata,man-db,bash-completion,curl,slurmctld,slurmd,slurmdbd,slurm-client,slurm-wlm-basic-plugins,slurm-wlm-mysql-plugin,munge,mariadb-server \
    bookworm "$tools/root.new" >"$work/mmdebstrap.log" 2>&1 || die "mmdebstrap failed; its last words: $(tail -n 5 "$work/mmdebstrap.log")"
  mv -T "$tools/root.new" "$tools/root"
}

# Runs a shell command in the container.
inside() { nsenter -t "$leader" -m -u -i -n -p -C env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb bash -c "cd /root; $1"; }

wait_for() {
  local what=$1 deadline=$((SECONDS + 120))
  until inside "$2" >/dev/null 2>&1; do
    if ((SECONDS > deadline)); then
      inside "journalctl --no-pager -n 60; systemctl --failed" >&2 || true
      die "not in time: $what"
    fi
    sleep 0.3
  done
}

start_container() {
  mkdir -p "$work"/{up,ovl,m}
  mount -t overlay overlay -o "lowerdir=$tools/root,upperdir=$work/up,workdir=$work/ovl" "$work/m"
  configure_slurm "$work/m"
  : >"$work/m/etc/machine-id"
  systemd-nspawn -q -D "$work/m" --machine="mesh-$$" -b --register=no --keep-unit --private-network \
    >"$work/console" 2>&1 </dev/null &
  nspawn=$!
  local deadline=$((SECONDS + 60))
  until leader=$(pgrep -P "$nspawn" -x systemd) && inside 'systemctl is-system-running | grep -qE "running|degraded"' 2>/dev/null; do
    ((SECONDS < deadline)) || die "the container did not start: $(tail -n 5 "$work/console")"
    sleep 0.3
  done
  wait_for "slurmctld answers" "scontrol ping | grep -q UP && sinfo -h -t idle | grep -q n1"
}

stop_container() {
  [[ -z ${nspawn:-} ]] || { kill -KILL "$leader" "$nspawn" 2>/dev/null; wait "$nspawn" 2>/dev/null; } || true
  umount "$work/m" 2>/dev/null || umount -l "$work/m" 2>/dev/null || true
}

configure_slurm() {
  local root=$1
  echo ctl >"$root/etc/hostname"
  printf '127.0.0.1 localhost\n10.77.0.1 ctl n1\n' >"$root/etc/hosts"
  head -c 128 /dev/urandom >"$root/etc/munge/munge.key"
  chroot "$root" chown munge: /etc/munge/munge.key
  chmod 400 "$root/etc/munge/munge.key"
  cat >"$root/etc/slurm/slurm.conf" <<'C'
ClusterName=c1
SlurmctldHost=ctl(10.77.0.1)
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=10.77.0.1
JobAcctGatherType=jobacct_gather/linux
NodeName=n1 NodeAddr=10.77.0.1 CPUs=2 RealMemory=500
PartitionName=p Nodes=n1 Default=YES MaxTime=INFINITE State=UP
C
  cat >"$root/etc/slurm/slurmdbd.conf" <<'C'
AuthType=auth/munge
DbdHost=ctl
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
StorageType=accounting_storage/mysql
StorageUser=slurm
StorageLoc=slurm_acct_db
C
  chroot "$root" sh -c 'chown slurm: /etc/slurm/slurmdbd.conf && chmod 600 /etc/slurm/slurmdbd.conf && install -d -o slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm'
  # Slurm resolves no name on a host that has 127.0.0.1 only.
  mkdir -p "$root"/etc/systemd/system/{slurmd,slurmdbd,slurmctld}.service.d "$root/etc/systemd/system/multi-user.target.wants"
  printf '[Unit]\nDefaultDependencies=no\nAfter=local-fs.target\nBefore=network.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/bin/ip address add 10.77.0.1/32 dev lo\n' \
    >"$root/etc/systemd/system/address.service"
  ln -s ../address.service "$root/etc/systemd/system/multi-user.target.wants/"
  # slurmd's node has another name than the host.
  printf '[Service]\nExecStart=\nExecStart=/usr/sbin/slurmd -D -N n1\nDelegate=no\n' >"$root/etc/systemd/system/slurmd.service.d/test.conf"
  printf '[Unit]\nAfter=mariadb.service\n[Service]\nExecStartPre=+/usr/bin/mariadb -e "create database if not exists slurm_acct_db; create user if not exists slurm@localhost; grant all on slurm_acct_db.* to slurm@localhost"\nRestart=on-failure\nRestartSec=1\n' \
    >"$root/etc/systemd/system/slurmdbd.service.d/test.conf"
  printf '[Service]\nRestart=on-failure\nRestartSec=1\n' >"$root/etc/systemd/system/slurmctld.service.d/test.conf"
  chroot "$root" useradd -m -u 20001 alice
}
