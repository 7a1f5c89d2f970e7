//! Old content is archived or erased. The chain stays valid, nothing is lost on the way, and only
//! permitted roles may do it.

mod forged;
pub mod interrupted;

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use ledger::adapters::{ExportReader, KeyFile};
use ledger::checkpointer::Checkpointer;
use ledger::domain::archive::{StoredArchive, file_name};
use ledger::domain::export::ExportVerifier;
use ledger::domain::note::PublicKey;
use ledger::domain::record::Record;
use ledger::domain::verify::{Fault, VerifiedLedger};
use ledger::retention::{
    Retention, RetentionPlan, RetentionProgress, RetentionRequest, RetentionResult,
};
use ledger::{Error, POSTGRES_ROLES, Store, TrustAnchors, VerifyError, verify_database_with};
use mesh_events::EventType;
use mesh_testkit::fixtures::{self, CLUSTER};
use mesh_testkit::{NatsServer, Postgres, psql};
use tempfile::TempDir;
use tokio::sync::watch::Sender;

use crate::support::{Database, admin, bus, of_user, on_both, record, serve};

on_both!(
    archived_content_leaves_the_database_and_remains_provable,
    erased_content_is_removed_and_the_chain_is_intact,
    an_archive_that_was_changed_is_found,
    content_goes_only_after_its_archive_is_noted,
    destroyed_altered_or_back_dated_content_is_not_signed,
);

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

    /// Returns the files of the database that contain a text. On PostgreSQL after rewriting the
    /// tables, as README.md requires.
    async fn files_with(&self, text: &str) -> Vec<String> {
        if self.database.is_sqlite() {
            let entries = std::fs::read_dir(self.database.folder.path()).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            let has = |path: &PathBuf| {
                let bytes = std::fs::read(path).unwrap();
                bytes
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
            };
            return paths
                .filter(has)
                .map(|path| path.display().to_string())
                .collect();
        }
        let mut outsider = self.database.outsider().await;
        // Not of the tables that all databases of the server share: other tests would wait.
        let own =
            "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND NOT relisshared";
        for table in outsider.texts(own).await {
            outsider.execute(&format!("VACUUM FULL {table}")).await;
        }
        outsider.execute("CHECKPOINT").await;
        let sql = format!(
            "SELECT relname::text FROM pg_class WHERE pg_relation_filepath(oid) IS NOT NULL
             AND position('{text}'::bytea IN pg_read_binary_file(pg_relation_filepath(oid))) > 0"
        );
        outsider.texts(&sql).await
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

async fn archived_content_leaves_the_database_and_remains_provable(database: Database) {
    mesh_runtime::install_crypto_provider();
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 700).await;
    let before = Utc::now();
    // Recorded later, so it stays.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    ledger.append("bob", 50).await;
    let plan = ledger.retention().plan(before).await.unwrap();
    assert_eq!(
        plan,
        RetentionPlan {
            archived_to: 0,
            to: 700
        }
    );
    let done = ledger
        .retain(Some(ledger.archives()), before)
        .await
        .unwrap();
    assert_eq!((done.archives.len(), done.dropped), (1, 700));
    let archive = &ledger.is_whole().await[0];
    assert_eq!((archive.first_seq, archive.last_seq), (1, 700));
    assert_eq!(archive.made_by, "root");
    let keys = ledger.keys().await;
    assert_eq!(archive.signed_by, keys[0].to_string());

    // The database alone has only their hashes, and reports that.
    let verified = ledger.verify(false).await.unwrap();
    assert_eq!((verified.count, verified.archived), (750, 700));
    assert_eq!((verified.signed, verified.unaudited), (750, 1));
    assert_eq!(ledger.count("payloads").await, 50);
    assert_eq!(ledger.count("event_index").await, 50);
    assert_eq!(ledger.count("event_nodes").await, 50);
    assert_eq!(ledger.count("entries").await, 750);
    let url = serve(&ledger.store, admin(), 1000, 1000).await;
    let page = reqwest::get(format!("{url}/v1/events?limit=1000")).await;
    let page: serde_json::Value = page.unwrap().json().await.unwrap();
    assert_eq!(page["entries"][0]["seq"], 701);

    // After reopening, nothing is backfilled, duplicates are still detected, and nothing more is
    // due.
    ledger.store.close().await;
    ledger.store = ledger.database.store().await;
    assert_eq!(ledger.count("event_index").await, 50);
    assert_eq!(ledger.count("event_nodes").await, 50);
    let repeated = record(&of_user("alice", EventType::JobSubmitted, fixtures::job(1)));
    let repeated = ledger.store.append("S", 750, vec![repeated]).await.unwrap();
    assert_eq!(repeated.entries.len(), 0);
    let done = ledger
        .retain(Some(ledger.archives()), before)
        .await
        .unwrap();
    assert_eq!(done, RetentionResult::default());
    assert_eq!(ledger.archive_all().await.unwrap().archives.len(), 1);
    assert_eq!(ledger.is_whole().await.len(), 2);
    assert_eq!(ledger.count("payloads").await, 0);
    let left: Vec<_> = std::fs::read_dir(ledger.archives()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

async fn erased_content_is_removed_and_the_chain_is_intact(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("forget-this-person", 600).await;
    let middle = Utc::now();
    ledger.append("alice", 10).await;
    if !ledger.database.is_sqlite() {
        // As autovacuum does some time after the entries were written.
        ledger.database.outsider().await.execute("ANALYZE").await;
    }
    let written = ledger.files_with("forget-this-person").await;
    assert!(!written.is_empty(), "the files are looked through");
    // Without an archive.
    let done = ledger.retain(None, middle).await.unwrap();
    assert_eq!((done.archives[0].file.is_none(), done.dropped), (true, 600));
    let verified = ledger.verify(false).await.unwrap();
    assert_eq!((verified.count, verified.archived), (610, 600));
    // An archive folder does not bring anything back.
    assert_eq!(ledger.verify(true).await.unwrap().archived, 600);
    let left = ledger.files_with("forget-this-person").await;
    assert!(left.is_empty(), "still have the name: {left:?}");
    ledger.append("bob", 5).await;
    assert_eq!(ledger.verify(false).await.unwrap().archived, 600);
}

async fn an_archive_that_was_changed_is_found(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 200).await;
    ledger.archive_all().await.unwrap();
    let archive = ledger.is_whole().await.remove(0);
    let file = ledger
        .archives()
        .join(file_name(&archive.file.unwrap().path));
    let whole = std::fs::read(&file).unwrap();

    // A truncated end, a flipped bit, a missing file.
    for cut in [whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..cut]).unwrap();
        let found = ledger.verify(true).await.unwrap_err();
        assert!(
            matches!(&found, VerifyError::Invalid(bad) if bad.what == Fault::ArchiveUnreadable),
            "{found:?}"
        );
    }
    for _ in 0..20 {
        let mut flipped = whole.clone();
        // After the header of RFC 1952, which contains an unused time and name.
        let byte = rand::random_range(10..whole.len());
        flipped[byte] ^= 1 << rand::random_range(0..8);
        std::fs::write(&file, &flipped).unwrap();
        let found = ledger.verify(true).await;
        assert!(matches!(found, Err(VerifyError::Invalid(_))), "byte {byte}");
    }
    std::fs::remove_file(&file).unwrap();
    let missing = ledger.verify(true).await.unwrap_err();
    assert!(missing.to_string().contains("read archive"), "{missing}");
    // Other content, compressed correctly: the entry is reported.
    std::fs::write(&file, &whole).unwrap();
    let (mut lines, mut line, mut text) =
        (ExportReader::open(&file).unwrap(), Vec::new(), Vec::new());
    while lines.next(&mut line).unwrap() {
        let line = String::from_utf8(line.clone()).unwrap();
        let other = match line.contains("\"seq\":150,") {
            true => line.replace("\"subject\":\"slurm.", "\"subject\":\"slurn."),
            false => line,
        };
        text.extend(other.into_bytes());
    }
    std::fs::write(&file, &text).unwrap();
    match ledger.verify(true).await {
        Err(VerifyError::Invalid(bad)) => {
            assert_eq!((bad.seq, bad.what), (150, Fault::ContentChanged))
        }
        other => panic!("{other:?}"),
    }
    // Without a folder, the file is compared with its signed hash at its recorded path. A missing
    // file is not reported.
    match ledger.verify(false).await {
        Err(VerifyError::Invalid(bad)) => {
            assert_eq!((bad.seq, bad.what), (200, Fault::ArchiveFileDiffers));
        }
        other => panic!("{other:?}"),
    }
    // The same content compressed differently is another file.
    let mut other = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::copy(
        &mut flate2::read::GzDecoder::new(whole.as_slice()),
        &mut other,
    )
    .unwrap();
    std::fs::write(&file, other.finish().unwrap()).unwrap();
    match ledger.verify(true).await {
        Err(VerifyError::Invalid(bad)) => {
            assert_eq!((bad.seq, bad.what), (200, Fault::ArchiveFileDiffers));
        }
        other => panic!("{other:?}"),
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(ledger.verify(false).await.unwrap().archived, 200);
}

async fn content_goes_only_after_its_archive_is_noted(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 20).await;
    ledger.append("alice", 20).await;
    let mut outsider = ledger.database.outsider().await;
    let bytes = format!("x'{}'", "00".repeat(32));
    let vkey = ledger.store.checkpoint_keys().await.unwrap().remove(0).vkey;
    let note = |number: i64, first: i64, last: i64| {
        format!(
            "INSERT INTO archives (number, first_seq, last_seq, path, sha256, bytes, signed_by, made_at, made_by) VALUES ({number}, {first}, {last}, 'f', {bytes}, 1, '{vkey}', 1, '')"
        )
    };
    for refused in [
        "DELETE FROM payloads WHERE seq = 1",
        "DELETE FROM event_index WHERE seq = 1",
        "DELETE FROM event_nodes WHERE seq = 1",
        // Not from the beginning, not ending at a checkpoint, with a gap before it, empty.
        &note(1, 2, 20),
        &note(1, 1, 19),
        &note(2, 1, 20),
        &note(1, 21, 20),
    ] {
        assert!(outsider.try_execute(refused).await.is_err(), "{refused}");
    }
    outsider.execute(&note(1, 1, 20)).await;
    for refused in [
        "UPDATE archives SET made_by = 'x'",
        "DELETE FROM archives",
        "DELETE FROM payloads WHERE seq = 21",
        "DELETE FROM payloads WHERE seq > 10",
        "DELETE FROM event_index WHERE seq = 21",
        "DELETE FROM event_nodes WHERE seq = 21",
        &note(2, 22, 40),
    ] {
        assert!(outsider.try_execute(refused).await.is_err(), "{refused}");
    }
    for table in ["event_nodes", "event_index"] {
        outsider
            .execute(&format!("DELETE FROM {table} WHERE seq = 3"))
            .await;
    }
    outsider.execute("DELETE FROM payloads WHERE seq = 3").await;
    // The database allows the change to roles that may record ranges. Without the ledger's
    // signature, the deleted content counts as missing.
    match ledger.verify(false).await {
        Err(VerifyError::Invalid(bad)) => {
            assert_eq!((bad.seq, bad.what), (3, Fault::PayloadMissing))
        }
        other => panic!("{other:?}"),
    }
}

async fn destroyed_altered_or_back_dated_content_is_not_signed(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 40).await;
    // Observed now, so it is never due.
    let job = fixtures::job(41);
    let young = record(&of_user("alice", EventType::JobSubmitted, job));
    ledger.store.append("S", 41, vec![young]).await.unwrap();
    ledger.jobs += 1;
    ledger.checkpointer.sign_if_new().await.unwrap();
    let month = Utc::now() - TimeDelta::days(30);
    let hour = Utc::now() + TimeDelta::hours(1);
    let all = "payloads event_index event_nodes";
    let mut outsider = ledger.database.outsider().await;
    for table in all.split(' ') {
        let copy = format!("CREATE TEMP TABLE of_{table} AS SELECT * FROM {table}");
        outsider.execute(&copy).await;
    }
    for (changes, before) in [
        (
            &[
                "DELETE FROM event_nodes WHERE seq <= 40",
                "DELETE FROM event_index WHERE seq <= 40",
                "DELETE FROM payloads WHERE seq <= 40",
            ][..],
            month,
        ),
        (&["UPDATE payloads SET body = x'00' WHERE seq = 17"], hour),
        (
            &[
                "UPDATE payloads SET recorded_at = 1763760000000000",
                "UPDATE event_index SET recorded_at = 1763760000000000, observed_at = 1763760000000000",
            ],
            month,
        ),
    ] {
        let guards = outsider.guards().await;
        outsider.drop_guards().await;
        for sql in changes {
            outsider.execute(sql).await;
        }
        outsider.put_guards(&guards).await;
        ledger.verify(false).await.unwrap_err();
        for folder in [None, Some(ledger.archives())] {
            let refused = ledger.retain(folder, before).await;
            assert!(
                matches!(refused, Err(Error::Corrupt { .. })),
                "{changes:?}: {refused:?}"
            );
        }
        assert_eq!(ledger.count("archives").await, 0);
        outsider.drop_guards().await;
        for table in all.split(' ') {
            outsider.execute(&format!("DELETE FROM {table}")).await;
        }
        for table in all.split(' ') {
            let back = format!("INSERT INTO {table} SELECT * FROM of_{table}");
            outsider.execute(&back).await;
        }
        outsider.put_guards(&guards).await;
        ledger.verify(false).await.unwrap();
    }
    // Only what is old by both times.
    let guards = outsider.guards().await;
    outsider.drop_guards().await;
    for table in ["payloads", "event_index"] {
        let old = format!("UPDATE {table} SET recorded_at = 1763760000000000");
        outsider.execute(&old).await;
    }
    outsider.put_guards(&guards).await;
    let done = ledger.retain(None, month).await.unwrap();
    assert_eq!((done.archives.len(), done.dropped), (1, 40));
    assert_eq!(ledger.verify(false).await.unwrap().archived, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_role_for_it_takes_content_out_and_it_can_do_nothing_else() {
    // Roles belong to the server, so the test uses its own.
    let server = Postgres::start().await;
    let mut ledger = Ledger::new(Database::of(&server)).await;
    ledger.append("alice", 100).await;
    let url = ledger.database.url.clone();
    psql(&url, POSTGRES_ROLES);
    psql(
        &url,
        "CREATE ROLE r_appender LOGIN IN ROLE ledger_appender; CREATE ROLE r_reader LOGIN IN ROLE ledger_reader;
         CREATE ROLE r_retention LOGIN IN ROLE ledger_retention",
    );
    let of = |role: &str| Database {
        folder: tempfile::tempdir().unwrap(),
        url: url.replace("//postgres@", &format!("//{role}@")),
    };
    let request = RetentionRequest {
        before: Utc::now() + TimeDelta::hours(1),
        folder: Some(ledger.archives()),
        made_by: String::new(),
    };
    let progress = Sender::new(RetentionProgress::default());
    for role in ["r_appender", "r_reader"] {
        let location = of(role).location();
        let retention = Retention::new(
            Store::connect(&location, None, 1).unwrap(),
            &location,
            ledger.key(),
        );
        let error = retention.run(&request, &progress).await.unwrap_err();
        assert!(matches!(error, Error::Retain(_)), "{role}: {error:?}");
        let mut outsider = of(role).outsider().await;
        for refused in [
            "DELETE FROM payloads",
            "DELETE FROM event_index",
            "DELETE FROM event_nodes",
            "DELETE FROM archives",
        ] {
            assert!(
                outsider.try_execute(refused).await.is_err(),
                "{role}: {refused}"
            );
        }
    }
    assert_eq!(ledger.count("payloads").await, 100);
    let mut outsider = of("r_retention").outsider().await;
    let partition = format!("payloads_{}", Utc::now().format("%Y_%m"));
    for refused in [
        "DELETE FROM payloads",
        "DELETE FROM event_index",
        "DELETE FROM event_nodes",
        "DELETE FROM entries",
        "UPDATE entries SET leaf = chain",
        "UPDATE payloads SET body = '\\x00'",
        "TRUNCATE payloads",
        "INSERT INTO entries SELECT seq + 1000, 'x', leaf, chain FROM entries",
        "UPDATE head SET seq = 1000",
        "DELETE FROM checkpoints",
        "INSERT INTO checkpoints SELECT number + 1, size, root, note || 'x', made_at FROM checkpoints",
        "DROP TRIGGER payloads_only_archived ON payloads",
        "SET session_replication_role = replica",
        &format!("DELETE FROM {partition}"),
    ] {
        assert!(outsider.try_execute(refused).await.is_err(), "{refused}");
    }
    let location = of("r_retention").location();
    let retention = Retention::new(
        Store::connect(&location, None, 1).unwrap(),
        &location,
        ledger.key(),
    );
    let done = retention.run(&request, &progress).await.unwrap();
    assert_eq!((done.archives.len(), done.dropped), (1, 100));
    assert!(
        outsider
            .try_execute("UPDATE archives SET made_by = 'x'")
            .await
            .is_err()
    );
    assert_eq!(ledger.is_whole().await.len(), 1);
}
