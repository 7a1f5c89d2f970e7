//! Compares pages for every filter, time range, visibility and order with a check of every single
//! entry.

use std::collections::BTreeSet;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::EventType;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_runtime::api::AccountsByCluster;
use mesh_testkit::{Postgres, fixtures};

use super::*;
use crate::domain::filter::{NamePattern, Selection, TypeSelector};
use crate::domain::nodes::NodeBlocks;
use crate::domain::query::ListRequest;
use crate::domain::record::{IndexColumns, Record};
use crate::{Location, Store};

/// Limits small enough for a small test ledger to exceed them.
const REACH: ScanLimits = ScanLimits {
    leading_entries: 25,
    max_sorted_entries: 40,
    block_entries: 10,
};
const ENTRIES: i64 = 400;

fn begin() -> DateTime<Utc> {
    DateTime::from_timestamp(1_763_760_000, 0).unwrap()
}

/// Picks one of the texts by a number.
fn pick(n: i64, of: &[&str]) -> Option<String> {
    let at = usize::try_from(n).unwrap() % of.len();
    Some(of[at].to_owned()).filter(|text| !text.is_empty())
}

fn mix(n: i64) -> i64 {
    n * 2_654_435_761 % 65_537
}

/// Nodes of a job: one of eight nodes, some adjacent ones, all, or none.
fn nodes_of(mix: i64) -> Option<(i64, i64)> {
    let first = mix % 8;
    match mix % 5 {
        0 => None,
        1 => Some((0, 7)),
        wide => Some((first, (first + wide - 2).min(7))),
    }
}

fn nodes(mix: i64) -> NodeBlocks {
    let Some((first, last)) = nodes_of(mix) else {
        return NodeBlocks::default();
    };
    let job = Job {
        nodes: format!("n[{first}-{last}]"),
        ..fixtures::job(1)
    };
    NodeBlocks::of(&fixtures::job_event(EventType::JobStarted, job))
}

/// A varied record. Some are late, and some are audit entries.
fn record(n: i64) -> Record {
    let mix = mix(n);
    let late = if mix % 9 == 0 { mix % 200 } else { 0 };
    let occurred_at = begin() + TimeDelta::seconds((n - late) * 10);
    let index = if mix % 11 == 0 {
        IndexColumns {
            category: "audit".into(),
            kind: "audit.read".into(),
            occurred_at,
            ..IndexColumns::default()
        }
    } else {
        IndexColumns {
            category: "job".into(),
            kind: pick(mix / 3, &["job.started", "job.failed", "job.held"]).unwrap(),
            user: pick(mix / 5, &["alice", "bob", "carol", ""]),
            subject: pick(mix / 5, &["a", "b@example.org", "c", ""]),
            email: pick(mix / 7, &["a@example.org", "b@example.org", "", "x"]),
            account: pick(mix / 13, &["physics", "art", ""]),
            partition: pick(mix / 17, &["cpu", "gpu"]),
            name: pick(mix / 19, &["train-1", "train-2", "other", ""]),
            nodes: nodes(mix / 29),
            occurred_at,
            ..IndexColumns::default()
        }
    };
    Record {
        id: format!("{n}"),
        cluster: pick(mix / 23, &["one", "one", "two"]).unwrap(),
        subject: "slurm".into(),
        body: Bytes::from_static(b"x"),
        index,
    }
}

/// Independent implementation of the selection.
fn is_meant(record: &Record, seq: i64, asked: &Selection, visibility: &Visibility) -> bool {
    let index = &record.index;
    let is = |value: &Option<String>, filter_value: &Option<String>| {
        filter_value.is_none() || value == filter_value
    };
    let seen = match visibility {
        Visibility::All => true,
        Visibility::Restricted { users, accounts } => {
            let own = index.user.as_ref().is_some_and(|user| users.contains(user));
            let of = |(cluster, names): (&Option<String>, &BTreeSet<String>)| {
                cluster
                    .as_ref()
                    .is_none_or(|cluster| *cluster == record.cluster)
                    && index
                        .account
                        .as_ref()
                        .is_some_and(|name| names.contains(name))
            };
            own || accounts.iter().any(of)
        }
    };
    let of_type = |pattern: &TypeSelector| match pattern {
        TypeSelector::Category(category) => *category == index.category,
        TypeSelector::Exactly(kind) => *kind == index.kind,
    };
    let named = match &asked.name {
        None => true,
        Some(NamePattern::Exactly(name)) => index.name.as_ref() == Some(name),
        Some(NamePattern::Prefix(prefix)) => index
            .name
            .as_ref()
            .is_some_and(|name| name.starts_with(prefix)),
    };
    let on_node = |node: &String| {
        let asked: i64 = node.trim_start_matches('n').parse().unwrap();
        let of = nodes_of(mix(seq) / 29);
        index.category != "audit" && of.is_some_and(|(first, last)| (first..=last).contains(&asked))
    };
    let time = index.occurred_at.timestamp_micros();
    let person = asked.identity.is_none()
        || index.subject == asked.identity
        || index.email == asked.identity;
    seen && named
        && person
        && match asked.types.as_slice() {
            [] => index.category != "audit",
            types => types.iter().any(of_type),
        }
        && is(&Some(record.cluster.clone()), &asked.cluster)
        && is(&index.user, &asked.user)
        && is(&index.account, &asked.account)
        && is(&index.partition, &asked.partition)
        && asked.node.as_ref().is_none_or(on_node)
        && asked.since.is_none_or(|since| time >= since)
        && asked.until.is_none_or(|until| time < until)
        && asked.from_seq.is_none_or(|from| seq >= from)
        && asked.to_seq.is_none_or(|to| seq <= to)
}

fn selections() -> Vec<Selection> {
    let text = |text: &str| Some(text.to_owned());
    let exactly = |kind: &str| TypeSelector::Exactly(kind.into());
    let none = Selection::default;
    let filters = [
        none(),
        Selection {
            cluster: text("two"),
            ..none()
        },
        Selection {
            cluster: text("three"),
            ..none()
        },
        Selection {
            types: vec![exactly("job.held")],
            ..none()
        },
        Selection {
            types: vec![exactly("job.held"), exactly("audit.read")],
            ..none()
        },
        Selection {
            types: vec![TypeSelector::Category("job".into())],
            cluster: text("one"),
            ..none()
        },
        Selection {
            user: text("alice"),
            ..none()
        },
        Selection {
            identity: text("b@example.org"),
            ..none()
        },
        Selection {
            identity: text("c"),
            ..none()
        },
        Selection {
            identity: text("nobody"),
            ..none()
        },
        Selection {
            account: text("art"),
            types: vec![exactly("job.failed")],
            ..none()
        },
        Selection {
            partition: text("gpu"),
            ..none()
        },
        Selection {
            name: Some(NamePattern::Prefix("train".into())),
            ..none()
        },
        Selection {
            name: Some(NamePattern::Exactly("other".into())),
            ..none()
        },
        Selection {
            from_seq: Some(200),
            ..none()
        },
        Selection {
            node: text("n0"),
            ..none()
        },
        Selection {
            node: text("n5"),
            from_seq: Some(100),
            to_seq: Some(350),
            ..none()
        },
        Selection {
            node: text("n99"),
            ..none()
        },
        Selection {
            node: text("n3"),
            name: Some(NamePattern::Prefix("train".into())),
            types: vec![exactly("job.held"), exactly("audit.read")],
            ..none()
        },
        Selection {
            node: text("n6"),
            name: Some(NamePattern::Exactly("other".into())),
            ..none()
        },
        Selection {
            node: text("n7"),
            user: text("bob"),
            identity: text("b@example.org"),
            ..none()
        },
    ];
    let at = |n: i64| Some((begin() + TimeDelta::seconds(n * 10)).timestamp_micros());
    let times = [
        (None, None),
        (at(300), None),
        (None, at(100)),
        (at(150), at(170)),
        (at(50), at(350)),
        (at(9_000), None),
    ];
    let timed = filters.iter().flat_map(|filter| {
        times.map(|(since, until)| Selection {
            since,
            until,
            ..filter.clone()
        })
    });
    timed.collect()
}

fn sights() -> [Visibility; 3] {
    let alice = BTreeSet::from(["alice".to_owned()]);
    let accounts = [
        (Some("one".to_owned()), BTreeSet::from(["art".to_owned()])),
        (None, BTreeSet::from(["physics".to_owned()])),
    ];
    [
        Visibility::All,
        Visibility::Restricted {
            users: alice.clone(),
            accounts: AccountsByCluster::new(),
        },
        Visibility::Restricted {
            users: alice,
            accounts: accounts.into(),
        },
    ]
}

async fn pages_equal_a_full_scan(location: &Location) {
    let store = Store::open(location, 1).await.unwrap();
    let records: Vec<Record> = (1..=ENTRIES).map(record).collect();
    store.append("S", 1, records.clone()).await.unwrap();
    for selection in selections() {
        for visibility in sights() {
            for descending in [false, true] {
                let request = ListRequest {
                    limit: Some(60),
                    descending,
                    ..ListRequest::default()
                };
                let mut query = request.check(begin(), 100).unwrap();
                query.selection = selection.clone();
                let mut listed = Vec::new();
                loop {
                    let mut rows = store.list_by(&query, &visibility, REACH).await.unwrap();
                    let more = rows.len() > 60;
                    rows.truncate(60);
                    listed.extend(rows.iter().map(|row| row.seq));
                    if !more {
                        break;
                    }
                    query.after = listed.last().copied();
                }
                let every = (1..).zip(&records);
                let meant =
                    every.filter(|(seq, record)| is_meant(record, *seq, &selection, &visibility));
                let mut meant: Vec<i64> = meant.map(|(seq, _)| seq).collect();
                if descending {
                    meant.reverse();
                }
                assert_eq!(
                    listed, meant,
                    "{selection:?} {visibility:?} descending: {descending}"
                );
                if descending {
                    continue;
                }
                // Replays read a part of the same entries, in the same order.
                let replayed = store.recorded(&selection, &visibility, 90, 310, 20).await;
                let replayed: Vec<i64> = replayed.unwrap().iter().map(|entry| entry.seq).collect();
                meant.retain(|seq| (91..=310).contains(seq));
                meant.truncate(21);
                assert_eq!(replayed, meant, "{selection:?} {visibility:?}");
            }
        }
    }
    store.close().await;
}

/// Also if the block ranges were summarized for the previous page.
#[tokio::test]
async fn entries_appended_between_two_pages_are_on_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Sqlite(folder.path().join("ledger.db"));
    let store = Store::open(&location, 1).await.unwrap();
    let records = (1..=ENTRIES).map(record).collect();
    store.append("S", 1, records).await.unwrap();
    let at = |n: i64| Some((begin() + TimeDelta::seconds(n * 10)).timestamp_micros());
    let mut query = ListRequest {
        limit: Some(60),
        ..ListRequest::default()
    }
    .check(begin(), 100)
    .unwrap();
    (query.selection.since, query.selection.until) = (at(100), at(250));
    let page = async |query: &Query| -> Vec<i64> {
        let rows = store.list_by(query, &Visibility::All, REACH).await;
        rows.unwrap().iter().map(|row| row.seq).collect()
    };
    let first = page(&query).await;
    assert_eq!(first.len(), 61);
    let late = Record {
        id: "late".into(),
        index: IndexColumns {
            occurred_at: begin() + TimeDelta::seconds(2_000),
            ..record(2).index
        },
        ..record(2)
    };
    store.append("S", 2, vec![late]).await.unwrap();
    let mut found = first[..60].to_vec();
    while let Some(last) = found.last().copied() {
        query.after = Some(last);
        let next = page(&query).await;
        if next.is_empty() {
            break;
        }
        found.extend(next.into_iter().take(60));
    }
    assert_eq!(found.last(), Some(&(ENTRIES + 1)));
    store.close().await;
}

#[tokio::test]
async fn a_ledger_that_opens_knows_when_its_entries_occurred() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Sqlite(folder.path().join("ledger.db"));
    let store = Store::open(&location, 1).await.unwrap();
    let records = (1..=ENTRIES).map(record).collect();
    store.append("S", 1, records).await.unwrap();
    store.close().await;
    let store = Store::open(&location, 1).await.unwrap();
    assert_eq!(store.block_ranges.covered_to(), ENTRIES);
    let whole = SequenceRange {
        from: Some(1),
        to: Some(ENTRIES),
    };
    assert_eq!(store.block_ranges.spans(&Selection::default()), [whole]);
    store.close().await;
}

#[tokio::test]
async fn pages_of_a_file_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Sqlite(folder.path().join("ledger.db"));
    pages_equal_a_full_scan(&location).await;
}

#[tokio::test]
async fn pages_of_a_server_are_right() {
    let url = Postgres::shared().await.create_database();
    let location = Location::parse(&url, "".as_ref()).unwrap();
    pages_equal_a_full_scan(&location).await;
}
