//! Missing index rows of a large ledger: found in small steps, with visible progress, and resumed
//! after a kill.

use ledger::{BackfillProgress, Store};
use mesh_events::EventType;
use mesh_testkit::{NatsServer, fixtures};
use reqwest::StatusCode;

use crate::support::{Database, Process, of_user, on_both, record};

on_both!(
    missing_rows_are_filled_in_small_steps,
    nothing_is_answered_before_it_is_filled_again_after_a_kill,
);

/// Entries of the large ledger, enough for several steps.
const ENTRIES: u64 = 60_000;
/// Maximum numbers of entries that one step checks and fills.
const ENTRIES_PER_STEP: u64 = 10_000;
const FILLED: u64 = 1000;
const COLUMNS: &str = "cluster, category, type, job_id, array_job_id, task_id, het_job_id, het_offset, run, user_name, subject, email, account, \
     partition, node, name, wait_seconds, cost_micros, currency, occurred_at, observed_at, recorded_at";

/// Fills a ledger with entries that share one body and have no valid chain. Returns their number.
pub async fn fill(database: &Database) -> i64 {
    let store = database.store().await;
    let event = of_user("alice", EventType::JobStarted, fixtures::job(1));
    store.append("S", 1, vec![record(&event)]).await.unwrap();
    store.close().await;
    let mut outsider = database.outsider().await;
    outsider.drop_guards().await;
    for (table, columns, values) in [
        ("entries", "id, leaf, chain", "id || i, leaf, chain"),
        (
            "payloads",
            "recorded_at, cluster, subject, body",
            "recorded_at, cluster, subject, body",
        ),
        ("event_index", COLUMNS, COLUMNS),
    ] {
        let sql = format!(
            "INSERT INTO {table} (seq, {columns})
             WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {ENTRIES})
             SELECT i, {values} FROM n, {table} WHERE seq = 1"
        );
        outsider.execute(&sql).await;
    }
    let head = format!("UPDATE head SET seq = {ENTRIES}");
    outsider.execute(&head).await;
    ENTRIES.cast_signed()
}

pub async fn empty(database: &Database, which: &str) {
    let mut outsider = database.outsider().await;
    outsider.drop_guards().await;
    let sql = format!("DELETE FROM event_index WHERE {which}");
    outsider.execute(&sql).await;
}

/// Returns the number of indexed entries, and of distinct rows.
pub async fn present(database: &Database) -> (i64, i64) {
    let mut outsider = database.outsider().await;
    let all = outsider.numbers("SELECT COUNT(*) FROM event_index").await;
    let sql =
        format!("SELECT COUNT(*) FROM (SELECT DISTINCT {COLUMNS} FROM event_index) AS different");
    (all[0], outsider.numbers(&sql).await[0])
}

async fn opened(database: &Database) -> Store {
    let store = Store::connect(&database.location(), None, 1).unwrap();
    store.prepare().await.unwrap();
    store
}

/// Runs at most `max` steps. Returns the number of steps and of filled entries.
async fn complete(database: &Database, max: u64) -> (u64, u64) {
    let store = opened(database).await;
    let mut progress = store.start_backfill().await.unwrap();
    assert_eq!((progress.at, progress.to), (0, ENTRIES));
    let mut steps = 0;
    while !progress.is_done() && steps < max {
        let BackfillProgress { at, filled, .. } = progress;
        progress = store.backfill_step(progress).await.unwrap();
        steps += 1;
        assert!(progress.at > at && progress.at <= at + ENTRIES_PER_STEP);
        assert!(progress.filled <= filled + FILLED);
    }
    store.close().await;
    (steps, progress.filled)
}

async fn missing_rows_are_filled_in_small_steps(database: Database) {
    fill(&database).await;
    let whole = (ENTRIES.cast_signed(), 1);
    assert_eq!(present(&database).await, whole);
    // Nothing is missing: each step is one statement over a range.
    let steps = ENTRIES / ENTRIES_PER_STEP;
    assert_eq!(complete(&database, u64::MAX).await, (steps, 0));

    empty(&database, "seq > 20000 AND seq <= 32500 OR seq = 55555").await;
    // It stops among the missing rows, so the next run has less to do.
    assert_eq!(complete(&database, 5).await, (5, 3000));
    assert_eq!(present(&database).await, (ENTRIES.cast_signed() - 9501, 1));
    let (steps, filled) = complete(&database, u64::MAX).await;
    assert_eq!(filled, 9501);
    assert!(
        steps <= ENTRIES / ENTRIES_PER_STEP + filled / FILLED + 2,
        "{steps}"
    );
    assert_eq!(present(&database).await, whole);

    // Entries without bodies cannot be filled, but the backfill still ends.
    empty(&database, "seq <= 100").await;
    let mut outsider = database.outsider().await;
    outsider.drop_guards().await;
    outsider
        .execute("DELETE FROM payloads WHERE seq <= 100")
        .await;
    assert_eq!(complete(&database, u64::MAX).await, (6, 0));
}

async fn nothing_is_answered_before_it_is_filled_again_after_a_kill(database: Database) {
    fill(&database).await;
    empty(&database, "TRUE").await;
    let nats = NatsServer::start().await;
    let mut process = Process::spawn(&nats, &database.url, "");
    let filling = async |process: &Process| {
        let Ok(ready) = process.request("/readyz").send().await else {
            return false;
        };
        let Ok(why) = ready.text().await else {
            return false;
        };
        let is_backfill = why.contains("index backfill: entry");
        is_backfill && !why.contains("entry 0 of")
    };
    process.until("reports its progress", filling).await;
    let answer = process.request("/v1/events").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key("retry-after"));
    assert!(answer.text().await.unwrap().contains("/readyz"));

    process.kill();
    let (before, _) = present(&database).await;
    assert!(before > 0 && before < ENTRIES.cast_signed(), "{before}");
    process.restart();
    process
        .until("ready", async |process| {
            process.get("/readyz").await.is_some()
        })
        .await;
    assert_eq!(present(&database).await, (ENTRIES.cast_signed(), 1));
    let page = process.json("/v1/events?limit=5&order=desc").await.unwrap();
    assert_eq!(page["entries"][0]["seq"], ENTRIES);
}
