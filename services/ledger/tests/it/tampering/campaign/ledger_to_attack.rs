//! A small ledger with everything: two keys, checkpoints, subtrees, an archive file, erased ranges,
//! and their audit entries, most of them in a range that is erased as well.

use std::path::PathBuf;

use chrono::{TimeDelta, Utc};
use ledger::adapters::{KeyFile, SignedCheckpoint};
use ledger::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use ledger::domain::keys::{StoredKey, audit_entries};
use ledger::retention::{Retention, RetentionProgress, RetentionRequest};
use ledger::{Location, Store, TrustAnchors, UnverifiedLedger};
use ledger_format::merkle::Frontier;
use mesh_events::EventType;
use mesh_testkit::fixtures::{self, CLUSTER};
use tokio::sync::watch::Sender;

use crate::proof::ORIGIN;
use crate::support::{Database, audit_fact, record};
use crate::tampering::{Victim, key};

/// Number of entries. Few have content, because each verification reads all of them.
pub const COUNT: i64 = 269;
/// First entry with content, after the first stored subtree and all archived ranges. It is the
/// audit entry of the last one.
pub const FIRST: i64 = 262;
/// Size at which the second key takes over.
pub const HANDED_OVER: i64 = 260;
/// The audit entries of the first two archives and of the second key.
pub const PERMANENT: [i64; 3] = [257, 258, 261];
/// First entry of the jobs at the end, and size of the last checkpoint but one.
pub const JOBS: i64 = 263;
pub const LAST_BUT_ONE: i64 = 265;
/// Number of checkpoints and of archives.
pub const CHECKPOINTS: i64 = 6;
pub const ARCHIVES: i64 = 3;

struct Growing {
    store: Store,
    tree: Frontier,
    keys: Vec<StoredKey>,
    checkpoints: Vec<StoredCheckpoint>,
}

impl Growing {
    async fn jobs(&self, count: i64) {
        let head = self.store.head().await.unwrap().seq;
        let jobs = head + 1..=head + count.unsigned_abs();
        let records = jobs.map(|id| {
            let job = fixtures::job(id.try_into().unwrap());
            record(&fixtures::job_event(EventType::JobSubmitted, job))
        });
        self.store
            .append("S", head + 1, records.collect())
            .await
            .unwrap();
    }

    async fn sign(&mut self, keys: &[u8], new: Option<StoredKey>) {
        let size = self.store.head().await.unwrap().seq;
        let subtrees = self.store.grow(&mut self.tree, size).await.unwrap();
        let checkpoint = Checkpoint {
            origin: ORIGIN.into(),
            size,
            root: self.tree.root(),
        };
        let keys: Vec<_> = keys.iter().map(|seed| key(*seed)).collect();
        let stored = StoredCheckpoint {
            number: self.checkpoints.len() as i64 + 1,
            size: size.cast_signed(),
            root: checkpoint.root.to_vec(),
            note: checkpoint.sign(&keys.iter().collect::<Vec<_>>()).unwrap(),
            made_at: 1,
        };
        self.keys.extend(new.clone());
        self.checkpoints.push(stored.clone());
        let signed = SignedCheckpoint {
            subtrees,
            key: new,
            checkpoint: Some(stored),
            ..SignedCheckpoint::default()
        };
        assert!(self.store.store_checkpoint(&signed).await.unwrap());
    }

    async fn retain(&self, database: &Database, erase: bool, seed: u8) {
        let file = KeyFile::new(database.folder.path().join("ledger.key"));
        file.write_next(&key(seed)).unwrap();
        file.use_next().unwrap();
        let retention = Retention::new(self.store.clone(), &database.location(), file);
        let request = RetentionRequest {
            before: Utc::now() + TimeDelta::hours(1),
            folder: (!erase).then(|| database.folder.path().join("archive")),
            made_by: "root".into(),
        };
        let progress = Sender::new(RetentionProgress::default());
        let done = retention.run(&request, &progress).await.unwrap();
        assert_eq!(done.archives.len(), 1);
        retention.close().await;
    }
}

fn stored_key(number: i64, from_size: i64) -> StoredKey {
    StoredKey {
        number,
        vkey: key(number.try_into().unwrap()).public().to_string(),
        from_size,
        made_at: 1_763_760_000_000_000,
        made_by: if number > 1 { "root" } else { "" }.into(),
    }
}

impl Victim {
    /// Creates a ledger to be attacked repeatedly, on PostgreSQL with the extension amcheck or without.
    pub async fn with_everything(database: Database, amcheck: bool) -> Self {
        let mut ledger = Growing {
            store: database.store().await,
            tree: Frontier::default(),
            keys: Vec::new(),
            checkpoints: Vec::new(),
        };
        ledger.jobs(4).await;
        ledger.sign(&[1], Some(stored_key(1, 0))).await;
        ledger.retain(&database, false, 1).await;
        ledger.jobs(252).await;
        ledger.sign(&[1], None).await;
        ledger.retain(&database, true, 1).await;
        let archives = ledger.store.archives(0).await.unwrap();
        let found = archives
            .iter()
            .map(|one| audit_fact(&one.audit_entry(CLUSTER)));
        ledger.store.append("A", 1, found.collect()).await.unwrap();
        ledger.jobs(2).await;
        ledger.sign(&[1, 2], Some(stored_key(2, HANDED_OVER))).await;
        let found = audit_entries(&ledger.keys, CLUSTER);
        let found = found.iter().map(audit_fact).collect();
        ledger.store.append("A", 2, found).await.unwrap();
        ledger.sign(&[2], None).await;
        ledger.retain(&database, true, 2).await;
        assert_eq!(ledger.store.permanent_entries().await.unwrap(), PERMANENT);
        let edge = ledger.tree.clone();
        let found = ledger.store.archives(2).await.unwrap();
        let found = audit_fact(&found[0].audit_entry(CLUSTER));
        ledger.store.append("A", 3, vec![found]).await.unwrap();
        ledger.jobs(3).await;
        ledger.sign(&[2], None).await;
        ledger.jobs(4).await;
        ledger.sign(&[2], None).await;
        assert_eq!(ledger.store.head().await.unwrap().seq, COUNT.unsigned_abs());
        ledger.store.close().await;

        let file = archives[0].file.clone().unwrap();
        let bytes = std::fs::read(&file.path).unwrap();
        let newest = ledger.checkpoints.last().unwrap();
        let newest = Checkpoint::unverified(&newest.note).unwrap();
        let mut victim = Self::attacked(
            database,
            TrustAnchors {
                newest: Some(newest),
                ..TrustAnchors::default()
            },
        )
        .await;
        victim.edge = edge;
        victim.archive = Some((file.path.into(), bytes));
        victim.published = ledger.checkpoints.into_iter().map(|one| one.note).collect();
        if victim.database.is_sqlite() {
            let path = victim.database.folder.path().join("ledger.db");
            victim.pristine = Some(std::fs::read(path).unwrap());
            victim.undo().await;
        } else if amcheck {
            victim.outsider.execute("CREATE EXTENSION amcheck").await;
        }
        victim.verify().await.unwrap();
        victim
    }

    /// Restores the original: a file as a whole, tables row by row.
    pub async fn undo(&mut self) {
        self.done.clear();
        if let Some((path, bytes)) = &self.archive {
            std::fs::write(path, bytes).unwrap();
        }
        if let Some(pristine) = &self.pristine {
            // Under another name, because the former file may still be open.
            let former = self.path();
            self.copies += 1;
            self.database.url = format!(
                "sqlite:{}/{}.db",
                self.database.folder.path().display(),
                self.copies
            );
            std::fs::write(self.path(), pristine).unwrap();
            self.outsider = self.database.outsider().await;
            for suffix in ["db", "db-wal", "db-shm"] {
                drop(std::fs::remove_file(former.with_extension(suffix)));
            }
            self.outsider.execute("PRAGMA synchronous = OFF").await;
            self.outsider
                .execute("PRAGMA ignore_check_constraints = ON")
                .await;
            self.guarded = true;
            self.ledger = UnverifiedLedger::open(&self.database.location()).unwrap();
            return;
        }
        let undo = std::mem::take(&mut self.undo);
        if !undo.is_empty() {
            // Open connections may have prepared statements for the manipulated tables.
            self.ledger = UnverifiedLedger::open(&self.database.location()).unwrap();
        }
        for sql in undo {
            self.outsider.execute(&sql).await;
        }
        self.restore().await;
    }

    fn path(&self) -> PathBuf {
        match self.database.location() {
            Location::Sqlite(path) => path,
            Location::Postgres(_) => unreachable!("a file"),
        }
    }
}
