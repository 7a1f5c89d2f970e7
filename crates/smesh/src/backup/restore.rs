//! Restores a backup: streams, buckets, databases, then the consumers at their noted positions.

use std::fs::File;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use ledger::VerifyReport;
use ledger::domain::checkpoint::Checkpoint;
use mesh_bus::Bus;
use mesh_db::Location;
use mesh_runtime::{Context, Service as _, error_chain};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::archive::ExtractedBackup;
use super::create::connect;
use super::databases::{self, Database};
use super::manifest::{BackupPart, Manifest, PartContent};
use super::{Selection, counters, verify};
use crate::error::Error;
use crate::up::data_dir::DataDir;
use crate::up::nats_child::NatsChild;
use crate::up::recover::ensure_stopped;

/// Distance by which counters of events continue. More events than a counter can have had since the backup.
const STRIDE: u64 = 10_000;

/// What a restore will do.
pub struct RestorePlan<'a> {
    context: &'a Context,
    extracted: &'a ExtractedBackup,
    selection: Selection,
    databases: Vec<(&'a BackupPart, Database)>,
    /// Keys and configuration, with their targets.
    files: Vec<(&'a BackupPart, PathBuf)>,
    /// Newest checkpoint that was stored elsewhere.
    checkpoint: Option<String>,
}

impl<'a> RestorePlan<'a> {
    /// Plans a restore to the data directory of `context`. Refuses to overwrite files.
    ///
    /// # Errors
    /// If a file exists, or the backup does not fit the configuration.
    pub fn new(
        context: &'a Context,
        extracted: &'a ExtractedBackup,
        selection: Selection,
        checkpoint: Option<String>,
    ) -> Result<Self, Error> {
        let manifest = &extracted.manifest;
        if manifest.cluster != context.mesh.cluster {
            return Err(Error::Failed(format!(
                "the backup is of cluster {}, the configuration of {}",
                manifest.cluster, context.mesh.cluster
            )));
        }
        let mut databases = Vec::new();
        let mut files = Vec::new();
        let keys = databases::keys(context)?;
        for part in &manifest.parts {
            let name = part.path.rsplit('/').next().unwrap_or_default();
            match &part.content {
                PartContent::Sqlite { service } | PartContent::Postgres { service }
                    if selection.databases =>
                {
                    databases.push((part, database(context, part, service)?));
                }
                // Others are for the operator: paths and passwords may differ on the new host.
                PartContent::Secret | PartContent::Configuration if selection.databases => {
                    let key = keys.iter().find(|(key, _)| *key == name);
                    let restored = || context.mesh.data_dir.join("restored").join(name);
                    let target = key.map_or_else(restored, |(_, path)| path.clone());
                    files.push((part, target));
                }
                _ => {}
            }
        }
        for (_, path) in &files {
            refuse_existing(path)?;
        }
        Ok(Self {
            context,
            extracted,
            selection,
            databases,
            files,
            checkpoint,
        })
    }

    /// The plan, one line per item.
    pub fn lines(&self) -> Vec<String> {
        let manifest = self.manifest();
        let mut lines = vec![format!(
            "backup of cluster {}, made on {} at {} by version {}",
            manifest.cluster, manifest.host, manifest.started_at, manifest.version
        )];
        for (_, database) in &self.databases {
            lines.push(format!("{} → {}", database.service, database.location));
        }
        for (part, path) in &self.files {
            lines.push(format!("{} → {}", part.path, path.display()));
        }
        let nats = match self.context.mesh.nats.url.is_empty() {
            true => format!(
                "the nats-server in {}",
                self.context.mesh.data_dir.display()
            ),
            false => self.context.mesh.nats.redacted_url(),
        };
        if self.selection.streams {
            for (_, stream) in manifest.streams() {
                let messages = stream.messages();
                lines.push(format!("{} ({messages} messages) → {nats}", stream.name));
            }
        }
        lines.push(format!(
            "{} consumers continue at their recorded positions",
            manifest.consumers.len()
        ));
        lines
    }

    fn manifest(&self) -> &Manifest {
        &self.extracted.manifest
    }

    /// Restores and verifies. Returns the verified ledger, if the backup has one.
    ///
    /// # Errors
    /// If something exists already, or cannot be restored.
    pub async fn run(self, bar: &ProgressBar) -> Result<Option<VerifyReport>, Error> {
        let data = DataDir::prepare(&self.context.mesh.data_dir)?;
        for database in databases::configured(self.context)? {
            ensure_stopped(self.context, database.service)?;
        }
        for (_, database) in &self.databases {
            refuse_existing_tables(database).await?;
        }
        let parts = self.manifest().parts.len() + self.manifest().consumers.len();
        bar.set_length(parts as u64);
        let nats = &self.context.mesh.nats;
        let child = match nats.url.is_empty() {
            true => {
                let stores = self.context.health.condition("smesh.nats-server");
                let (cluster, shutdown) = (&self.context.mesh.cluster, &self.context.shutdown);
                Some(NatsChild::start(&data, cluster, nats, None, stores, shutdown).await?)
            }
            false => None,
        };
        let config = match &child {
            Some(child) => child.config("admin"),
            None => Ok(nats.clone()),
        };
        let restored = match config {
            Ok(config) => self.restore(config, bar).await,
            Err(error) => Err(error),
        };
        match child {
            Some(child) => restored.and(child.stop().await)?,
            None => restored?,
        }
        let verified = self.verify().await;
        bar.finish_and_clear();
        verified
    }

    async fn restore(&self, nats: mesh_bus::Config, bar: &ProgressBar) -> Result<(), Error> {
        let failed = |error: mesh_bus::Error| Error::Failed(error_chain(&error));
        let bus = connect(self.context, nats).await?;
        if self.selection.streams {
            for (_, stream) in self.manifest().streams() {
                if !bus
                    .delete_unused_stream(&stream.name)
                    .await
                    .map_err(failed)?
                {
                    return Err(Error::Failed(format!(
                        "stream {} exists and has had messages; nothing is overwritten (--databases restores the databases only)",
                        stream.name
                    )));
                }
            }
            self.streams(&bus, bar).await?;
        }
        for (part, database) in &self.databases {
            bar.set_message(database.service);
            let from = self.extracted.path(part);
            match &database.location {
                Location::Sqlite(path) => place(&from, path)?,
                Location::Postgres(_) => {
                    let restored = mesh_db::backup::restore(&database.url, &from).await;
                    restored.map_err(|error| {
                        Error::Failed(format!("{}: {}", database.location, error_chain(&error)))
                    })?;
                }
            }
            bar.inc(1);
        }
        for (part, path) in &self.files {
            place(&self.extracted.path(part), path)?;
            bar.inc(1);
        }
        self.note_checkpoint()?;
        for position in &self.manifest().consumers {
            bar.set_message(position.name.clone());
            if bus.has_stream(&position.stream).await.map_err(failed)? {
                bus.restore_consumer(position).await.map_err(failed)?;
            }
            bar.inc(1);
        }
        // What the backup does not have, e.g. leases, or streams of a newer version.
        Box::pin(bus.provision()).await.map_err(failed)?;
        bus.close().await;
        Ok(())
    }

    async fn streams(&self, bus: &Bus, bar: &ProgressBar) -> Result<(), Error> {
        let failed = |error: mesh_bus::Error| Error::Failed(error_chain(&error));
        for (part, stream) in self.manifest().streams() {
            bar.set_message(stream.name.clone());
            let path = self.extracted.path(part);
            let file = File::open(&path).map_err(|source| Error::io("open", &path, source))?;
            let restored = Box::pin(bus.restore_stream(stream, file));
            restored.await.map_err(failed)?;
            bar.inc(1);
        }
        for (bucket, paths) in counters() {
            let stream = format!("KV_{bucket}");
            if !self.manifest().streams().any(|(_, one)| one.name == stream) {
                continue;
            }
            let skipped = bus.rewrite_bucket(bucket, |_, value| skip_counters(value, paths));
            Box::pin(skipped).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Tells the ledger what it has signed after the backup, so that it does not sign something else.
    fn note_checkpoint(&self) -> Result<(), Error> {
        match (&self.checkpoint, self.newer_checkpoint()?) {
            (Some(note), true) => databases::ledger_key(self.context)?
                .write_last_note(note)
                .map_err(|error| Error::Failed(error_chain(&error))),
            _ => Ok(()),
        }
    }

    /// Whether the given checkpoint covers more entries than the backup's newest.
    ///
    /// # Errors
    /// If one of them is no checkpoint.
    pub fn newer_checkpoint(&self) -> Result<bool, Error> {
        let size = |note: &Option<String>| match note {
            Some(note) => checkpoint(note).map(|checkpoint| checkpoint.size),
            None => Ok(0),
        };
        Ok(size(&self.checkpoint)? > size(&self.manifest().checkpoint)?)
    }

    async fn verify(&self) -> Result<Option<VerifyReport>, Error> {
        let is_ledger =
            |(_, one): &&(&BackupPart, Database)| one.service == ledger::LedgerService::NAME;
        let Some((_, ledger)) = self.databases.iter().find(is_ledger) else {
            return Ok(None);
        };
        let mut others = Vec::new();
        if let (Some(note), false) = (&self.checkpoint, self.newer_checkpoint()?) {
            others.push(checkpoint(note)?);
        }
        let verified = verify::ledger(&ledger.location, self.manifest(), &others);
        Box::pin(verified).await.map(Some)
    }
}

fn checkpoint(note: &str) -> Result<Checkpoint, Error> {
    Checkpoint::unverified(note)
        .map_err(|error| Error::Failed(format!("not a checkpoint: {}", error_chain(&error))))
}

/// The configured database of a service, of the same kind as in the backup.
fn database(context: &Context, part: &BackupPart, service: &str) -> Result<Database, Error> {
    let configured = databases::configured(context)?.into_iter();
    let mut configured = configured.filter(|one| one.service == service);
    let database = configured
        .next()
        .ok_or_else(|| Error::Failed(format!("{}: unknown service", part.path)))?;
    match (&part.content, &database.location) {
        (PartContent::Sqlite { .. }, Location::Sqlite(path)) => {
            for side in ["", "-wal", "-shm"] {
                refuse_existing(Path::new(&format!("{}{side}", path.display())))?;
            }
            Ok(database)
        }
        (PartContent::Postgres { .. }, Location::Postgres(_)) => Ok(database),
        _ => Err(Error::Failed(format!(
            "{} cannot be restored to {}: SQLite and PostgreSQL are not converted",
            part.path, database.location
        ))),
    }
}

fn refuse_existing(path: &Path) -> Result<(), Error> {
    match path.exists() {
        true => Err(Error::Failed(format!(
            "{} exists; nothing is overwritten: move it away first",
            path.display()
        ))),
        false => Ok(()),
    }
}

async fn refuse_existing_tables(database: &Database) -> Result<(), Error> {
    let Location::Postgres(options) = &database.location else {
        return Ok(());
    };
    let location = &database.location;
    match mesh_db::backup::is_empty(options).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Failed(format!(
            "{location} has tables; nothing is overwritten: name an empty database"
        ))),
        Err(error) => Err(Error::Failed(format!(
            "{location}: {}",
            error_chain(&error)
        ))),
    }
}

/// Copies a file to its path, for its owner only.
fn place(from: &Path, to: &Path) -> Result<(), Error> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).map_err(|source| Error::io("create", folder, source))?;
    }
    // On the same file system this is a rename. Extracted files are private.
    if std::fs::rename(from, to).is_ok() {
        let file = File::open(to).map_err(|source| Error::io("open", to, source))?;
        return file
            .sync_all()
            .map_err(|source| Error::io("write", to, source));
    }
    // On another one, e.g. a volume of its own, without holding it in memory.
    let failed = |source| Error::io("write", to, source);
    let mut source = File::open(from).map_err(|source| Error::io("open", from, source))?;
    let mut target =
        NamedTempFile::new_in(to.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    std::io::copy(&mut source, &mut target).map_err(failed)?;
    target.as_file().sync_all().map_err(failed)?;
    let placed = target.persist(to);
    placed.map(|_| ()).map_err(|error| failed(error.error))
}

/// Adds the stride to the counters of a value. `*` stands for every key of a table, or every element of a list.
fn skip_counters(
    value: &[u8],
    paths: &[&str],
) -> Result<Option<Vec<u8>>, Box<dyn std::error::Error + Send + Sync>> {
    // A deleted key, or a mark.
    if value.first() != Some(&b'{') {
        return Ok(None);
    }
    // One that cannot be read has no counters: its service puts it aside, and counts from the time of the loss.
    let Ok(mut value) = serde_json::from_slice::<Value>(value) else {
        return Ok(None);
    };
    for path in paths {
        let keys: Vec<&str> = path.split('.').collect();
        skip(&mut value, &keys);
    }
    Ok(Some(serde_json::to_vec(&value)?))
}

fn skip(value: &mut Value, path: &[&str]) {
    match (path, value) {
        ([], value) => {
            if let Some(n) = value.as_u64() {
                *value = (n + STRIDE).into();
            }
        }
        (["*", rest @ ..], Value::Object(fields)) => {
            fields.values_mut().for_each(|value| skip(value, rest));
        }
        (["*", rest @ ..], Value::Array(list)) => {
            list.iter_mut().for_each(|value| skip(value, rest));
        }
        ([key, rest @ ..], Value::Object(fields)) => {
            if let Some(value) = fields.get_mut(*key) {
                skip(value, rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_continue_with_a_distance() {
        let [ingest, users] = ingest::COUNTERS;
        let shard = br#"{"version":1,"runs":{"1/5":{"n":[0,1,2],"q":7,"i":9}},"outbox":[]}"#;
        let skipped = skip_counters(shard, ingest).unwrap().unwrap();
        let skipped: Value = serde_json::from_slice(&skipped).unwrap();
        let run = &skipped["runs"]["1/5"];
        assert_eq!(run["n"], serde_json::json!([10_000, 10_001, 10_002]));
        assert_eq!((&run["q"], &run["i"]), (&10_007.into(), &9.into()));
        // After a loss, what is not known is counted from the time of the loss: a second restore may not use these numbers again.
        for (paths, value, path) in [
            (ingest, r#"{"counts_from":1764000000}"#, "counts_from"),
            (users, r#"{"known":{},"seq_from":1764000000}"#, "seq_from"),
            (
                node_watcher::COUNTERS,
                r#"{"seq_from":1764000000}"#,
                "seq_from",
            ),
            (
                pending_explainer::COUNTERS,
                r#"{"next_from":1764000000}"#,
                "next_from",
            ),
        ] {
            let skipped = skip_counters(value.as_bytes(), paths).unwrap().unwrap();
            let skipped: Value = serde_json::from_slice(&skipped).unwrap();
            assert_eq!(skipped[path], 1_764_000_000 + STRIDE, "{value}");
        }
        for unreadable in [&b""[..], b"{not ours", b"{\xff"] {
            assert_eq!(skip_counters(unreadable, ingest).unwrap(), None);
        }
    }

    #[test]
    fn files_are_placed_on_another_file_system() {
        use std::os::unix::fs::MetadataExt as _;
        let (memory, disk) = (
            tempfile::tempdir_in("/dev/shm").unwrap(),
            tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap(),
        );
        let (from, to) = (
            memory.path().join("part"),
            disk.path().join("data/ledger.db"),
        );
        std::fs::write(&from, "entries").unwrap();
        place(&from, &to).unwrap();
        let placed = to.metadata().unwrap();
        assert_ne!(placed.dev(), from.metadata().unwrap().dev());
        assert_eq!(
            (placed.mode() & 0o777, std::fs::read(&to).unwrap()),
            (0o600, b"entries".to_vec())
        );
    }
}
