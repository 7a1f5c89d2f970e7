//! Tests of SQLite's query plans. Without ANALYZE statistics a plan does not depend on the number of rows.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use audit_outbox::AuditRow;
use chrono::Utc;
use mesh_db::Location;
use mesh_db::pool::Pool;
use sqlx::{AssertSqlSafe, Row as _, SqlitePool};
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::attempt::cause::Cause;
use crate::store::Store;
use crate::store::delivery::{Attempt, Delivery, State};
use crate::store::delivery_position::DeliveryPosition;
use crate::store::endpoint_rows::EndpointRows;
use crate::store::outbox::Key;
use crate::store::redeliveries::{DeliverySelection, RedeliverRequest, RedeliveryJob};

/// Records every statement that sqlx executes, on any thread.
#[derive(Clone, Default)]
struct Statements(Arc<Mutex<BTreeSet<String>>>);

impl Subscriber for Statements {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for &Statements {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "db.statement" {
            self.0.lock().unwrap().insert(value.trim().to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// Performs all reads and writes of deliveries and of the API.
async fn work(store: &Store) {
    let (endpoint, now) = ("one", Utc::now());
    let names = || vec![endpoint.to_owned()];
    let spec = "{}";
    let files = [(endpoint, spec)].into_iter();
    store.note_files(files, now).await.unwrap();
    let wanted = [(endpoint.to_owned(), 0)].into();
    let epoch = store.take("me", &wanted).await.unwrap()[endpoint];
    let delivery = |id: &str, state, round| Delivery {
        state,
        round,
        pair: (state == State::Waiting).then(|| "pair".to_owned()),
        attempt: Some(Attempt {
            n: 1,
            at: now,
            status: 503,
            latency_ms: 7,
            cause: None,
            error: String::new(),
            snippet: String::new(),
            next_at: None,
        }),
        keep: vec![("key".to_owned(), Some(String::new()))],
        ..Delivery::message(endpoint, id.to_owned(), Vec::new(), now)
    };
    store.knows(endpoint, "event").await.unwrap();
    let waiting = delivery("waiting", State::Waiting, 1);
    store.save(epoch, waiting).await.unwrap();
    let dead = delivery("dead", State::Dead, 0);
    store.save(epoch, dead).await.unwrap();
    let expired = delivery("expired", State::Expired, 0);
    store.save_missed(epoch, expired).await.unwrap();
    let rows = EndpointRows {
        store,
        endpoint,
        epoch,
    };
    rows.missed().await.unwrap();
    let report = delivery("report", State::Waiting, 0);
    store.report_missed(epoch, report).await.unwrap();
    assert!(rows.join_cost("pair", None, &[], now).await.unwrap());
    let pairs = vec!["pair".to_owned()];
    assert_eq!(rows.drop_waiting(pairs, "", now).await.unwrap(), 0);
    let updates = vec![("key".to_owned(), None)];
    rows.store_provider_state(updates, now).await.unwrap();
    rows.provider_states(names()).await.unwrap();
    rows.provider_states_below("digest").await.unwrap();
    rows.due(now, 10).await.unwrap();
    rows.next_due(now).await.unwrap();
    store.load(endpoint, "waiting").await.unwrap();
    store.attempts(endpoint, "waiting").await.unwrap();
    let outcomes = store.outbox(names(), 10).await.unwrap();
    let keys = outcomes.iter().map(Key::of);
    store.mark_published(keys.collect()).await.unwrap();
    store.standings(names()).await.unwrap();
    let wanted = DeliverySelection {
        state: Some(State::Dead),
        kind: Some("job.*".to_owned()),
        cause: Some(Cause::Refused),
        since: Some(now),
        until: Some(now),
    };
    let place = DeliveryPosition {
        created_at: now.timestamp_millis(),
        stream_sequence: 1,
        event_id: "waiting".to_owned(),
    };
    for wanted in [DeliverySelection::default(), wanted] {
        store.recent(endpoint, &wanted, None, 10).await.unwrap();
        store
            .recent(endpoint, &wanted, Some(&place), 10)
            .await
            .unwrap();
    }
    let job = |id: &str, filter| RedeliveryJob {
        id: id.to_owned(),
        webhook: endpoint.to_owned(),
        filter,
        state: "running".to_owned(),
        queued: 0,
        by: String::new(),
        created_at: now,
        updated_at: now,
        cursor: String::new(),
    };
    let all = job(
        "all",
        RedeliverRequest {
            all: true,
            ..RedeliverRequest::default()
        },
    );
    let some = job(
        "some",
        RedeliverRequest {
            ids: names(),
            ..RedeliverRequest::default()
        },
    );
    for job in [all, some] {
        let act = AuditRow {
            id: job.id.clone(),
            cluster: String::new(),
            body: Vec::new(),
        };
        assert!(store.redeliver(&job, 10, act).await.unwrap());
        store.dead_after(&job, 10).await.unwrap();
        let later = RedeliveryJob {
            cursor: place.cursor(),
            ..job.clone()
        };
        store.dead_after(&later, 10).await.unwrap();
        store
            .begin_again(epoch, &job, vec![place.clone()], true, now)
            .await
            .unwrap();
    }
    store.redeliveries(endpoint).await.unwrap();
    store.next_redelivery(endpoint).await.unwrap();
    store.with_redeliveries().await.unwrap();
    let stop = CancellationToken::new();
    rows.end(now, &stop).await.unwrap();
    rows.replan(now).await.unwrap();
    store.correct_future(now, &stop).await.unwrap();
    store.forget(now, &stop).await.unwrap();
    store.erase(endpoint, epoch, &stop).await.unwrap();
}

/// The expected access path of a statement.
fn expected(statement: &str) -> Option<&'static str> {
    let of = |part: &str| statement.contains(part);
    let by_key = "sqlite_autoindex_deliveries_1 (event_id=? AND endpoint=?)";
    Some(match statement {
        _ if of("SET pair = NULL, cost") => "deliveries_pairs (endpoint=? AND pair=?)",
        _ if of("SET state = 'expired'") => "deliveries_pairs (endpoint=? AND pair=?)",
        _ if of("ORDER BY next_at") || of("MIN(next_at)") => {
            "deliveries_due (endpoint=? AND next_at"
        }
        _ if of("announced = 0 AND state <> 'waiting' AND +endpoint") => {
            "SCAN deliveries USING INDEX deliveries_outbox"
        }
        _ if of("SET announced = 1") || of("SELECT n FROM bulk") => by_key,
        _ if of("SET state = 'waiting'") => by_key,
        _ if of("event_id) < (") => "deliveries_states (endpoint=? AND state=? AND created_at",
        _ if of("AS found") => "deliveries_states (endpoint=? AND state=?",
        _ if of("GROUP BY endpoint, state") => "COVERING INDEX deliveries_states",
        _ if of("error <> ''") => "deliveries_errors (endpoint=?)",
        _ if of("announced FROM deliveries") && of("event_id IN") => by_key,
        _ if of("event_id) > (") => "deliveries_states (endpoint=? AND state=? AND created_at",
        _ if of("announced = 1 AND updated_at <") => "deliveries_age (updated_at<?)",
        _ if of("announced = 1 AND updated_at >") => "deliveries_age (updated_at>?)",
        _ if of("SET next_at") => "deliveries_due (endpoint=? AND next_at>",
        _ => return None,
    })
}

#[tokio::test]
async fn no_statement_reads_what_it_does_not_ask_for() {
    let statements = Statements::default();
    tracing::subscriber::set_global_default(statements.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let location = Location::parse("sqlite:plans.db", folder.path()).unwrap();
    let store = Store::open(&location).await.unwrap();
    statements.0.lock().unwrap().clear();
    work(&store).await;
    let Pool::Sqlite(pool) = store.database.readers.clone() else {
        panic!("not a file")
    };
    let about = ["deliveries", "attempts", "kept", "redeliveries"];
    let mut asked = statements.0.lock().unwrap().clone();
    asked.retain(|statement| about.iter().any(|table| statement.contains(table)));
    assert!(asked.len() >= 30, "{} statements were seen", asked.len());
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for statement in &asked {
        let plan = plan(&pool, statement).await;
        if let Some(expected) = expected(statement) {
            seen.insert(expected);
            if !plan.contains(expected) {
                wrong.push(format!("{statement}\nshould use {expected}\n{plan}"));
            }
        }
        // Sorts few rows: redeliveries are few, and the other queries sort no more rows than were requested.
        let few = ["redeliveries", "AS found", "AND event_id IN"];
        let sorts_few = few.iter().any(|part| statement.contains(part));
        let reads_all = ["deliveries", "attempts", "kept"].iter().any(|table| {
            let all = format!("SCAN {table}");
            plan.lines().any(|line| line == all)
        });
        let sorts = plan.contains("USE TEMP B-TREE FOR ORDER BY") && !sorts_few;
        if reads_all || sorts {
            wrong.push(format!("{statement}\nreads or sorts too much\n{plan}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert_eq!(seen.len(), 11, "{seen:?}");
    store.close().await;
}

async fn plan(pool: &SqlitePool, statement: &str) -> String {
    let explained = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
    // Without bound values: plans do not depend on them.
    let rows = sqlx::raw_sql(explained).fetch_all(pool).await.unwrap();
    let lines = rows.iter().map(|row| row.get::<String, _>("detail"));
    lines.collect::<Vec<_>>().join("\n")
}
