//! The section `[ledger]` of `mesh.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_db::Location;
use mesh_events::subject;
use mesh_runtime::RenamedKeys;
use secret_file::LoginUrl;
use serde::{Deserialize, Serialize};

use crate::adapters::DEFAULT_QUERY_TIMEOUT;
use crate::domain::note::PrivateKey;
use crate::domain::replay::ReplayLimits;
use crate::error::Error;
use crate::witness::{Witness, Witnesses};

/// Default configuration: every key with its default and a comment.
pub const DEFAULTS: &str = include_str!("../config/default.toml");
/// Keys of the section that were renamed.
pub const RENAMED_KEYS: RenamedKeys = &[
    ("max_page", "max_page_size"),
    ("max_story", "max_history_events"),
    ("retention.keep", "retention.max_age"),
    ("replay.keep", "replay.retention"),
];

/// Bounds of the signing interval.
const MIN_CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);
const MAX_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(10);
/// Bounds of the query timeout.
const MIN_QUERY_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_QUERY_TIMEOUT: Duration = Duration::from_secs(600);
/// Bounds of the replay retention, limited by the maximum age of the stream.
const MIN_REPLAY_RETENTION: Duration = Duration::from_secs(60);
const MAX_REPLAY_RETENTION: Duration = Duration::from_secs(3 * 86_400);
/// Minimum retention of content: one day.
const MIN_CONTENT_RETENTION: Duration = Duration::from_secs(86_400);

/// `[ledger]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Maximum number of messages stored in one transaction.
    pub batch_size: usize,
    /// Maximum page size of `/v1/events`.
    pub max_page_size: u32,
    /// Maximum number of events in a response of `/v1/jobs/{cluster}/{job}`.
    pub max_history_events: u32,
    /// The database.
    pub db: Database,
    /// Signing of checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Retention of content.
    pub retention: RetentionConfig,
    /// Replays.
    pub replay: ReplayConfig,
}

/// `[ledger.replay]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayConfig {
    /// Default rate, in events per second.
    pub rate: u32,
    /// Maximum rate, in events per second.
    pub max_rate: u32,
    /// Maximum number of concurrent replays of one caller.
    pub max_running: u32,
    /// Retention of messages in the stream after the end of a replay.
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        Self {
            rate: 1000,
            max_rate: 10_000,
            max_running: 4,
            retention: Duration::from_secs(86_400),
        }
    }
}

impl ReplayConfig {
    /// Returns the limits of replay requests.
    pub const fn limits(&self) -> ReplayLimits {
        ReplayLimits {
            rate: self.rate,
            max_rate: self.max_rate,
            max_running: self.max_running,
        }
    }
}

/// `[ledger.retention]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Retention of content in the database; permanent if empty.
    pub max_age: String,
    /// Folder of the archives; `archive` in the data directory if empty.
    pub archive_dir: PathBuf,
    /// True to erase content without writing archives.
    pub erase: bool,
    /// The database of `db.url` with a role that may delete payloads; `db.url` if empty.
    pub url: LoginUrl,
}

/// `[ledger.checkpoint]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Origin of the checkpoints; `slurm-mesh.org/ledger/<cluster>` if empty.
    pub origin: String,
    /// Interval of signing new entries.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// Private key file; `ledger-checkpoint.key` in the data directory if empty.
    pub key_file: PathBuf,
    /// Witnesses that cosign each checkpoint.
    pub witnesses: Vec<WitnessConfig>,
    /// Minimum number of cosignatures.
    pub required_cosignatures: usize,
}

/// `[[ledger.checkpoint.witnesses]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WitnessConfig {
    /// Base URL of `add-checkpoint`.
    pub url: String,
    /// Public key of the witness, `<name>+<key id>+<base64>`.
    pub key: String,
}

/// `[ledger.db]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// `sqlite:<path>` or `postgres://…`; `ledger.db` in the data directory if empty.
    pub url: LoginUrl,
    /// The database of `url` with a read-only role; `url` if empty.
    pub reader_url: LoginUrl,
    /// Maximum number of concurrent queries.
    pub readers: u32,
    /// Query timeout.
    #[serde(with = "humantime_serde")]
    pub query_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_size: 2000,
            max_page_size: 1000,
            max_history_events: 5000,
            db: Database::default(),
            checkpoint: CheckpointConfig::default(),
            retention: RetentionConfig::default(),
            replay: ReplayConfig::default(),
        }
    }
}

impl RetentionConfig {
    /// Returns the retention of content, or `None` if it is permanent.
    ///
    /// # Errors
    /// Describes the invalid value.
    pub fn max_age(&self) -> Result<Option<Duration>, String> {
        if self.max_age.is_empty() {
            return Ok(None);
        }
        match humantime::parse_duration(&self.max_age) {
            Ok(max_age) if max_age >= MIN_CONTENT_RETENTION => Ok(Some(max_age)),
            _ => Err(format!(
                "ledger.retention.max_age: {:?} is not a duration of at least 1day, such as 400days; empty disables retention",
                self.max_age
            )),
        }
    }

    /// Returns the folder of archives.
    pub fn archive_dir(&self, data_dir: &Path) -> PathBuf {
        if self.archive_dir.as_os_str().is_empty() {
            data_dir.join("archive")
        } else {
            data_dir.join(&self.archive_dir)
        }
    }
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            origin: String::new(),
            interval: MAX_CHECKPOINT_INTERVAL,
            key_file: PathBuf::new(),
            witnesses: Vec::new(),
            required_cosignatures: 0,
        }
    }
}

impl CheckpointConfig {
    /// Returns the origin of the ledger.
    pub fn origin(&self, cluster: &str) -> String {
        if self.origin.is_empty() {
            format!("slurm-mesh.org/ledger/{}", subject::token(cluster))
        } else {
            self.origin.clone()
        }
    }

    /// Returns the witnesses, or `None` if none are configured.
    ///
    /// # Errors
    /// If the address or key of a witness is invalid.
    pub fn witnesses(&self) -> Result<Option<Witnesses>, Error> {
        let all: Result<Vec<Witness>, String> = self.witnesses.iter().map(witness).collect();
        let all = all.map_err(|fault| Error::Config { fault })?;
        match all.is_empty() {
            true => Ok(None),
            false => Witnesses::new(all, self.required_cosignatures).map(Some),
        }
    }

    fn witness_faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self
            .witnesses
            .iter()
            .filter_map(|one| witness(one).err())
            .collect();
        let mut keys: Vec<&str> = self.witnesses.iter().map(|one| one.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        if keys.len() < self.witnesses.len() {
            faults.push("ledger.checkpoint.witnesses: duplicate key".to_owned());
        }
        if self.required_cosignatures > keys.len() {
            faults.push(format!(
                "ledger.checkpoint.required_cosignatures: {} is more than the {} witnesses",
                self.required_cosignatures,
                keys.len()
            ));
        }
        faults
    }

    /// Returns the path of the private key file.
    pub fn key_file(&self, data_dir: &Path) -> PathBuf {
        if self.key_file.as_os_str().is_empty() {
            data_dir.join("ledger-checkpoint.key")
        } else {
            data_dir.join(&self.key_file)
        }
    }
}

fn witness(config: &WitnessConfig) -> Result<Witness, String> {
    let url: url::Url = config.url.parse().map_err(|_| {
        format!(
            "ledger.checkpoint.witnesses: {:?} is not an address such as https://witness.example.org",
            config.url
        )
    })?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(format!(
            "ledger.checkpoint.witnesses: {} is neither http nor https",
            config.url
        ));
    }
    let key = config.key.parse();
    let key = key.map_err(|error| format!("ledger.checkpoint.witnesses: {error}"))?;
    Ok(Witness { url, key })
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: LoginUrl::default(),
            reader_url: LoginUrl::default(),
            readers: 4,
            query_timeout: DEFAULT_QUERY_TIMEOUT,
        }
    }
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// All faults at once, each with its key and the allowed values.
    pub fn validate(&self) -> Result<(), Vec<String>> {
        let mut faults = Vec::new();
        let mut within = |key: &str, value: u64, max: u64| {
            if value == 0 || value > max {
                faults.push(format!("ledger.{key}: {value} is not between 1 and {max}"));
            }
        };
        within("batch_size", self.batch_size as u64, 5000);
        within("max_page_size", self.max_page_size.into(), 10_000);
        within(
            "max_history_events",
            self.max_history_events.into(),
            100_000,
        );
        within("db.readers", self.db.readers.into(), 64);
        let replay = &self.replay;
        within("replay.max_rate", replay.max_rate.into(), 100_000);
        within("replay.rate", replay.rate.into(), replay.max_rate.into());
        within("replay.max_running", replay.max_running.into(), 100);
        let timeout = self.db.query_timeout;
        if timeout < MIN_QUERY_TIMEOUT || timeout > MAX_QUERY_TIMEOUT {
            faults.push(format!(
                "ledger.db.query_timeout: {} is not between 1s and 10min",
                humantime::format_duration(timeout)
            ));
        }
        if replay.retention < MIN_REPLAY_RETENTION || replay.retention > MAX_REPLAY_RETENTION {
            faults.push(format!(
                "ledger.replay.retention: {} is not between 1min and 3days",
                humantime::format_duration(replay.retention)
            ));
        }
        let interval = self.checkpoint.interval;
        if interval < MIN_CHECKPOINT_INTERVAL || interval > MAX_CHECKPOINT_INTERVAL {
            faults.push(format!(
                "ledger.checkpoint.interval: {} is not between 100ms and 10s",
                humantime::format_duration(interval)
            ));
        }
        if let Err(fault) = PrivateKey::new(&self.checkpoint.origin("c"), &[0; 32]) {
            faults.push(format!("ledger.checkpoint.origin: {fault}"));
        }
        faults.extend(self.checkpoint.witness_faults());
        faults.extend(self.location(Path::new("")).err());
        faults.extend(self.reader_location().err());
        faults.extend(self.retention.max_age().err());
        faults.extend(self.retention_location().err());
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }

    /// Returns the database address.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn database(&self, data_dir: &Path) -> Result<Location, Error> {
        self.location(data_dir)
            .map_err(|fault| Error::Config { fault })
    }

    /// Returns the address for reading, if another role is configured for it.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn reader(&self) -> Result<Option<Location>, Error> {
        self.reader_location()
            .map_err(|fault| Error::Config { fault })
    }

    fn location(&self, data_dir: &Path) -> Result<Location, String> {
        if self.db.url.is_empty() {
            return Ok(Location::Sqlite(data_dir.join("ledger.db")));
        }
        Location::parse(&self.db.url, data_dir).map_err(|fault| format!("ledger.db.url: {fault}"))
    }

    /// Returns the address for deleting payloads, if another role is configured for it.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn eraser(&self) -> Result<Option<Location>, Error> {
        self.retention_location()
            .map_err(|fault| Error::Config { fault })
    }

    fn reader_location(&self) -> Result<Option<Location>, String> {
        self.of_role("ledger.db.reader_url", &self.db.reader_url)
    }

    fn retention_location(&self) -> Result<Option<Location>, String> {
        self.of_role("ledger.retention.url", &self.retention.url)
    }

    /// Parses the address of the same database with another role.
    fn of_role(&self, key: &str, url: &str) -> Result<Option<Location>, String> {
        if url.is_empty() {
            return Ok(None);
        }
        match Location::parse(url, Path::new("")) {
            Ok(role @ Location::Postgres(_)) if self.db.url.starts_with("postgres") => {
                Ok(Some(role))
            }
            Ok(_) => Err(format!(
                "{key}: only PostgreSQL has roles; leave it empty, or set ledger.db.url to postgres://…"
            )),
            Err(fault) => Err(format!("{key}: {fault}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let mut file: toml::Table = DEFAULTS.parse().unwrap();
        let section: Config = file.remove("ledger").unwrap().try_into().unwrap();
        assert_eq!(section, Config::default());
        assert!(file.is_empty());
        section.validate().unwrap();
    }

    #[test]
    fn the_database_is_a_file_of_the_data_directory_unless_another_is_named() {
        let config = |url: &str, reader_url: &str| Config {
            db: Database {
                url: url.into(),
                reader_url: reader_url.into(),
                ..Database::default()
            },
            ..Config::default()
        };
        let printed = |config: &Config| config.database(Path::new("/data")).unwrap().to_string();
        assert_eq!(printed(&config("", "")), "/data/ledger.db");
        assert_eq!(printed(&config("sqlite:l.db", "")), "/data/l.db");
        let server = config("postgres://a:x@h/l", "postgres://r:y@h/l");
        assert_eq!(printed(&server), "postgres://h:5432/l");
        assert!(server.reader().unwrap().is_some());
        server.validate().unwrap();
        for wrong in [config("l.db", ""), config("", "postgres://r:y@h/l")] {
            assert_eq!(wrong.validate().unwrap_err().len(), 1);
        }
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        let config = Config {
            batch_size: 0,
            max_page_size: 1_000_000,
            checkpoint: CheckpointConfig {
                origin: "a b".into(),
                interval: Duration::from_secs(11),
                ..CheckpointConfig::default()
            },
            ..Config::default()
        };
        let faults = config.validate().unwrap_err();
        assert_eq!(faults.len(), 4);
        for retention in [
            RetentionConfig {
                max_age: "1h".into(),
                ..RetentionConfig::default()
            },
            RetentionConfig {
                url: "postgres://r@h/l".into(),
                ..RetentionConfig::default()
            },
        ] {
            let config = Config {
                retention,
                ..Config::default()
            };
            assert_eq!(config.validate().unwrap_err().len(), 1);
        }
    }
}
