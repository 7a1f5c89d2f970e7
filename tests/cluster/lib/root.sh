# shellcheck shell=bash
# ROOT=DIR: the cluster's Slurm is that of another Debian in a folder (scripts/slurm-root makes one),
# while munged, MariaDB, the mesh and the tests are this machine's.
#
# Slurm's daemons and commands run in a mount namespace of the cluster's own, chrooted to ROOT. ROOT
# gives /usr, /etc and /var; everything else (/tmp, /home, /proc, …), and who the users are, is this
# machine's: a path means the same on both sides. One process, `root`, holds the namespace; the mounts
# end with it, and nobody else ever sees them, so that nothing has to be unmounted and removing ROOT
# removes nothing but ROOT.

# slurm CMD…: a command of Slurm, with nothing of the caller's environment, whichever Slurm it is.
slurm() {
  local enter=()
  [[ -z $ROOT ]] || enter=(nsenter --target "$(pid_of root)" --mount --root --wd --)
  clean "${enter[@]}" "$@"
}

start_root() {
  [[ -n $ROOT ]] || return 0
  alive root && return
  rm -f "$RUN/root.pid"
  clean setsid --fork unshare --mount --propagation private "$HERE/bin/root-holder" "$DIR" "$ROOT" </dev/null >>"$LOG/root.log" 2>&1
  wait_for 60 alive root || die "$ROOT cannot be entered: $(tail -n 1 "$LOG/root.log")"
}

# write_commands: DIR/commands has Slurm's commands for whoever runs on this machine (`bin_dir` of the
# mesh; root only if ROOT is set, who alone may enter it).
write_commands() {
  local name
  rm -rf "$DIR/commands"
  if [[ -z $ROOT ]]; then
    ln -sfn /usr/bin "$DIR/commands"
    return
  fi
  mkdir "$DIR/commands"
  cat >"$DIR/commands/.run" <<RUN
#!/bin/sh
# Slurm's command of this name from $ROOT.
read -r pid <$RUN/root.pid && exec nsenter --target "\$pid" --mount --root --wd -- "/usr/bin/\${0##*/}" "\$@"
RUN
  chmod 755 "$DIR/commands/.run"
  for name in squeue sacct scontrol sinfo sacctmgr sdiag sprio sshare sreport sbatch srun salloc scancel strigger sstat; do
    ln -s .run "$DIR/commands/$name"
  done
}
