//! `GET /v1/queue` and `GET /v1/queue/{cluster}/{job}`: why jobs are pending now, for callers who may see the job.

use std::sync::{Arc, OnceLock, PoisonError};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Extension, Json, Router};
use chrono::{DateTime, Utc};
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::queue::v1::Explanation;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::{Deserialize, Serialize};

use crate::domain::timeline::{Run, TimelineEntry};
use crate::handlers::Explainer;

/// Set once the state is loaded, because the API starts before NATS is available.
pub type Loaded = Arc<OnceLock<Explainer>>;

/// Maximum number of rows in an answer.
const MAX_ROWS: usize = 1_000;

pub(crate) fn router(loaded: Loaded) -> Router {
    Router::new()
        .route("/v1/queue", get(list))
        .route("/v1/queue/{cluster}/{job}", get(one))
        .with_state(loaded)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Only this user's jobs.
    user: Option<String>,
    /// Only this cluster's.
    cluster: Option<String>,
    /// Most rows.
    limit: Option<usize>,
}

#[derive(Serialize)]
struct List {
    jobs: Vec<Row>,
    /// How many there are, also those left out by `limit`.
    total: usize,
}

#[derive(Serialize)]
struct Row {
    cluster: String,
    job: String,
    run: String,
    user: String,
    account: String,
    partition: String,
    name: String,
    submitted_at: Option<DateTime<Utc>>,
    reason_class: String,
    reason: String,
    actor: String,
    summary: String,
    expected_start: Option<DateTime<Utc>>,
}

#[derive(Serialize)]
struct Detail {
    cluster: String,
    job: String,
    run: String,
    user: String,
    account: String,
    partition: String,
    name: String,
    /// False once it has left the queue: the explanation is then the last one.
    waiting: bool,
    left_at: Option<DateTime<Utc>>,
    explanation: Explanation,
    /// Waiting jobs of higher priority in its partition, by the newest snapshot.
    jobs_ahead: Option<usize>,
    /// When that snapshot was taken.
    queue_as_of: Option<DateTime<Utc>>,
    timeline: Vec<TimelineEntry>,
}

fn explainer(loaded: &Loaded) -> Result<&Explainer, Problem> {
    loaded.get().ok_or_else(|| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the state is not loaded yet: NATS does not answer",
        )
    })
}

async fn list(
    State(loaded): State<Loaded>,
    caller: Caller,
    Query(filter): Query<Filter>,
) -> Result<(Extension<AuditedRead>, Json<List>), Problem> {
    let explainer = explainer(&loaded)?;
    let now = Utc::now();
    let mut jobs = Vec::new();
    for shard in explainer.store.shards().await {
        if filter
            .cluster
            .as_deref()
            .is_some_and(|cluster| cluster != shard.cluster())
        {
            continue;
        }
        let queue = explainer
            .queues
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(shard.cluster())
            .cloned();
        shard.read(|runs| {
            let visible = runs
                .iter()
                .filter(|(_, run)| run.left_at.is_none() && may_see(&caller, shard.cluster(), run));
            for (key, run) in visible.filter(|(_, run)| {
                filter
                    .user
                    .as_deref()
                    .is_none_or(|user| user == run.owner.user)
            }) {
                let explanation =
                    run.explain(queue.as_deref().and_then(|queue| queue.place(key)), now);
                jobs.push(row(shard.cluster(), run, explanation));
            }
        });
    }
    let total = jobs.len();
    jobs.sort_by(|a, b| (a.submitted_at, &a.run).cmp(&(b.submitted_at, &b.run)));
    jobs.truncate(filter.limit.unwrap_or(MAX_ROWS).min(MAX_ROWS));
    let mut audited_read = AuditedRead::to(&caller);
    for job in &jobs {
        audited_read.row(&job.user);
    }
    Ok((audited_read.extension(), Json(List { jobs, total })))
}

fn may_see(caller: &Caller, cluster: &str, run: &Run) -> bool {
    caller.may_see(cluster, &run.owner.user, &run.owner.account)
}

fn row(cluster: &str, run: &Run, explanation: Explanation) -> Row {
    Row {
        cluster: cluster.to_owned(),
        job: run.job.display_id.clone(),
        run: run.job.run.clone(),
        user: run.owner.user.clone(),
        account: run.owner.account.clone(),
        partition: run.job.partition.clone(),
        name: run.job.name.clone(),
        submitted_at: run.job.submit_time.as_ref().and_then(from_timestamp),
        expected_start: explanation.expected_start.as_ref().and_then(from_timestamp),
        reason_class: explanation.reason_class,
        reason: explanation.reason,
        actor: explanation.actor,
        summary: explanation.summary,
    }
}

async fn one(
    State(loaded): State<Loaded>,
    caller: Caller,
    Path((cluster, job)): Path<(String, String)>,
) -> Result<(Extension<AuditedRead>, Json<Detail>), Problem> {
    let explainer = explainer(&loaded)?;
    let queue = explainer
        .queues
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&cluster)
        .cloned();
    let mut found: Option<Run> = None;
    for shard in explainer
        .store
        .shards()
        .await
        .iter()
        .filter(|shard| shard.cluster() == cluster)
    {
        shard.read(|runs| {
            let pending_runs = runs
                .values()
                .filter(|run| is_called(run, &job) && may_see(&caller, &cluster, run));
            for run in pending_runs {
                if found.as_ref().is_none_or(|best| rank(run) > rank(best)) {
                    found = Some(run.clone());
                }
            }
        });
    }
    // The same answer for "not pending" and "not visible": the caller must not learn whether another user's job is pending.
    let run = found.ok_or_else(|| {
        Problem::not_found(format!(
            "no pending job {job} on cluster {cluster}, or you may not see it"
        ))
    })?;
    let place = queue.as_deref().and_then(|queue| queue.place(&run.job.run));
    let mut audited_read = AuditedRead::to(&caller);
    audited_read.row(&run.owner.user);
    let detail = Detail {
        cluster,
        job: run.job.display_id.clone(),
        run: run.job.run.clone(),
        user: run.owner.user.clone(),
        account: run.owner.account.clone(),
        partition: run.job.partition.clone(),
        name: run.job.name.clone(),
        waiting: run.left_at.is_none(),
        left_at: run.left_at.and_then(|at| DateTime::from_timestamp(at, 0)),
        explanation: run.explain(place, Utc::now()),
        jobs_ahead: place.map(|place| place.ahead),
        queue_as_of: place.map(|place| place.taken_at),
        timeline: run.timeline.into(),
    };
    Ok((audited_read.extension(), Json(detail)))
}

/// True if the id names the run: Slurm's form, the raw id, or the array's id for its remainder.
fn is_called(run: &Run, id: &str) -> bool {
    let remainder = run
        .job
        .array
        .as_ref()
        .filter(|array| array.task_id.is_none());
    run.job.display_id == id
        || run.job.job_id.to_string() == id
        || remainder.is_some_and(|array| array.job_id.to_string() == id)
}

/// Orders pending runs before those that left, and later submissions before earlier ones.
fn rank(run: &Run) -> (bool, i64, u64) {
    (
        run.left_at.is_none(),
        run.job.submit_time.as_ref().map_or(0, |time| time.seconds),
        run.seq,
    )
}
