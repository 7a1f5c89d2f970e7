//! Makes a backup while everything runs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use cost_engine::PriceBook;
use indicatif::ProgressBar;
use ledger::Store;
use mesh_bus::{Bus, ConsumerPosition};
use mesh_db::Location;
use mesh_events::catalogue::STREAMS;
use mesh_runtime::{Context, Service as _, error_chain};
use serde::{Deserialize, Serialize};
use tempfile::{NamedTempFile, TempDir};

use super::archive::ArchiveWriter;
use super::databases::{self, Database};
use super::manifest::{FORMAT, Manifest, PartContent};
use super::{Selection, streams_after_databases, streams_before_databases};
use crate::error::Error;
use crate::up::data_dir::{private, write_private};
use crate::up::nats_child;

/// Time limit for connecting to NATS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Note of the last backup in the data directory, for `smesh doctor`.
const LAST_BACKUP: &str = "last-backup.json";

/// The last complete backup.
#[derive(Debug, Serialize, Deserialize)]
pub struct LastBackup {
    /// Begin of the backup.
    pub at: DateTime<Utc>,
    /// Where it was written to.
    pub target: String,
}

impl LastBackup {
    /// Reads the note of the last backup of a data directory.
    pub fn read(data_dir: &Path) -> Option<Self> {
        let text = std::fs::read(private(data_dir, LAST_BACKUP)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// Where a backup is written to.
pub enum BackupTarget {
    /// Standard output.
    Stdout,
    /// A folder.
    Folder(PathBuf),
}

/// Makes a backup. Returns its file, if it is one, and its manifest.
///
/// # Errors
/// If a part cannot be read or written. No file is left behind then.
pub async fn create(
    context: &Context,
    target: &BackupTarget,
    selection: Selection,
    secrets: bool,
    bar: &ProgressBar,
) -> Result<(Option<PathBuf>, Manifest), Error> {
    let started_at = Utc::now();
    let databases = databases::configured(context)?;
    let (spool, file) = match target {
        BackupTarget::Stdout => (
            tempfile::tempdir()
                .map_err(|source| Error::io("create a folder in", "TMPDIR", source))?,
            None,
        ),
        BackupTarget::Folder(folder) => {
            let failed = |source| Error::io("write to", folder, source);
            std::fs::create_dir_all(folder).map_err(failed)?;
            let file = NamedTempFile::new_in(folder).map_err(failed)?;
            (
                TempDir::new_in(folder).map_err(failed)?,
                Some((folder, file)),
            )
        }
    };
    let (name, writer): (PathBuf, Box<dyn Write + Send>) = match &file {
        None => ("standard output".into(), Box::new(std::io::stdout())),
        Some((folder, file)) => {
            let failed = |source| Error::io("write to", folder, source);
            let cluster = mesh_events::subject::token(&context.mesh.cluster);
            let name = format!(
                "slurm-mesh-{cluster}-{}.tar",
                started_at.format("%Y%m%dT%H%M%SZ")
            );
            (folder.join(name), Box::new(file.reopen().map_err(failed)?))
        }
    };
    let bus = administrator(context).await?;
    let mut backup = Backup {
        context,
        spool,
        archive: ArchiveWriter::new(writer, &name),
        bus,
        bar,
    };
    let (mut consumers, mut checkpoint) = (Vec::new(), None);
    let (before, after) = (streams_before_databases(), streams_after_databases());
    let parts = before.len() + after.len() + databases.len() + 2;
    bar.set_length(parts as u64);
    // Also without streams: the databases are useless without the positions.
    for stream in STREAMS {
        let positions = backup.bus.consumer_positions(stream.name).await;
        consumers.extend(positions.map_err(|error| Error::Failed(error_chain(&error)))?);
    }
    if selection.streams {
        backup.streams(&before).await?;
    }
    if selection.databases {
        checkpoint = newest_checkpoint(&databases).await?;
        for database in &databases {
            backup.database(database).await?;
        }
    }
    if selection.streams {
        backup.streams(&after).await?;
    }
    backup.configuration()?;
    if secrets {
        backup.secrets()?;
    }
    backup.bus.close().await;
    let mut manifest = manifest(context, started_at, consumers, checkpoint);
    backup.archive.finish(&mut manifest)?;
    drop(backup.spool);
    let path = file.map(|(_, file)| publish(file, &name)).transpose()?;
    note(context, started_at, &name);
    bar.finish_and_clear();
    Ok((path, manifest))
}

/// Connects to NATS as its administrator.
///
/// # Errors
/// If NATS does not answer, or the credentials are not here.
pub async fn administrator(context: &Context) -> Result<Bus, Error> {
    let config = match context.mesh.nats.url.is_empty() {
        true => nats_child::administrator(&context.mesh.data_dir).map_err(|error| {
            Error::Failed(format!("{}: is `smesh up` running?", error_chain(&error)))
        })?,
        false => context.mesh.nats.clone(),
    };
    connect(context, config).await
}

/// Connects to NATS without declaring anything.
pub(super) async fn connect(context: &Context, config: mesh_bus::Config) -> Result<Bus, Error> {
    let config = mesh_bus::Config {
        provision: false,
        ..config
    };
    let bus = Bus::connect(&config, "admin").await?;
    match tokio::time::timeout(CONNECT_TIMEOUT, bus.ready(&context.shutdown)).await {
        Ok(ready) => ready?,
        Err(_) => {
            let problem = bus
                .problem()
                .unwrap_or_else(|| "it does not answer".to_owned());
            return Err(Error::Failed(format!(
                "NATS at {}: {problem}",
                config.redacted_url()
            )));
        }
    }
    Ok(bus)
}

fn manifest(
    context: &Context,
    started_at: DateTime<Utc>,
    consumers: Vec<ConsumerPosition>,
    checkpoint: Option<String>,
) -> Manifest {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    Manifest {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster: context.mesh.cluster.clone(),
        host,
        started_at,
        ended_at: Utc::now(),
        consumers,
        checkpoint,
        parts: Vec::new(),
    }
}

/// The newest checkpoint, from before the ledger is copied: the copy has it.
async fn newest_checkpoint(databases: &[Database]) -> Result<Option<String>, Error> {
    let failed = |error: ledger::Error| Error::Failed(error_chain(&error));
    let is_ledger = |one: &&Database| one.service == ledger::LedgerService::NAME;
    let Some(ledger) = databases.iter().find(is_ledger) else {
        return Ok(None);
    };
    if matches!(&ledger.location, Location::Sqlite(path) if !path.exists()) {
        return Ok(None);
    }
    let store = Store::connect(&ledger.location, None, 1).map_err(failed)?;
    let newest = store.last_checkpoint().await;
    store.close().await;
    Ok(newest.map_err(failed)?.map(|newest| newest.note))
}

fn publish(file: NamedTempFile, name: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::io("write", name, source);
    file.as_file().sync_all().map_err(failed)?;
    file.persist_noclobber(name)
        .map_err(|error| failed(error.error))?;
    Ok(name.to_owned())
}

/// Notes a complete backup. Its absence is only a warning of `smesh doctor`.
fn note(context: &Context, at: DateTime<Utc>, target: &Path) {
    let last = LastBackup {
        at,
        target: target.display().to_string(),
    };
    let path = private(&context.mesh.data_dir, LAST_BACKUP);
    let written = serde_json::to_vec(&last).map(|text| write_private(&path, &text, None));
    if let Ok(Err(error)) = written {
        tracing::debug!(error = error_chain(&error), "note the backup");
    }
}

struct Backup<'a> {
    context: &'a Context,
    /// Holds one part at a time.
    spool: TempDir,
    archive: ArchiveWriter<Box<dyn Write + Send>>,
    bus: Bus,
    bar: &'a ProgressBar,
}

impl Backup<'_> {
    async fn streams(&mut self, names: &[String]) -> Result<(), Error> {
        for name in names {
            let mut file = tempfile::tempfile_in(self.spool.path())
                .map_err(|source| Error::io("write to", self.spool.path(), source))?;
            self.bar.set_message(name.clone());
            let snapshot = self
                .bus
                .snapshot_stream(name, |chunk| file.write_all(chunk));
            let snapshot = Box::pin(snapshot).await;
            let snapshot = snapshot.map_err(|error| Error::Failed(error_chain(&error)))?;
            if let Some(snapshot) = snapshot {
                let path = format!("streams/{name}.snapshot");
                self.archive
                    .add(path, PartContent::Stream(snapshot), &mut file)?;
            }
            self.bar.inc(1);
        }
        Ok(())
    }

    async fn database(&mut self, database: &Database) -> Result<(), Error> {
        let service = database.service;
        self.bar.set_message(service);
        let copy = self.spool.path().join(service);
        let (name, content, copied) = match &database.location {
            Location::Sqlite(path) if !path.exists() => {
                self.bar.inc(1);
                return Ok(());
            }
            Location::Sqlite(path) => (
                format!("databases/{service}.db"),
                PartContent::Sqlite {
                    service: service.to_owned(),
                },
                mesh_db::backup::copy_file(path, &copy).await,
            ),
            Location::Postgres(_) => (
                format!("databases/{service}.pgdump"),
                PartContent::Postgres {
                    service: service.to_owned(),
                },
                mesh_db::backup::dump(&database.url, &copy).await,
            ),
        };
        copied.map_err(|error| {
            let error = error_chain(&error);
            Error::Failed(format!("copy {}: {error}", database.location))
        })?;
        let mut file = File::open(&copy).map_err(|source| Error::io("open", &copy, source))?;
        self.archive.add(name, content, &mut file)?;
        std::fs::remove_file(&copy).map_err(|source| Error::io("remove", &copy, source))?;
        self.bar.inc(1);
        Ok(())
    }

    fn configuration(&mut self) -> Result<(), Error> {
        #[derive(Deserialize)]
        struct Section {
            price_book: PathBuf,
        }
        let section: Section = self.context.section(cost_engine::CostEngineService::NAME)?;
        let book = section.price_book;
        if !book.as_os_str().is_empty() {
            let book = self.context.relative(&book);
            self.file(
                "configuration/price-book.toml",
                PartContent::Configuration,
                &book,
            )?;
            // A faulty book is backed up as it is.
            let series = PriceBook::load(&book).map(|book| book.series_files);
            for path in series.unwrap_or_default() {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let name = format!("configuration/{name}");
                self.file(&name, PartContent::Configuration, &path)?;
            }
        }
        if let Some(map) = self.context.mesh.identity_map.clone() {
            self.file(
                "configuration/identity.toml",
                PartContent::Configuration,
                &map,
            )?;
        }
        self.bar.inc(1);
        Ok(())
    }

    fn secrets(&mut self) -> Result<(), Error> {
        for (name, path) in databases::keys(self.context)? {
            self.file(&format!("secrets/{name}"), PartContent::Secret, &path)?;
        }
        let config = PathBuf::from(self.context.config_file());
        self.file("secrets/mesh.toml", PartContent::Secret, &config)?;
        self.bar.inc(1);
        Ok(())
    }

    /// Appends a file, if it exists.
    fn file(&mut self, name: &str, content: PartContent, path: &Path) -> Result<(), Error> {
        match File::open(path) {
            Ok(mut file) => self.archive.add(name.to_owned(), content, &mut file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(Error::io("open", path, source)),
        }
    }
}
