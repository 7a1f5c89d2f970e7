# shellcheck shell=bash
# Writes the cluster's configuration from its knobs. Ports: BASE slurmctld, +1 slurmdbd,
# +3 MariaDB, +4 slurmrestd, +10+i node n<i>, +60+i cloud node c<i>.

# Slurm binds to what the host's own name stands for when told not to listen everywhere
# (CommunicationParameters, slurm.conf(5) 22.05), so that is safe only where the name is a loopback
# address, as Debian installs it.
choose_address() {
  local own
  # Not ahostsv4: on a machine that has only its loopback device that finds nothing.
  own=$(getent ahosts "$(hostname)" | awk '$1 !~ /:/ && !own { own = $1 } END { print own }') || true
  if [[ $EVERY_ADDRESS == 1 ]]; then
    LOOPBACK="no (EVERY_ADDRESS=1)" ADDR=127.0.0.1
  elif [[ $own == 127.* ]]; then
    LOOPBACK=yes ADDR=$own
  else
    LOOPBACK="no (the name $(hostname) is not a loopback address here: Slurm listens on every address)" ADDR=127.0.0.1
  fi
  echo "$ADDR" >"$DIR/addr"
}

write_slurm_conf() {
  local comm="" gpu_first=$((NODES - GPU_NODES + 1)) cpu_nodes="n[1-$NODES]" host i
  host=$(hostname -s)
  [[ $BACKUP != 1 ]] || comm=CommunicationParameters=NoCtldInAddrAny
  [[ $LOOPBACK == yes ]] && comm=CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
  ((gpu_first > 1)) && ((GPU_NODES > 0)) && cpu_nodes="n[1-$((gpu_first - 1))]"
  {
    cat <<CONF
ClusterName=$CLUSTER
SlurmctldHost=$host($ADDR)
$(backup_conf)
SlurmctldPort=$BASE
SlurmUser=$SLURM_USER
$comm
AuthType=auth/munge
# cred_expire: a requeued job waits this long before it may start again; 120 s by default.
AuthInfo=socket=$MUNGE_SOCKET,cred_expire=5
CredType=cred/munge
$(rest_conf)
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/slurmd-%n.pid
SlurmctldLogFile=$LOG/slurmctld.log
SlurmdLogFile=$LOG/slurmd-%n.log
LogTimeFormat=iso8601_ms
ReturnToService=1
SlurmdTimeout=$SLURMD_TIMEOUT
KillWait=3
UnkillableStepTimeout=60
InactiveLimit=0
MinJobAge=$MINJOBAGE
MaxJobCount=20000
MaxArraySize=20001
# Job control groups are named by node and job id only (/slurm_n1/uid_20001/job_7), so clusters on
# one machine must never use the same job ids.
FirstJobId=$FIRST_JOB_ID
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,bf_continue,sched_interval=2,batch_sched_delay=0,power_save_interval=1
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightFairshare=1000
PriorityWeightPartition=1000
PriorityWeightQOS=2000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
MailProg=/bin/true
GresTypes=gpu
JobAcctGatherFrequency=task=1
SlurmdParameters=config_overrides
DefMemPerCPU=100
CONF
    if [[ $CGROUP == none ]]; then
      printf '%s\n' ProctrackType=proctrack/linuxproc TaskPlugin=task/none JobAcctGatherType=jobacct_gather/linux
    else
      printf '%s\n' ProctrackType=proctrack/cgroup TaskPlugin=task/cgroup JobAcctGatherType=jobacct_gather/cgroup
    fi
    if [[ $NODB == 1 ]]; then
      echo AccountingStorageType=accounting_storage/none
    else
      cat <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$ADDR
AccountingStoragePort=$((BASE + 1))
# Without this line sacct and sacctmgr look for the system's munge socket (seen on 22.05).
AccountingStoragePass=$MUNGE_SOCKET
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
CONF
    fi
    if ((CLOUD > 0)); then
      cat <<CONF
ResumeProgram=$DIR/bin/resume
SuspendProgram=$DIR/bin/suspend
SuspendTime=$SUSPEND_TIME
SuspendTimeout=5
ResumeTimeout=$RESUME_TIMEOUT
SuspendExcNodes=n[1-$NODES]
CONF
    fi
    local size="CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000"
    for ((i = 1; i <= NODES; i++)); do
      local kind="Feature=cpu Weight=1"
      ((i >= gpu_first)) && kind="Feature=gpu,a100 Gres=gpu:a100:4 Weight=10"
      echo "NodeName=n$i NodeHostname=$host NodeAddr=$ADDR Port=$((BASE + 10 + i)) $size $kind State=UNKNOWN"
    done
    for ((i = 1; i <= CLOUD; i++)); do
      echo "NodeName=c$i NodeHostname=$host NodeAddr=$ADDR Port=$((BASE + 60 + i)) $size Feature=cloud Weight=100 State=CLOUD"
    done
    echo "PartitionName=cpu Nodes=$cpu_nodes Default=YES MaxTime=1-00:00:00 DefaultTime=10:00 PriorityTier=10 PreemptMode=OFF State=UP"
    echo "PartitionName=low Nodes=n[1-$NODES] MaxTime=1-00:00:00 DefaultTime=10:00 PriorityTier=1 PreemptMode=REQUEUE State=UP"
    ((GPU_NODES == 0)) || echo "PartitionName=gpu Nodes=n[$gpu_first-$NODES] MaxTime=1-00:00:00 DefaultTime=10:00 PriorityTier=10 PreemptMode=OFF State=UP"
    ((CLOUD == 0)) || echo "PartitionName=cloud Nodes=c[1-$CLOUD] MaxTime=1-00:00:00 DefaultTime=10:00 PriorityTier=10 PreemptMode=OFF State=UP"
  } | without_overridden >"$DIR/etc/slurm.conf"
  [[ -z $EXTRA_CONF ]] || cat "$DIR/etc/extra.conf" >>"$DIR/etc/slurm.conf"
  if ((GPU_NODES > 0)); then
    echo "NodeName=n[$gpu_first-$NODES] Name=gpu Type=a100 File=/dev/tty[0-3]"
  fi >"$DIR/etc/gres.conf"
}

# Drops the keys EXTRA_CONF sets: a key given twice makes every Slurm command complain.
without_overridden() {
  local keys=""
  [[ -z $EXTRA_CONF ]] ||
    keys=$(sed -nE 's/^[[:space:]]*([A-Za-z]+)[[:space:]]*=.*/\1/p' "$DIR/etc/extra.conf" | grep -viE '^(NodeName|PartitionName)$' | paste -sd'|')
  if [[ -n $keys ]]; then grep -viE "^($keys)="; else cat; fi
}

write_cgroup_conf() {
  {
    echo CgroupMountpoint=/sys/fs/cgroup
    case $CGROUP in
      v1) echo CgroupPlugin=cgroup/v1 ;;
      v2) printf '%s\n' CgroupPlugin=cgroup/v2 IgnoreSystemd=yes ;;
    esac
    if [[ $CGROUP != none ]]; then
      echo ConstrainRAMSpace=yes
      # A job with swap left would be slow instead of out of memory; v1 kernels may not count swap.
      if [[ $CGROUP == v2 || -e /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes ]]; then
        printf '%s\n' ConstrainSwapSpace=yes AllowedSwapSpace=0
      fi
    fi
  } >"$DIR/etc/cgroup.conf"
}

write_slurmdbd_conf() {
  local conf=$DIR/etc/slurmdbd.conf comm=""
  [[ $LOOPBACK == yes ]] && comm=CommunicationParameters=NoInAddrAny
  [[ -s $DIR/etc/db.secret ]] || (umask 077 && od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$DIR/etc/db.secret")
  (umask 077 && cat >"$conf") <<CONF
AuthType=auth/munge
AuthInfo=socket=$MUNGE_SOCKET
$(rest_conf)
DbdHost=$(hostname -s)
DbdAddr=$ADDR
DbdPort=$((BASE + 1))
$comm
SlurmUser=$SLURM_USER
LogFile=$LOG/slurmdbd.log
LogTimeFormat=iso8601_ms
PidFile=$RUN/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((BASE + 3))
StorageUser=slurm
StoragePass=$(cat "$DIR/etc/db.secret")
StorageLoc=slurm_acct_db
CONF
  chown "$SLURM_USER:" "$conf"
}

# write_power_programs: what slurmctld calls for cloud nodes. They run as SlurmUser, who may not
# start a slurmd; they only hand the names to power-watch, which runs as root.
write_power_programs() {
  install -m 755 "$HERE/bin/power-request" "$DIR/bin/resume"
  install -m 755 "$HERE/bin/power-request" "$DIR/bin/suspend"
  [[ -p $RUN/power.fifo ]] || mkfifo -m 600 "$RUN/power.fifo"
  chown "$SLURM_USER:" "$RUN/power.fifo"
}
