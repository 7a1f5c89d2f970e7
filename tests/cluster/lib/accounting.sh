# shellcheck shell=bash
# The accounting database: made once, filled with the cluster's accounts, users and QOS.
#
# Making it takes about 8 s on Slurm 22.05 (each exchange with slurmdbd costs some 44 ms), so an
# empty MariaDB folder and a dump of the filled database are kept in CLUSTER_CACHE.

cache_folder() {
  CACHE=${CLUSTER_CACHE:-/var/tmp/slurm-mesh-cluster}
  mkdir -p "$CACHE"
  # The dump is loaded as the database's root: nobody else may have put it there.
  [[ -O $CACHE && ! -L $CACHE ]] || die "$CACHE belongs to somebody else; remove it or set CLUSTER_CACHE"
  chmod 700 "$CACHE"
  local key
  key=$( (cat "$HERE/accounts" && slurm slurmctld -V && mariadbd --no-defaults --version) | sha256sum | cut -c1-16)
  EMPTY_DB=$CACHE/empty-$(mariadbd --no-defaults --version | sha256sum | cut -c1-16)
  FILLED_DB=$CACHE/accounts-$key.sql
}

prepare_database() {
  [[ ! -d $DIR/mysql/mysql ]] || return 0
  rm -rf "$DIR/mysql" "$DIR/mysql.new"
  if [[ -d $EMPTY_DB ]]; then
    cp -a "$EMPTY_DB" "$DIR/mysql.new"
  else
    mkdir "$DIR/mysql.new"
    chown mysql: "$DIR/mysql.new"
    clean TMPDIR="$MYSQL_TMP" mariadb-install-db --no-defaults --user=mysql --datadir="$DIR/mysql.new" --skip-test-db \
      --auth-root-authentication-method=socket >"$LOG/mariadb-install.log" 2>&1 ||
      die "the database could not be made: $(grep -m 1 ERROR "$LOG/mariadb-install.log"); see $LOG/mariadb-install.log"
    cp -a "$DIR/mysql.new" "$EMPTY_DB.$$"
    # Another cluster may have been quicker.
    mv -T "$EMPTY_DB.$$" "$EMPTY_DB" 2>/dev/null || rm -rf "$EMPTY_DB.$$"
  fi
  mv "$DIR/mysql.new" "$DIR/mysql"
}

prepare_schema() {
  [[ ! -e $DIR/accounts.done ]] || return 0
  sql -e "CREATE DATABASE IF NOT EXISTS slurm_acct_db;
    CREATE OR REPLACE USER slurm@127.0.0.1 IDENTIFIED BY '$(cat "$DIR/etc/db.secret")';
    GRANT ALL ON slurm_acct_db.* TO slurm@127.0.0.1" || die "the accounting database could not be made"
  # The dump serves clusters of any name: the name is in it only as `<name>_..._table` and '<name>'.
  if [[ -s $FILLED_DB ]] && sed "s/@CLUSTER@/$CLUSTER/g" "$FILLED_DB" | sql slurm_acct_db; then
    touch "$DIR/accounts.done"
  fi
}

knows_gpus() { slurm timeout 10 sacctmgr -nP list tres format=type,name | grep -qx 'gres|gpu'; }

# load_accounts: only once slurmctld has registered: before that, "no TRES known by type gres/gpu".
load_accounts() {
  [[ ! -e $DIR/accounts.done ]] || return 0
  wait_for 120 knows_gpus || die "slurmctld has not registered with slurmdbd; see $LOG/slurmctld.log"
  slurm sacctmgr -i <"$HERE/accounts" >"$LOG/sacctmgr.log" 2>&1
  # sacctmgr's exit status says nothing about single lines of its input.
  [[ $(slurm sacctmgr -nP list assoc user=alice,bob,carol format=user,account | sort -u | wc -l) -eq 6 ]] ||
    die "the accounts were not made; see $LOG/sacctmgr.log"
  # Without what is about this moment: node events, and how far usage has been summed up.
  clean mariadb-dump --no-defaults --socket="$MYSQL_SOCKET" -uroot --single-transaction \
    --ignore-table-data="slurm_acct_db.${CLUSTER}_event_table" \
    --ignore-table-data="slurm_acct_db.${CLUSTER}_last_ran_table" slurm_acct_db |
    sed "s/\`${CLUSTER}_/\`@CLUSTER@_/g; s/'$CLUSTER'/'@CLUSTER@'/g" >"$FILLED_DB.$$" &&
    mv "$FILLED_DB.$$" "$FILLED_DB"
  touch "$DIR/accounts.done"
}
