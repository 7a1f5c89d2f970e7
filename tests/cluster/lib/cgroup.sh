# shellcheck shell=bash
# Can this machine enforce a job's memory? Only then is there a real OUT_OF_MEMORY.

plugin_exists() { compgen -G "$ROOT/usr/lib/*/slurm*/$1.so" >/dev/null; }

# writable_group FOLDER: may we make a group there?
writable_group() {
  local probe
  probe=$1/mesh-probe.$$
  mkdir "$probe" 2>/dev/null && rmdir "$probe"
}

# hand_down FOLDER: gives the groups of version 2 their controllers where Slurm makes them, in the slice
# that systemd makes where it runs. 22.05 wants all that it knows.
hand_down() {
  local folder controller
  for folder in "$1" "$1/system.slice"; do
    mkdir -p "$folder" || return 1
    for controller in cpuset cpu memory pids; do
      { echo "+$controller" >"$folder/cgroup.subtree_control"; } 2>/dev/null || [[ $controller != memory ]] || return 1
    done
  done
}

# choose_cgroup: sets CGROUP (none, v1, v2) and CGROUP_WHY from CG and the machine.
choose_cgroup() {
  local top=/sys/fs/cgroup hierarchy
  CGROUP=none
  if [[ $CG == 0 ]]; then
    CGROUP_WHY="switched off by CG=0"
  elif [[ -f $top/cgroup.controllers ]]; then
    if ! grep -qw memory "$top/cgroup.controllers"; then
      CGROUP_WHY="the cgroup v2 root offers no memory controller"
    elif ! writable_group $top; then
      CGROUP_WHY="$top is not writable (a container without its own cgroups?)"
    elif ! plugin_exists cgroup_v2; then
      CGROUP_WHY="this Slurm has no cgroup/v2 plugin"
    elif ! hand_down $top; then
      CGROUP_WHY="$top hands no memory controller down (a container's own processes in its root?)"
    else
      CGROUP=v2 CGROUP_WHY="memory cgroups, version 2"
    fi
  else
    for hierarchy in memory freezer; do
      if [[ ! -d $top/$hierarchy ]]; then
        CGROUP_WHY="no $hierarchy cgroup is mounted below $top"
        return
      elif ! writable_group "$top/$hierarchy"; then
        CGROUP_WHY="$top/$hierarchy is not writable"
        return
      fi
    done
    CGROUP=v1 CGROUP_WHY="memory cgroups, version 1"
  fi
  [[ $CG != 1 || $CGROUP != none ]] || die "CG=1, but $CGROUP_WHY"
}

# remove_groups: empty groups of this cluster's jobs. One left behind (a slurmstepd that was killed)
# would show its old memory counters to a later job of the same id.
remove_groups() {
  local group id
  while read -r group; do
    id=$(sed -nE 's|.*/job_([0-9]+).*|\1|p' <<<"$group")
    ((id >= FIRST_JOB_ID && id < FIRST_JOB_ID + 10000)) && rmdir "$group" 2>/dev/null
  done < <(find /sys/fs/cgroup -depth -type d -path '*/job_*' 2>/dev/null)
  return 0
}
