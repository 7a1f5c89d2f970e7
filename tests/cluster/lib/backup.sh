# shellcheck shell=bash
# BACKUP=1: a second slurmctld on this machine, which takes over when the first is gone.
#
# A slurmctld knows by its host's name which SlurmctldHost it is, and with NoCtldInAddrAny listens only
# on the address of that name. So each of the two gets a host name and an /etc/hosts of its own, in
# namespaces of its own, and both have the same port on different addresses.

readonly BACKUP_HOST=meshbackup BACKUP_ADDR=127.0.0.2

# backup_conf: the lines of slurm.conf that depend on it. The order of the hosts says who is the backup.
backup_conf() {
  if [[ $BACKUP == 1 ]]; then
    # The backup takes over after that time. Its slurm.conf is not quite that of the nodes (write_backup_conf).
    printf '%s\n' "SlurmctldHost=$BACKUP_HOST($BACKUP_ADDR)" SlurmctldTimeout=5 DebugFlags=NO_CONF_HASH
  else
    echo SlurmctldTimeout=30
  fi
}

# write_backup_conf: its slurm.conf differs in the pid file, or it would kill the first one as an old
# one of its own (seen on 22.05), and in the log.
write_backup_conf() {
  mkdir -p "$DIR/etc/backup"
  ln -sfn ../gres.conf ../cgroup.conf "$DIR/etc/backup"
  sed -E "s,^(SlurmctldPidFile=.*)\.pid$,\1-backup.pid,; s,^(SlurmctldLogFile=.*)\.log$,\1-backup.log," "$SLURM_CONF" >"$DIR/etc/backup/slurm.conf"
  write_hosts "$(hostname -s)" "$ADDR"
  write_hosts "$BACKUP_HOST" "$BACKUP_ADDR"
}

write_hosts() { printf '%s\n' "127.0.0.1 localhost" "$2 $1" >"$DIR/etc/hosts.$1"; }

# as_host NAME CMD…: a command of Slurm on a host of that name.
as_host() {
  # In another root nothing is shared with the machine already, and its / is no mount of its own.
  local propagation=private
  [[ -z $ROOT ]] || propagation=unchanged
  # shellcheck disable=SC2016 # the inner shell expands it
  slurm unshare --uts --mount --propagation $propagation sh -c 'mount --bind "$0.$1" /etc/hosts && hostname "$1" && shift && exec "$@"' \
    "$DIR/etc/hosts" "$@"
}

backup_answers() { slurm timeout 5 scontrol ping | grep -q '(backup.*is UP'; }

start_backup() {
  [[ $BACKUP == 1 ]] || die "this cluster has no backup: make it with BACKUP=1"
  alive slurmctld-backup && return
  local without
  mapfile -t without < <(without_usage)
  as_host "$BACKUP_HOST" env SLURM_CONF="$DIR/etc/backup/slurm.conf" slurmctld "${without[@]}" ||
    die "the backup did not start; see $LOG/slurmctld-backup.log"
  wait_for 120 alive slurmctld-backup || die "the backup did not start; see $LOG/slurmctld-backup.log"
  wait_for 120 backup_answers || die "the backup does not answer; see $LOG/slurmctld-backup.log"
}
