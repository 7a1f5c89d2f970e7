//! Old content is archived or erased. The chain stays valid, nothing is lost on the way, and only
//! permitted roles may do it.

mod archived;
mod due;
mod files;
mod first_key;
mod forged;
mod indexed;
pub mod interrupted;
mod permissions;
mod removed_audit;
mod set_back;

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use ledger::adapters::{ExportReader, KeyFile};
use ledger::checkpointer::Checkpointer;
use ledger::domain::archive::{StoredArchive, file_name};
use ledger::domain::export::ExportVerifier;
use ledger::domain::note::PublicKey;
use ledger::domain::record::Record;
use ledger::domain::verify::VerifiedLedger;
use ledger::retention::{Retention, RetentionProgress, RetentionRequest, RetentionResult};
use ledger::{Error, Store, TrustAnchors, VerifyError, verify_database_with};
use mesh_events::EventType;
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{self, CLUSTER};
use tempfile::TempDir;
use tokio::sync::watch::Sender;

use crate::support::{Database, bus, of_user, record};

/// A ledger whose checkpoints are signed on demand.
struct Ledger {
    database: Database,
    store: Store,
    folder: TempDir,
    _nats: NatsServer,
    checkpointer: Checkpointer,
    jobs: u32,
}

impl Ledger {
    async fn new(database: Database) -> Self {
        let nats = NatsServer::start().await;
        let folder = tempfile::tempdir().unwrap();
        let store = database.store().await;
        let bus = bus(&nats, "admin").await;
        let key = key_file(&folder);
        Self {
            checkpointer: Checkpointer::new(store.clone(), bus, key, "example.org/l", CLUSTER),
            database,
            store,
            folder,
            _nats: nats,
            jobs: 0,
        }
    }

    fn key(&self) -> KeyFile {
        key_file(&self.folder)
    }

    /// Configuration of a process that archives old content, with the key of this ledger.
    fn policy(&self) -> String {
        format!(
            "[ledger.retention]\nmax_age = \"30days\"\narchive_dir = {:?}\n[ledger.checkpoint]\norigin = \"example.org/l\"\ninterval = \"100ms\"\nkey_file = {:?}",
            self.archives(),
            self.key().path(),
        )
    }

    /// Appends events of a user and signs them.
    async fn append(&mut self, user: &str, count: u32) {
        let jobs = self.jobs + 1..=self.jobs + count;
        self.jobs += count;
        let records: Vec<Record> = jobs
            .map(|id| {
                let mut event = of_user(user, EventType::JobSubmitted, fixtures::job(id));
                // Long ago, so that `recorded_at` alone decides.
                let observed = DateTime::from_timestamp(1_763_760_000, 0).unwrap();
                event.observed_at = Some(mesh_events::timestamp(observed));
                record(&event)
            })
            .collect();
        for batch in records.chunks(500) {
            let last = u64::from(self.jobs);
            self.store.append("S", last, batch.to_vec()).await.unwrap();
        }
        self.checkpointer.sign_if_new().await.unwrap();
    }

    fn archives(&self) -> PathBuf {
        self.folder.path().join("archive")
    }

    fn retention(&self) -> Retention {
        Retention::new(self.store.clone(), &self.database.location(), self.key())
    }

    async fn retain(
        &self,
        folder: Option<PathBuf>,
        before: DateTime<Utc>,
    ) -> Result<RetentionResult, Error> {
        let request = RetentionRequest {
            before,
            folder,
            made_by: "root".into(),
        };
        let retention = self.retention();
        let done = retention
            .run(&request, &Sender::new(RetentionProgress::default()))
            .await;
        retention.close().await;
        done
    }

    async fn archive_all(&self) -> Result<RetentionResult, Error> {
        self.retain(Some(self.archives()), Utc::now() + TimeDelta::hours(1))
            .await
    }

    async fn verify(&self, archives: bool) -> Result<VerifiedLedger, VerifyError> {
        let trust = TrustAnchors {
            archives: archives.then(|| self.archives()),
            ..TrustAnchors::default()
        };
        verify_database_with(&self.database.location(), &trust, |_| ()).await
    }

    async fn keys(&self) -> Vec<PublicKey> {
        let keys = self.store.checkpoint_keys().await.unwrap();
        keys.iter().map(|key| key.vkey.parse().unwrap()).collect()
    }

    async fn count(&self, table: &str) -> i64 {
        let mut outsider = self.database.outsider().await;
        let count = format!("SELECT count(*) FROM {table}");
        outsider.numbers(&count).await[0]
    }

    /// Checks that every range is archived once, every payload is in a file or in the database, and
    /// everything verifies.
    async fn is_whole(&self) -> Vec<StoredArchive> {
        let archives = self.store.archives(0).await.unwrap();
        let mut next = 1;
        for archive in &archives {
            assert_eq!(archive.first_seq, next);
            next = archive.last_seq + 1;
            let file = self
                .archives()
                .join(file_name(&archive.file.as_ref().unwrap().path));
            verify_file(&file, &self.keys().await, archive);
        }
        assert_eq!(
            (
                self.verify(true).await.unwrap().count,
                self.verify(true).await.unwrap().archived
            ),
            (u64::from(self.jobs), 0)
        );
        archives
    }
}

fn key_file(folder: &TempDir) -> KeyFile {
    KeyFile::new(folder.path().join("ledger.key"))
}

/// Verifies a file with public keys only.
fn verify_file(path: &Path, keys: &[PublicKey], archive: &StoredArchive) {
    let (mut lines, mut line) = (ExportReader::open(path).unwrap(), Vec::new());
    assert!(lines.next(&mut line).unwrap());
    let mut verifier = ExportVerifier::new(&line, keys, &[]).unwrap();
    assert_eq!(verifier.last(), archive.first_seq - 1);
    while lines.next(&mut line).unwrap() {
        verifier.next(&line).unwrap();
    }
    let verified = verifier.finish().unwrap();
    assert_eq!(verified.count, archive.last_seq.unsigned_abs());
    assert_eq!(verified.archived, 0);
}
