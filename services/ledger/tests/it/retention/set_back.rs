//! Nothing is archived or erased of a ledger that was restored to an earlier state.

use chrono::{TimeDelta, Utc};
use ledger::Error;
use ledger::adapters::KeyFile;
use ledger::retention::{Retention, RetentionProgress, RetentionRequest, RetentionResult};
use tokio::sync::watch::Sender;

use crate::proof::Ledger;
use crate::support::{Database, on_both};

on_both!(nothing_is_erased_of_a_ledger_with_fewer_entries_than_were_signed);

async fn erase(retention: Retention) -> Result<RetentionResult, Error> {
    let request = RetentionRequest {
        before: Utc::now() + TimeDelta::hours(1),
        folder: None,
        made_by: String::new(),
    };
    let progress = Sender::new(RetentionProgress::default());
    let done = retention.run(&request, &progress).await;
    retention.close().await;
    done
}

async fn nothing_is_erased_of_a_ledger_with_fewer_entries_than_were_signed(database: Database) {
    let mut ledger = Ledger::new(&database).await;
    for count in [30, 10] {
        ledger.append(count).await;
        ledger.checkpointer().await.sign_if_new().await.unwrap();
    }
    ledger.set_back(&database, 30).await;
    let key = KeyFile::new(ledger.key_file());
    let retention =
        |ledger: &Ledger| Retention::new(ledger.store.clone(), &database.location(), key.clone());
    let is_refused = |done: Result<RetentionResult, Error>| {
        let (entries, signed) = (30, 40);
        assert!(
            matches!(&done, Err(Error::NotRetained { entries: found, signed: of }) if (*found, *of) == (entries, signed)),
            "{done:?}"
        );
    };
    // Signed on this host.
    is_refused(erase(retention(&ledger)).await);
    // On another host only the bus says so.
    std::fs::remove_file(ledger.key_file().with_extension("key.last")).unwrap();
    let published = ledger.checkpointer().await;
    is_refused(erase(retention(&ledger).compared_by(published)).await);
    let mut outsider = database.outsider().await;
    let count = "SELECT COUNT(*) FROM payloads";
    assert_eq!(outsider.numbers(count).await, [30]);
    // Neither knows more than the ledger has: it is a ledger like any other.
    assert_eq!(erase(retention(&ledger)).await.unwrap().dropped, 30);
}
