//! Address of a database: a SQLite file or a PostgreSQL database.

use std::fmt;
use std::path::{Path, PathBuf};

use sqlx::postgres::PgConnectOptions;
use url::Url;

/// Parameters allowed in a PostgreSQL URL. A password is not among them: a printed URL hides only
/// `user:password@`.
const ALLOWED_PARAMETERS: [&str; 8] = [
    "host",
    "port",
    "dbname",
    "user",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
];

/// Address of a database. Printed without its password.
#[derive(Clone)]
pub enum Location {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A PostgreSQL database.
    Postgres(Box<PgConnectOptions>),
}

impl Location {
    /// Parses `sqlite:<path>`, with relative paths below `folder`, or `postgres://…`.
    ///
    /// # Errors
    /// Describes the fault without repeating the text, which may hold a password.
    pub fn parse(url: &str, folder: &Path) -> Result<Self, String> {
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            return postgres(url).map(|options| Self::Postgres(Box::new(options)));
        }
        let path = url
            .strip_prefix("sqlite:")
            .map(|path| path.strip_prefix("//").unwrap_or(path));
        match path {
            Some(path) if !path.is_empty() && !path.starts_with(':') && !path.contains('?') => {
                Ok(Self::Sqlite(folder.join(path)))
            }
            _ => Err(
                "expected sqlite:<path of a file> or postgres://<user>:<password>@<host>/<database>"
                    .to_owned(),
            ),
        }
    }

    /// The SQLite file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Sqlite(path) => Some(path),
            Self::Postgres(_) => None,
        }
    }
}

fn postgres(url: &str) -> Result<PgConnectOptions, String> {
    let parsed = Url::parse(url).map_err(|error| format!("invalid PostgreSQL URL: {error}"))?;
    for (name, _) in parsed.query_pairs() {
        if !ALLOWED_PARAMETERS.contains(&name.as_ref()) {
            return Err(format!(
                "unknown parameter {name}; allowed: {}; give a password as user:password@, in PGPASSWORD or in ~/.pgpass",
                ALLOWED_PARAMETERS.join(", ")
            ));
        }
    }
    for (_, key) in parsed.query_pairs().filter(|(name, _)| name == "sslkey") {
        secret_file::read(Path::new(&*key)).map_err(|error| format!("sslkey {key}: {error}"))?;
    }
    // The parser's message may repeat a part of the text.
    url.parse()
        .map_err(|_| "invalid PostgreSQL URL: check port and sslmode".to_owned())
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "{}", path.display()),
            Self::Postgres(options) => {
                let database = options.get_database().unwrap_or(options.get_username());
                match options.get_socket() {
                    Some(socket) => write!(f, "postgres://{}/{database}", socket.display()),
                    None => write!(
                        f,
                        "postgres://{}:{}/{database}",
                        options.get_host(),
                        options.get_port()
                    ),
                }
            }
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(url: &str) -> Result<String, String> {
        Location::parse(url, Path::new("/data")).map(|location| location.to_string())
    }

    #[test]
    fn a_file_is_below_the_folder_unless_absolute() {
        assert_eq!(printed("sqlite:l.db"), Ok("/data/l.db".into()));
        assert_eq!(printed("sqlite:///srv/l.db"), Ok("/srv/l.db".into()));
    }

    #[test]
    fn a_password_is_never_printed() {
        for (url, expected) in [
            (
                "postgres://mesh:secret@db.example.org/ledger?sslmode=verify-full",
                "postgres://db.example.org:5432/ledger",
            ),
            (
                "postgresql://mesh:secret@db:6432",
                "postgres://db:6432/mesh",
            ),
            (
                "postgres://mesh:secret@localhost/ledger?host=/run/postgresql",
                "postgres:///run/postgresql/ledger",
            ),
        ] {
            let location = Location::parse(url, Path::new("")).unwrap();
            assert_eq!(location.to_string(), expected);
            assert!(!format!("{location:?}").contains("secret"));
        }
        for url in [
            "postgres://u:secret@h:port/db",
            "postgres://u@h/db?password=secret",
            "postgres://u:secret@h/db?sslmode=secret",
            "mysql://u:secret@h/db",
            "sqlite:",
            "sqlite::memory:",
            "l.db",
        ] {
            let fault = printed(url).unwrap_err();
            assert!(!fault.contains("secret"), "{fault}");
        }
    }

    #[test]
    fn a_client_key_that_others_may_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let url = format!("postgres://mesh@db/ledger?sslkey={}", file.path().display());
        for (mode, used) in [(0o644, false), (0o600, true)] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(file.path(), mode).unwrap();
            let printed = printed(&url);
            assert_eq!(printed.is_ok(), used, "{printed:?}");
            assert!(used || printed.unwrap_err().contains("others may read"));
        }
    }
}
