//! Time of a page for each filter, over HTTP, from a ledger with a year of events.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use axum::Extension;
use ledger::api::{Events, router};
use ledger::{Location, Store};
use mesh_runtime::api::{Caller, Role};

use super::database::Kind;
use super::history::{History, JobFacts, Random, subject_of};
use crate::report::{Line, Section, progress};
use crate::stats::Sorted;

/// Queries of each kind.
const QUESTIONS: u32 = 200;
/// A slow kind gets fewer queries.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest number of entries per page.
const LIMIT: u32 = 100;

/// Builds a query about a job of the history, or about something that does not exist.
type QueryUrl = fn(&JobFacts, &mut Random) -> String;

const PATHS: &[(&str, QueryUrl, &str)] = &[
    (
        "cluster",
        |job, _| format!("cluster={}", job.cluster),
        "cluster=delta",
    ),
    (
        "category",
        |_, random| category(random).into(),
        "type=capture.*&cluster=delta",
    ),
    (
        "type",
        |_, random| kind(random).into(),
        "type=job.boot_fail",
    ),
    (
        "job",
        |job, _| format!("cluster={}&job={}", job.cluster, job.id),
        "job=7",
    ),
    (
        "run",
        |job, _| format!("run={}", job.run().entity_key()),
        "run=job/7/7",
    ),
    (
        "array",
        |job, _| format!("array={}", job.id / 100 * 100 + 30),
        "array=7",
    ),
    ("user", |job, _| format!("user={}", job.user), "user=nobody"),
    (
        "identity",
        |job, _| format!("identity={}", subject_of(&job.user)),
        "identity=nobody",
    ),
    (
        "account",
        |job, _| format!("account={}", job.account),
        "account=none",
    ),
    (
        "partition",
        |job, _| format!("partition={}", job.partition),
        "partition=none",
    ),
    (
        "node",
        |_, random| format!("node={}", History::node(random)),
        "node=none",
    ),
    (
        "time",
        between,
        "since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z",
    ),
    (
        "time, open end",
        |job, _| format!("since={}", time(job, 0)),
        "since=2040-01-01T00:00:00Z",
    ),
    ("name", |job, _| format!("name={}", job.name), "name=none"),
    (
        "name*",
        |job, _| format!("name={}*", family(job)),
        "name=none*",
    ),
    (
        "user, type",
        |job, _| format!("user={}&type=job.failed", job.user),
        "user=nobody&type=job.failed",
    ),
    (
        "partition, time",
        |job, random| format!("partition={}&{}", job.partition, between(job, random)),
        "partition=none&since=2020-01-01T00:00:00Z",
    ),
    (
        "account, type, time",
        |job, _| {
            format!(
                "account={}&type=job.out_of_memory&since={}",
                job.account,
                time(job, 0)
            )
        },
        "account=none&type=job.out_of_memory",
    ),
];

fn category(random: &mut Random) -> &'static str {
    [
        "type=job.*",
        "type=cost.*",
        "type=queue.*",
        "type=user.*",
        "type=node.*",
        "type=capture.*",
    ][random.below(6) as usize]
}

fn kind(random: &mut Random) -> &'static str {
    [
        "type=job.started",
        "type=job.failed",
        "type=job.node_fail",
        "type=node.down",
        "type=queue.explained",
    ][random.below(5) as usize]
}

fn family(job: &JobFacts) -> &str {
    job.name
        .split_once('-')
        .map_or(job.name.as_str(), |(family, _)| family)
}

fn time(job: &JobFacts, hours: i64) -> String {
    (job.submitted + chrono::TimeDelta::hours(hours))
        .to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

fn between(job: &JobFacts, random: &mut Random) -> String {
    let hours = 1 + random.below(72).cast_signed();
    format!("since={}&until={}", time(job, 0), time(job, hours))
}

pub async fn measure(kind: Kind, location: &Location, history: History) -> anyhow::Result<Section> {
    let store = Store::open(location, 4).await?;
    let admin = QueryClient::new(&store, Caller::peer("root", 0, Role::Admin)).await?;
    let mut lines = Vec::new();
    let mut random = Random::new(1);
    for (name, ask, _) in PATHS {
        let times = admin
            .ask(history, &mut random, |job, random| {
                page(&ask(job, random), random)
            })
            .await?;
        lines.push(progress(Line::times(format!("by {name}"), &times)));
    }
    let head = store.head().await?.seq;
    let by_seq = |_: &JobFacts, random: &mut Random| {
        page(&format!("from_seq={}", random.below(head) + 1), random)
    };
    lines.push(progress(Line::times(
        "by sequence",
        &admin.ask(history, &mut random, by_seq).await?,
    )));
    let job_history =
        |job: &JobFacts, _: &mut Random| format!("/v1/jobs/{}/{}", job.cluster, job.id);
    lines.push(progress(Line::times(
        "a job's history",
        &admin.ask(history, &mut random, job_history).await?,
    )));
    let node =
        |_: &JobFacts, random: &mut Random| format!("/v1/nodes/alpha/{}", History::node(random));
    lines.push(progress(Line::times(
        "a node's history",
        &admin.ask(history, &mut random, node).await?,
    )));
    let user = QueryClient::new(&store, Caller::peer("user007", 7, Role::User)).await?;
    let all = |_: &JobFacts, random: &mut Random| page("", random);
    lines.push(progress(Line::times(
        "a user's own",
        &user.ask(history, &mut random, all).await?,
    )));
    let coordinator = Caller::peer("user400", 7, Role::User)
        .coordinating("alpha", "account01")
        .coordinating("beta", "account02");
    let coordinator = QueryClient::new(&store, coordinator).await?;
    lines.push(progress(Line::times(
        "a coordinator's",
        &coordinator.ask(history, &mut random, all).await?,
    )));
    for (name, _, nothing) in PATHS {
        let mut times = Vec::new();
        for order in ["asc", "desc"] {
            let url = format!("/v1/events?{nothing}&order={order}");
            let start = Instant::now();
            admin.get(&url).await?;
            times.push(start.elapsed());
        }
        lines.push(progress(Line::times(
            format!("by {name}, nothing there"),
            &Sorted::milliseconds(times),
        )));
    }
    store.close().await;
    Ok(Section {
        title: match kind {
            Kind::Sqlite => "a page of the year, SQLite",
            Kind::Postgres => "a page of the year, PostgreSQL",
        },
        lines,
        notes: vec![format!(
            "{head} events; pages of {LIMIT} from either end; {QUESTIONS} of each over HTTP, JSON included"
        )],
    })
}

/// The first page from either end.
fn page(filter: &str, random: &mut Random) -> String {
    let order = ["asc", "desc"][random.below(2) as usize];
    let mut url = format!("/v1/events?limit={LIMIT}&order={order}");
    if !filter.is_empty() {
        // Writing to a String cannot fail.
        write!(url, "&{filter}").ok();
    }
    url
}

struct QueryClient {
    http: reqwest::Client,
    url: String,
}

impl QueryClient {
    async fn new(store: &Store, caller: Caller) -> anyhow::Result<Self> {
        let api = Arc::new(Events::new(store.clone(), 1_000, 5_000));
        let routes = router(api).layer(Extension(caller));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { http, url })
    }

    /// Times of queries about jobs of the history.
    async fn ask(
        &self,
        history: History,
        random: &mut Random,
        url: impl Fn(&JobFacts, &mut Random) -> String,
    ) -> anyhow::Result<Sorted> {
        let begun = Instant::now();
        let (mut times, mut found) = (Vec::new(), false);
        for _ in 0..QUESTIONS {
            // The last jobs are incomplete.
            let job = history.job(random.below(history.jobs() * 9 / 10));
            let url = url(&job, random);
            let start = Instant::now();
            let answer = self.get(&url).await?;
            times.push(start.elapsed());
            found |= answer.len() > 100;
            if begun.elapsed() > PATIENCE {
                break;
            }
        }
        if !found {
            bail!("nothing was found by any of these");
        }
        Ok(Sorted::milliseconds(times))
    }

    async fn get(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        // A job may have only its submission, and a node no event at all.
        if !status.is_success() && status != 404 {
            bail!("{path}: {status} {text}");
        }
        Ok(text)
    }
}
