# shellcheck shell=bash
# REST=1: slurmrestd, on the socket DIR/rest/socket and on port BASEPORT+4 of REST_ADDRESS, for whoever has a token (`scontrol token`).

# rest_conf: the lines that slurm.conf and slurmdbd.conf need for tokens.
rest_conf() {
  [[ $REST == 1 ]] || return 0
  printf '%s\n' AuthAltTypes=auth/jwt "AuthAltParameters=jwt_key=$DIR/etc/jwt.key"
}

make_rest() {
  [[ $REST == 1 ]] || return 0
  mkdir -p "$DIR/rest"
  chown nobody: "$DIR/rest"
  [[ -s $DIR/etc/jwt.key ]] || (umask 077 && head -c 32 /dev/urandom >"$DIR/etc/jwt.key")
  chown "$SLURM_USER:" "$DIR/etc/jwt.key"
}

rest_listens() { curl --silent --max-time 5 --output /dev/null --unix-socket "$DIR/rest/socket" http://slurm/openapi.json; }

start_slurmrestd() {
  alive slurmrestd && return
  [[ $REST == 1 ]] || die "this cluster has no slurmrestd: make it with REST=1"
  rm -f "$DIR/rest/socket"
  local plugins=()
  # 22.05: without slurmdbd it dies on its own default plugins.
  if [[ $NODB == 1 ]]; then
    case $(slurm slurmrestd -V) in
      *" 22."*) plugins=(-s openapi/v0.0.38) ;;
      *) plugins=(-s openapi/slurmctld) ;;
    esac
  fi
  # It refuses to run as root or SlurmUser. SLURM_JWT in its own environment makes it take tokens (seen on 22.05).
  # shellcheck disable=SC2016 # the inner shell expands it
  slurm setsid --fork sh -c 'echo $$ >"$0"; exec setpriv --reuid=nobody --regid=nogroup --clear-groups env SLURM_JWT=daemon "$@"' \
    "$RUN/slurmrestd.pid" slurmrestd "${plugins[@]}" -a rest_auth/jwt "unix:$DIR/rest/socket" "$REST_ADDRESS:$((BASE + 4))" </dev/null >>"$LOG/slurmrestd.log" 2>&1
  wait_for 120 rest_listens || die "slurmrestd does not answer; see $LOG/slurmrestd.log"
}
