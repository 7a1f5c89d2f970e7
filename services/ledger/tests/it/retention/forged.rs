//! An attacker with full database rights deletes content and records it as archived. Nothing in the
//! ledger confirms that.

use ledger::domain::note::PrivateKey;
use ledger::{Error, Fault, VerifyError};
use mesh_testkit::fixtures::CLUSTER;
use mesh_testkit::{NatsServer, wait_until};

use super::Ledger;
use super::interrupted::of_long_ago;
use crate::support::{Database, Process, audit_fact, on_both};

on_both!(
    unsigned_archives_are_neither_published_nor_continued,
    a_range_of_an_earlier_version_counts_if_the_audit_has_it,
    a_key_is_replaced_once_the_audit_has_its_archives,
);

impl Ledger {
    /// Returns the first fault.
    async fn first_bad(&self) -> (i64, Fault) {
        match self.verify(false).await {
            Err(VerifyError::Invalid(bad)) => (bad.seq, bad.what),
            other => panic!("expected a fault, got {other:?}"),
        }
    }

    /// Appends the audit entries of all ranges.
    pub(super) async fn publish_audit(&self) {
        let archives = self.store.archives(0).await.unwrap();
        let found = archives
            .iter()
            .map(|archive| audit_fact(&archive.audit_entry(CLUSTER)));
        self.store.append("A", 1, found.collect()).await.unwrap();
    }
}

async fn unsigned_archives_are_neither_published_nor_continued(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 40).await;
    ledger.append("alice", 20).await;
    of_long_ago(&ledger.database).await;
    let vkey = ledger.keys().await[0].to_string();
    let mut outsider = ledger.database.outsider().await;
    // As the ledger would record it, and even signed, but with the attacker's key.
    let note = format!(
        "INSERT INTO archives (number, first_seq, last_seq, signed_by, made_at, made_by) VALUES (1, 1, 40, '{vkey}', 1, 'root')"
    );
    outsider.execute(&note).await;
    let stored = ledger.store.archives(0).await.unwrap().remove(0);
    let root = ledger.store.checkpoint_of(40).await.unwrap().unwrap().root;
    let range = stored.range(root.try_into().unwrap());
    let foreign = PrivateKey::new("example.org/l", &[9; 32]).unwrap();
    let signed = range.sign(&foreign).unwrap();
    for table in ["event_nodes", "event_index", "payloads"] {
        let destroy = format!("DELETE FROM {table} WHERE seq <= 10");
        outsider.execute(&destroy).await;
    }
    for forged in ["NULL".to_owned(), format!("'{signed}'")] {
        let guards = outsider.guards().await;
        outsider.drop_guards().await;
        outsider
            .execute(&format!("UPDATE archives SET note = {forged}"))
            .await;
        outsider.put_guards(&guards).await;
        assert_eq!(ledger.first_bad().await, (1, Fault::PayloadMissing));
        // Through a manual run.
        let refused = ledger.archive_all().await;
        assert!(
            matches!(
                refused,
                Err(Error::ForgedArchive {
                    first_seq: 1,
                    last_seq: 40
                })
            ),
            "{refused:?}"
        );
        // Through the service, for longer than its interval of publishing audit entries.
        let nats = NatsServer::start().await;
        let mut process = Process::spawn(&nats, &ledger.database.url, &ledger.policy());
        wait_until("it says so", crate::support::DEADLINE, async || {
            process.log().contains("without a signature of this ledger")
        })
        .await;
        tokio::time::sleep(std::time::Duration::from_secs(6)).await;
        let ready = process.request("/readyz").send().await.unwrap();
        let text = ready.text().await.unwrap();
        assert!(text.contains("ledger.retention"), "{text}");
        process.stop().await;
        let found = "entries WHERE id = ".to_owned() + &format!("'{}'", stored.audit_id());
        assert_eq!(ledger.count(&found).await, 0, "the audit has it");
        assert_eq!(ledger.count("payloads WHERE seq <= 40").await, 30);
        assert_eq!(ledger.first_bad().await, (1, Fault::PayloadMissing));
    }
}

async fn a_range_of_an_earlier_version_counts_if_the_audit_has_it(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 20).await;
    ledger.archive_all().await.unwrap();
    assert_eq!(ledger.verify(false).await.unwrap().archived, 20);
    // Earlier versions did not sign ranges.
    let mut outsider = ledger.database.outsider().await;
    let guards = outsider.guards().await;
    outsider.drop_guards().await;
    outsider
        .execute("UPDATE archives SET note = NULL, ids = NULL")
        .await;
    outsider.put_guards(&guards).await;
    assert_eq!(ledger.first_bad().await, (1, Fault::PayloadMissing));
    // It does not count until a checkpoint covers the audit entry.
    ledger.publish_audit().await;
    assert_eq!(ledger.first_bad().await, (1, Fault::PayloadMissing));
    ledger.checkpointer.sign_if_new().await.unwrap();
    let verified = ledger.verify(false).await.unwrap();
    assert_eq!((verified.archived, verified.unaudited), (20, 0));
    // The next ranges are signed.
    ledger.append("alice", 10).await;
    ledger.archive_all().await.unwrap();
    let archives = ledger.store.archives(0).await.unwrap();
    let signed: Vec<bool> = archives
        .iter()
        .map(|archive| archive.note.is_some())
        .collect();
    assert_eq!(signed, [false, true]);
    // The audit entry of the first stays.
    assert_eq!(ledger.verify(false).await.unwrap().archived, 30);
}

async fn a_key_is_replaced_once_the_audit_has_its_archives(database: Database) {
    let mut ledger = Ledger::new(database).await;
    assert!(matches!(
        ledger.checkpointer.rotate("root").await,
        Err(Error::NoKey(_))
    ));
    ledger.append("alice", 20).await;
    ledger.archive_all().await.unwrap();
    let refused = ledger.checkpointer.rotate("root").await;
    assert!(matches!(refused, Err(Error::NoKey(why)) if why.contains("the audit")));
    ledger.checkpointer.sign_if_new().await.unwrap();
    ledger.publish_audit().await;
    ledger.checkpointer.rotate("root").await.unwrap();
    ledger.append("alice", 20).await;
    let done = ledger.archive_all().await.unwrap();
    assert_eq!(done.archives.len(), 1);
    let verified = ledger.verify(false).await.unwrap();
    // The audit entry of the first archive stays.
    assert_eq!((verified.archived, verified.unaudited), (40, 1));
}
