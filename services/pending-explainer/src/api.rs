//! `GET /v1/queue` and `GET /v1/queue/{cluster}/{job}`: why jobs are pending now, for callers who may see the job.
//! `POST …/what-if`: when a job may start with another request.
//! `GET /v1/queue/quality`: how often estimated starts were right, for everybody: sums that name nobody.

mod listing;
mod what_if;

use std::sync::{Arc, OnceLock};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use chrono::{DateTime, Utc};
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::queue::v1::Explanation;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::{Deserialize, Serialize};

use crate::domain::progress;
use crate::domain::start_estimate::{ClusterQuality, StartEstimate};
use crate::domain::timeline::{PendingRun, TimelineEntry};
use crate::handlers::Explainer;

/// Set once the state is loaded, because the API starts before NATS is available.
pub type Loaded = Arc<OnceLock<Explainer>>;

/// Maximum number of rows in an answer.
const MAX_ROWS: usize = 1_000;

pub(crate) fn router(loaded: Loaded) -> Router {
    Router::new()
        .route("/v1/queue", get(list))
        .route("/v1/queue/quality", get(quality))
        .route("/v1/queue/{cluster}/{job}", get(one))
        .route("/v1/queue/{cluster}/listing", get(listing::list))
        .route("/v1/queue/{cluster}/what-if", post(what_if::of_new_job))
        .route("/v1/queue/{cluster}/{job}/what-if", post(what_if::of_job))
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
    /// False once it has left the queue. The explanation then says what became of it.
    waiting: bool,
    left_at: Option<DateTime<Utc>>,
    /// When it started, if it did.
    started_at: Option<DateTime<Utc>>,
    explanation: Explanation,
    /// When it may start. Absent if it cannot start by itself, or if too little is known.
    estimate: Option<StartEstimate>,
    /// Waiting jobs that the scheduler looks at first in its partition, by the newest snapshot.
    jobs_ahead: Option<usize>,
    /// When the queue was last read from Slurm.
    queue_as_of: Option<DateTime<Utc>>,
    /// When limits, nodes, reservations and running jobs were last read.
    evidence_as_of: Option<DateTime<Utc>>,
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
    let shards: Vec<_> = explainer
        .store
        .shards()
        .await
        .into_iter()
        .filter(|shard| {
            filter
                .cluster
                .as_deref()
                .is_none_or(|cluster| cluster == shard.cluster())
        })
        .collect();
    // Only the rows of the answer are explained, however long the queue is.
    let mut found = Vec::new();
    for (number, shard) in shards.iter().enumerate() {
        shard.read(|runs| {
            let visible = runs.iter().filter(|(_, run)| {
                run.left_at.is_none()
                    && may_see(&caller, shard.cluster(), run)
                    && filter
                        .user
                        .as_deref()
                        .is_none_or(|user| user == run.owner.user)
            });
            found.extend(visible.map(|(key, run)| {
                let submitted = run.job.submit_time.as_ref().and_then(from_timestamp);
                (submitted, key.clone(), number)
            }));
        });
    }
    let total = found.len();
    found.sort();
    found.truncate(filter.limit.unwrap_or(MAX_ROWS).min(MAX_ROWS));
    let mut jobs = Vec::with_capacity(found.len());
    for (_, key, number) in found {
        let shard = &shards[number];
        let snapshot = explainer.snapshot(shard.cluster());
        jobs.extend(shard.read(|runs| {
            let run = runs.get(&key)?;
            Some(row(shard.cluster(), run, run.explain(snapshot.view(), now)))
        }));
    }
    let mut audited_read = AuditedRead::to(&caller);
    for job in &jobs {
        audited_read.row(&job.user);
    }
    Ok((audited_read.extension(), Json(List { jobs, total })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WhichCluster {
    cluster: String,
}

async fn quality(
    State(loaded): State<Loaded>,
    _caller: Caller,
    Query(which): Query<WhichCluster>,
) -> Result<Json<ClusterQuality>, Problem> {
    let snapshot = explainer(&loaded)?.snapshot(&which.cluster);
    let quality = snapshot.quality.ok_or_else(|| {
        let cluster = &which.cluster;
        Problem::not_found(format!(
            "no start has been estimated on cluster {cluster} yet"
        ))
    })?;
    Ok(Json(ClusterQuality::clone(&quality)))
}

fn may_see(caller: &Caller, cluster: &str, run: &PendingRun) -> bool {
    caller.may_see(cluster, &run.owner.user, &run.owner.account)
}

fn row(cluster: &str, run: &PendingRun, explanation: Explanation) -> Row {
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
    let snapshot = explainer.snapshot(&cluster);
    let view = snapshot.view();
    let now = Utc::now();
    let found = find(explainer, &caller, &cluster, &job).await;
    let mut audited_read = AuditedRead::to(&caller);
    let detail = match found {
        Some(run) => {
            audited_read.row(&run.owner.user);
            let position = run.position(view, now);
            let explanation = run.explain(view, now);
            let estimate = view.estimate(&run.job.run, &explanation);
            Detail {
                job: run.job.display_id.clone(),
                run: run.job.run.clone(),
                user: run.owner.user.clone(),
                account: run.owner.account.clone(),
                partition: run.job.partition.clone(),
                name: run.job.name.clone(),
                waiting: run.left_at.is_none(),
                left_at: run.left_at.and_then(|at| DateTime::from_timestamp(at, 0)),
                started_at: run
                    .job
                    .start_time
                    .as_ref()
                    .filter(|_| run.left_at.is_some())
                    .and_then(from_timestamp),
                estimate: estimate.cloned(),
                explanation,
                jobs_ahead: position.map(|position| position.ahead),
                queue_as_of: view.queue.map(|queue| queue.taken_at),
                evidence_as_of: view.evidence.map(|evidence| evidence.taken_at),
                timeline: run.timeline.into(),
                cluster,
            }
        }
        // A job that has never waited here: it ran before the mesh did.
        None => {
            let running = view
                .evidence
                .into_iter()
                .flat_map(|evidence| &evidence.running);
            let mut running = running.filter(|job_row| {
                (job_row.display_id == job || job_row.job_id.to_string() == job)
                    && caller.may_see(&cluster, &job_row.user, &job_row.account)
            });
            // The same answer for "not known" and "not visible": the caller must not learn whether another user's job exists.
            let row = running.next().ok_or_else(|| {
                Problem::not_found(format!(
                    "job {job} of yours is not waiting or running on cluster {cluster}, and has not ended there within the last day"
                ))
            })?;
            audited_read.row(&row.user);
            Detail {
                job: row.display_id.clone(),
                run: String::new(),
                user: row.user.clone(),
                account: row.account.clone(),
                partition: row.partition.clone(),
                name: String::new(),
                waiting: false,
                left_at: None,
                started_at: DateTime::from_timestamp(row.start, 0).filter(|_| row.start > 0),
                explanation: progress::explain_row(row, view, now),
                estimate: None,
                jobs_ahead: None,
                queue_as_of: view.queue.map(|queue| queue.taken_at),
                evidence_as_of: view.evidence.map(|evidence| evidence.taken_at),
                timeline: Vec::new(),
                cluster,
            }
        }
    };
    Ok((audited_read.extension(), Json(detail)))
}

/// The newest run of this id that the caller may see, a waiting one first.
async fn find(
    explainer: &Explainer,
    caller: &Caller,
    cluster: &str,
    job: &str,
) -> Option<PendingRun> {
    let mut found: Option<PendingRun> = None;
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
                .filter(|run| is_called(run, job) && may_see(caller, cluster, run));
            for run in pending_runs {
                if found.as_ref().is_none_or(|best| rank(run) > rank(best)) {
                    found = Some(run.clone());
                }
            }
        });
    }
    found
}

/// True if the id names the run: Slurm's form, the raw id, or the array's id for its remainder.
fn is_called(run: &PendingRun, id: &str) -> bool {
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
fn rank(run: &PendingRun) -> (bool, i64, u64) {
    (
        run.left_at.is_none(),
        run.job.submit_time.as_ref().map_or(0, |time| time.seconds),
        run.seq,
    )
}
