//! Copies of databases that are in use, and their restore.
//!
//! SQLite copies a file in one read transaction (`VACUUM INTO`); writers go on meanwhile. PostgreSQL's own programs dump and restore a
//! database. Passwords are handed to them in the environment, as command lines are public.

use std::path::Path;
use std::process::Stdio;

use percent_encoding::percent_decode_str;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::process::Command;
use url::Url;

use crate::{damage, sqlite};

/// Why a database could not be copied or restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The database refuses, or is unavailable.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    /// The copy of a SQLite file is damaged, because the file itself is.
    #[error("the copy is damaged: {0}")]
    Damaged(String),
    /// A program of PostgreSQL could not be started.
    #[error("start {program}, a program of PostgreSQL's client package")]
    Start {
        /// Its name.
        program: &'static str,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A program of PostgreSQL failed.
    #[error("{program}: {message}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What it printed.
        message: String,
    },
}

/// Copies a SQLite file that may be in use into a new file, and checks the copy.
///
/// # Errors
/// If the file cannot be read, the new one exists, or the copy is damaged.
pub async fn copy_file(from: &Path, to: &Path) -> Result<(), BackupError> {
    let mut connection = sqlite::options(from).read_only(true).connect().await?;
    let copied = sqlx::query("VACUUM INTO ?")
        .bind(to.to_string_lossy().into_owned())
        .execute(&mut connection)
        .await;
    connection.close().await?;
    copied?;
    // Switches the copy to WAL mode, so that it can be opened as the services open their files.
    sqlite::options(to).connect().await?.close().await?;
    match damage::damage(to).await? {
        None => Ok(()),
        Some(what) => Err(BackupError::Damaged(what)),
    }
}

/// Dumps a database of PostgreSQL into a file, in the custom format of `pg_dump`.
///
/// # Errors
/// If `pg_dump` is missing or fails.
pub async fn dump(url: &str, to: &Path) -> Result<(), BackupError> {
    let mut dump = command("pg_dump", url);
    dump.arg("--format=custom").arg("--file").arg(to);
    run("pg_dump", dump).await
}

/// Restores a dump into an empty database. Its tables belong to the role of the URL; grants to other roles are not restored.
///
/// # Errors
/// If `pg_restore` is missing or fails. Nothing is restored then.
pub async fn restore(url: &str, from: &Path) -> Result<(), BackupError> {
    let mut restore = command("pg_restore", url);
    restore
        .args(["--no-owner", "--no-privileges", "--single-transaction"])
        .arg(from);
    run("pg_restore", restore).await
}

/// Checks that a dump can be read to its end, without a server.
///
/// # Errors
/// If `pg_restore` is missing or fails.
pub async fn check_dump(dump: &Path) -> Result<(), BackupError> {
    let mut check = Command::new("pg_restore");
    check.arg("--file=/dev/null").arg(dump);
    run("pg_restore", check).await
}

/// Whether a database of PostgreSQL has no tables.
///
/// # Errors
/// If it is unavailable.
pub async fn is_empty(options: &PgConnectOptions) -> Result<bool, BackupError> {
    let mut connection = options.connect().await?;
    let tables = "SELECT NOT EXISTS (SELECT FROM pg_tables WHERE schemaname = current_schema())";
    let empty = sqlx::query_scalar(tables).fetch_one(&mut connection).await;
    connection.close().await?;
    Ok(empty?)
}

fn command(program: &'static str, url: &str) -> Command {
    let mut command = Command::new(program);
    let mut shown = url.to_owned();
    if let Ok(mut parsed) = Url::parse(url) {
        if let Some(password) = parsed.password() {
            let password = percent_decode_str(password).decode_utf8_lossy();
            command.env("PGPASSWORD", &*password);
        }
        // Without a host there is no password to remove.
        parsed.set_password(None).ok();
        shown = parsed.into();
    }
    command.arg("--dbname").arg(shown);
    command
}

async fn run(program: &'static str, mut command: Command) -> Result<(), BackupError> {
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| BackupError::Start { program, source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(BackupError::Program {
        program,
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_on_the_command_line() {
        let command = command(
            "pg_dump",
            "postgres://mesh:s%40cret@db/ledger?sslmode=require",
        );
        let command = command.as_std();
        let args: Vec<_> = command
            .get_args()
            .map(|arg| arg.to_string_lossy())
            .collect();
        assert_eq!(
            args,
            ["--dbname", "postgres://mesh@db/ledger?sslmode=require"]
        );
        let (name, value) = command.get_envs().next().unwrap();
        assert_eq!(
            (name.to_str(), value.and_then(|v| v.to_str())),
            (Some("PGPASSWORD"), Some("s@cret"))
        );
    }

    #[tokio::test]
    async fn a_file_in_use_is_copied_with_what_only_its_wal_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.db");
        let mut writer = sqlite::options(&path)
            .create_if_missing(true)
            .connect()
            .await
            .unwrap();
        for statement in [
            "CREATE TABLE t (id INTEGER PRIMARY KEY)",
            "INSERT INTO t VALUES (1), (2)",
        ] {
            sqlx::query(statement).execute(&mut writer).await.unwrap();
        }
        // A transaction that is open meanwhile is not in the copy.
        let mut open = writer.begin().await.unwrap();
        sqlx::query("INSERT INTO t VALUES (3)")
            .execute(&mut *open)
            .await
            .unwrap();
        let copy = folder.path().join("copy.db");
        copy_file(&path, &copy).await.unwrap();
        open.commit().await.unwrap();
        let mut copied = sqlite::options(&copy).connect().await.unwrap();
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM t")
            .fetch_one(&mut copied)
            .await
            .unwrap();
        assert_eq!(count, 2);
        assert!(
            copy_file(&path, &copy).await.is_err(),
            "an existing file is not overwritten"
        );
    }
}
