//! Detects damaged SQLite files and recovers their readable rows into a new file.

mod recovery_marker;

use std::path::{Path, PathBuf};

use futures_util::TryStreamExt as _;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};

pub use self::recovery_marker::RecoveryMarker;
use crate::sqlite::options;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The result codes SQLITE_CORRUPT and SQLITE_NOTADB.
const CORRUPTION_CODES: [u32; 2] = [11, 26];

/// A table of a recovered file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredTable {
    /// Name of the table.
    pub name: String,
    /// Number of recovered rows.
    pub rows: i64,
    /// True if some pages were unreadable; their rows are lost.
    pub is_damaged: bool,
}

/// Result of recovering a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Path of the damaged file after the move. `None` if there was none.
    pub damaged: Option<PathBuf>,
    /// Recovered tables; empty if none was readable.
    pub tables: Vec<RecoveredTable>,
}

/// A failed recovery.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// A file could not be moved aside.
    #[error("rename {}", path.display())]
    Move {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The new file could not be written.
    #[error("write {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: BoxError,
    },
}

/// True if SQLite reports a damaged file, or one that is not a database.
pub fn is_damage(error: &sqlx::Error) -> bool {
    let code = match error {
        sqlx::Error::Database(error) => error.code(),
        _ => None,
    };
    let code = code.and_then(|code| code.parse::<u32>().ok());
    // The low byte is the primary result code.
    code.is_some_and(|code| CORRUPTION_CODES.contains(&(code & 0xff)))
}

/// Checks all pages of a file and returns the first fault.
///
/// # Errors
/// If the file cannot be read for another reason.
pub async fn damage(path: &Path) -> Result<Option<String>, sqlx::Error> {
    let checked = async {
        let mut connection = options(path).read_only(true).connect().await?;
        let found = sqlx::query("PRAGMA quick_check(1)")
            .fetch_one(&mut connection)
            .await?;
        let found: String = found.try_get(0)?;
        connection.close().await?;
        Ok::<_, sqlx::Error>(found)
    };
    match checked.await {
        Ok(found) if found == "ok" => Ok(None),
        Ok(found) => Ok(Some(found.replace('\n', " "))),
        Err(error) if is_damage(&error) => Ok(Some(match error {
            sqlx::Error::Database(error) => error.message().to_owned(),
            error => error.to_string(),
        })),
        Err(error) => Err(error),
    }
}

/// Moves a damaged file aside and copies its readable rows into a new one. An empty file takes the place of a missing one. No other process may
/// have it open. `prepare` creates the service's tables in the new file. The [`RecoveryMarker`] makes
/// the next start of the service restore the rest.
///
/// # Errors
/// If a file cannot be moved or written. The damaged file is never changed.
pub async fn recover<F: Future<Output = Result<(), BoxError>>>(
    path: &Path,
    suffix: &str,
    prepare: impl FnOnce(PathBuf) -> F,
) -> Result<Recovered, RecoverError> {
    let aside = |side: &str| PathBuf::from(format!("{}.{suffix}{side}", path.display()));
    for side in ["", "-wal", "-shm"] {
        let from = PathBuf::from(format!("{}{side}", path.display()));
        if from.exists() {
            let moved = std::fs::rename(&from, aside(side));
            moved.map_err(|source| RecoverError::Move { path: from, source })?;
        }
    }
    let damaged = Some(aside("")).filter(|damaged| damaged.exists());
    let failed = |source| RecoverError::Write {
        path: path.to_owned(),
        source,
    };
    // Before the new file: an interrupted recovery is completed by the next start, too.
    let marked = RecoveryMarker::of(path).set();
    marked.map_err(|error| failed(error.into()))?;
    prepare(path.to_owned()).await.map_err(failed)?;
    let tables = match &damaged {
        Some(damaged) => copy(path, damaged).await,
        None => Ok(Vec::new()),
    };
    let tables = tables.map_err(|error| failed(error.into()))?;
    Ok(Recovered { damaged, tables })
}

async fn copy(path: &Path, damaged: &Path) -> Result<Vec<RecoveredTable>, sqlx::Error> {
    let mut connection = options(path).foreign_keys(false).connect().await?;
    let attached = sqlx::query("ATTACH ? AS damaged")
        .bind(damaged.to_string_lossy().into_owned())
        .execute(&mut connection)
        .await;
    let listed = match attached {
        Ok(_) => table_names(&mut connection, "damaged.sqlite_master").await,
        Err(error) => Err(error),
    };
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) if is_damage(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let present = table_names(&mut connection, "main.sqlite_master").await?;
    let mut tables = Vec::new();
    for name in listed.iter().filter(|name| present.contains(name)) {
        tables.push(copy_table(&mut connection, name).await?);
    }
    connection.close().await?;
    Ok(tables)
}

/// Returns the names of the tables, except those of SQLite and of the migrations, which exist in
/// the new file.
async fn table_names(
    connection: &mut SqliteConnection,
    schema: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let sql = format!(
        "SELECT name FROM {schema} WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name <> '_sqlx_migrations' ORDER BY name"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Copies rows in ascending order. If a damaged page stops it, copies the rest in descending order.
async fn copy_table(
    connection: &mut SqliteConnection,
    name: &str,
) -> Result<RecoveredTable, sqlx::Error> {
    let table = quoted(name);
    let key = storage_key(connection, name).await?;
    let columns = common_columns(connection, name).await?.join(", ");
    let mut is_damaged = false;
    for direction in ["ASC", "DESC"] {
        let order: Vec<String> = key
            .iter()
            .map(|column| format!("{column} {direction}"))
            .collect();
        let rows = format!(
            "SELECT {columns} FROM damaged.{table} ORDER BY {}",
            order.join(", ")
        );
        let (readable, damaged) = count_readable(connection, &rows).await?;
        is_damaged |= damaged;
        let sql =
            format!("INSERT OR REPLACE INTO main.{table} ({columns}) {rows} LIMIT {readable}");
        if readable > 0 {
            execute(connection, sql).await?;
        }
        if !damaged {
            break;
        }
    }
    let counted = sqlx::query(AssertSqlSafe(format!("SELECT count(*) FROM main.{table}")));
    let rows = counted.fetch_one(connection).await?.try_get(0)?;
    Ok(RecoveredTable {
        name: name.to_owned(),
        rows,
        is_damaged,
    })
}

/// Returns the columns that a table has in both files.
async fn common_columns(
    connection: &mut SqliteConnection,
    name: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let both = "SELECT new.name FROM pragma_table_info(?1, 'main') AS new JOIN pragma_table_info(?1, 'damaged') AS old ON old.name = new.name ORDER BY new.cid";
    let rows = sqlx::query(both)
        .bind(name.to_owned())
        .fetch_all(connection)
        .await?;
    let names = rows.iter().map(|row| row.try_get::<String, _>(0));
    names.map(|name| name.map(|name| quoted(&name))).collect()
}

/// Counts the rows before the first unreadable one. The flag is true if there is an unreadable row.
async fn count_readable(
    connection: &mut SqliteConnection,
    rows: &str,
) -> Result<(u64, bool), sqlx::Error> {
    let mut found = 0;
    let mut stream = sqlx::query(AssertSqlSafe(rows.to_owned())).fetch(connection);
    loop {
        match stream.try_next().await {
            Ok(Some(_)) => found += 1,
            Ok(None) => return Ok((found, false)),
            Err(error) if is_damage(&error) => return Ok((found, true)),
            Err(error) => return Err(error),
        }
    }
}

/// Returns the columns by which the rows of a table are stored.
async fn storage_key(
    connection: &mut SqliteConnection,
    name: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let without =
        sqlx::query("SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?")
            .bind(name.to_owned())
            .fetch_one(&mut *connection)
            .await?;
    if without.try_get::<i64, _>(0)? == 0 {
        return Ok(vec!["rowid".to_owned()]);
    }
    let columns = sqlx::query("SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk")
        .bind(name.to_owned())
        .fetch_all(connection)
        .await?;
    let names = columns.iter().map(|row| row.try_get::<String, _>(0));
    names.map(|name| name.map(|name| quoted(&name))).collect()
}

async fn execute(connection: &mut SqliteConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .map(drop)
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    async fn prepare(path: PathBuf) -> Result<(), BoxError> {
        let mut connection = options(&path).create_if_missing(true).connect().await?;
        for sql in [
            "CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
            "CREATE TABLE u (a TEXT, b TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID",
            "CREATE INDEX by_text ON t (text)",
        ] {
            execute(&mut connection, sql.to_owned()).await?;
        }
        Ok(connection.close().await?)
    }

    async fn table_of(path: &Path, rows: i64) {
        prepare(path.to_owned()).await.unwrap();
        let mut connection = options(path).connect().await.unwrap();
        execute(&mut connection, format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) INSERT INTO t SELECT i, 'text of row ' || i || hex(zeroblob(40)) FROM n"
        ))
        .await
        .unwrap();
        execute(
            &mut connection,
            "INSERT INTO u SELECT text, 'b' FROM t WHERE id <= 50".into(),
        )
        .await
        .unwrap();
        connection.close().await.unwrap();
    }

    fn overwrite(path: &Path, page: usize) {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[page * PAGE..(page + 1) * PAGE].fill(0xAA);
        std::fs::write(path, bytes).unwrap();
    }

    async fn ids(path: &Path) -> Vec<i64> {
        let mut connection = options(path).connect().await.unwrap();
        let rows = sqlx::query("SELECT id FROM t ORDER BY id")
            .fetch_all(&mut connection)
            .await;
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }

    #[tokio::test]
    async fn only_the_rows_of_a_damaged_page_are_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.db");
        table_of(&path, 5_000).await;
        assert_eq!(damage(&path).await.unwrap(), None);
        // A leaf page in the middle of the table.
        let is_leaf = |page: &[u8]| {
            page[0] == 0x0D && page.windows(16).any(|text| text == b"text of row 2500")
        };
        let bytes = std::fs::read(&path).unwrap();
        let page = bytes.chunks(PAGE).rposition(is_leaf).unwrap();
        overwrite(&path, page);
        assert!(damage(&path).await.unwrap().is_some());
        let recovered = recover(&path, "damaged", prepare).await.unwrap();
        assert_eq!(
            damage(&path).await.unwrap(),
            None,
            "the new file is complete"
        );
        let left = ids(&path).await;
        assert!((4_900..5_000).contains(&left.len()), "{}", left.len());
        assert_eq!((left.first(), left.last()), (Some(&1), Some(&5_000)));
        let table = |name: &str| {
            recovered
                .tables
                .iter()
                .find(|table| table.name == name)
                .unwrap()
        };
        assert!(table("t").is_damaged && !table("u").is_damaged);
        assert_eq!((table("t").rows, table("u").rows), (left.len() as i64, 50));
        assert!(recovered.damaged.unwrap().exists());
        let marker = RecoveryMarker::of(&path);
        assert!(marker.is_set());
        assert_eq!(marker.restored(), None);
        for sequences in [vec![], vec![7, 0]] {
            marker.note_restored(&sequences).unwrap();
            assert_eq!(marker.restored(), Some(sequences));
        }
        marker.clear().unwrap();
        assert!(!marker.is_set());
    }

    #[tokio::test]
    async fn a_file_without_a_header_recovers_no_table() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.db");
        table_of(&path, 10).await;
        overwrite(&path, 0);
        let found = damage(&path).await.unwrap().unwrap();
        assert!(found.contains("not a database"), "{found}");
        let recovered = recover(&path, "damaged", prepare).await.unwrap();
        assert_eq!(recovered.tables, []);
        assert!(recovered.damaged.unwrap().exists());
        assert_eq!(ids(&path).await, [0; 0]);
    }
}
