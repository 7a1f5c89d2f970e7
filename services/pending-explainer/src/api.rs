//! `GET /v1/queue` and `GET /v1/queue/{cluster}/{job}`: why jobs are pending now, for callers who may see the job.
//! `POST …/what-if`: when a job may start with another request.
//! `GET /v1/queue/quality`: how often estimated starts were right, for everybody: sums that name nobody.

mod listing;
pub mod openapi;
mod path_params;
mod responses;
mod what_if;

use std::sync::{Arc, OnceLock};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use chrono::{DateTime, Utc};
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::queue::v1::Explanation;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
        .route("/v1/queue/openapi.json", get(openapi::serve))
        .route("/v1/queue/quality", get(quality))
        .route("/v1/queue/{cluster}/{job}", get(one))
        .route("/v1/queue/{cluster}/listing", get(listing::list))
        .route("/v1/queue/{cluster}/what-if", post(what_if::of_new_job))
        .route("/v1/queue/{cluster}/{job}/what-if", post(what_if::of_job))
        .with_state(loaded)
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct QueueQuery {
    /// Only this user's jobs.
    user: Option<String>,
    /// Only this cluster's.
    cluster: Option<String>,
    /// Number of rows, at most 1000. Default: 1000.
    limit: Option<usize>,
}

/// Pending jobs that the caller may see.
#[derive(Serialize, ToSchema)]
struct PendingJobList {
    /// Those that were submitted first.
    jobs: Vec<PendingJobRow>,
    /// How many there are, also those left out by `limit`.
    total: usize,
}

/// A pending job and the short form of its explanation.
#[derive(Serialize, ToSchema)]
struct PendingJobRow {
    /// Cluster of the job.
    cluster: String,
    /// Job id in Slurm's form.
    job: String,
    /// Entity key of the run.
    run: String,
    /// Unix user name of the owner.
    user: String,
    /// Account.
    account: String,
    /// Partition, or several separated by commas.
    partition: String,
    /// Job name.
    name: String,
    /// When it was submitted.
    submitted_at: Option<DateTime<Utc>>,
    /// Class of the reason.
    reason_class: String,
    /// Slurm's pending reason that was recognised.
    reason: String,
    /// Who can resolve it: `wait` (nobody needs to act), `user`, `account coordinator` or `admin`.
    actor: String,
    /// Explanation for the owner.
    summary: String,
    /// Expected start. Absent if Slurm's scheduler has not planned the job.
    expected_start: Option<DateTime<Utc>>,
}

/// A job and why it waits, or what became of it.
#[derive(Serialize, ToSchema)]
struct PendingJobDetail {
    /// Cluster of the job.
    cluster: String,
    /// Job id in Slurm's form.
    job: String,
    /// Entity key of the run. Empty for a job that ran before the mesh did.
    run: String,
    /// Unix user name of the owner.
    user: String,
    /// Account.
    account: String,
    /// Partition, or several separated by commas.
    partition: String,
    /// Job name.
    name: String,
    /// False once it has left the queue. The explanation then says what became of it.
    waiting: bool,
    /// When it left the queue.
    left_at: Option<DateTime<Utc>>,
    /// When it started, if it did.
    started_at: Option<DateTime<Utc>>,
    /// `mesh.queue.v1.Explanation` in JSON.
    #[schema(value_type = Object)]
    explanation: Explanation,
    /// When it may start. Absent if it cannot start by itself, or if too little is known.
    estimate: Option<StartEstimate>,
    /// Waiting jobs that the scheduler looks at first in its partition, by the newest snapshot.
    jobs_ahead: Option<usize>,
    /// When the queue was last read from Slurm.
    queue_as_of: Option<DateTime<Utc>>,
    /// When limits, nodes, reservations and running jobs were last read.
    evidence_as_of: Option<DateTime<Utc>>,
    /// Published explanations, oldest first.
    timeline: Vec<TimelineEntry>,
}

/// The query string, or what is wrong with it.
fn valid<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(error) => Err(Problem::bad_request(error.body_text())),
    }
}

fn explainer(loaded: &Loaded) -> Result<&Explainer, Problem> {
    loaded.get().ok_or_else(|| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the state is not loaded yet: NATS does not answer",
        )
    })
}

/// Lists pending jobs that the caller may see, with short explanations.
#[utoipa::path(get, operation_id = "listPendingJobs", path = "/v1/queue", tag = "queue", params(QueueQuery), responses(
    (status = 200, description = "The jobs", body = PendingJobList), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 503, response = responses::Unavailable),
))]
async fn list(
    State(loaded): State<Loaded>,
    caller: Caller,
    query: Result<Query<QueueQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<PendingJobList>), Problem> {
    let filter = valid(query)?;
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
    Ok((
        audited_read.extension(),
        Json(PendingJobList { jobs, total }),
    ))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct QualityQuery {
    /// Name of the cluster.
    cluster: String,
}

/// Returns how often estimated starts were right. The figures name nobody.
#[utoipa::path(get, operation_id = "getEstimateQuality", path = "/v1/queue/quality", tag = "queue", params(QualityQuery), responses(
    (status = 200, description = "The figures", body = ClusterQuality), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound), (status = 503, response = responses::Unavailable),
))]
async fn quality(
    State(loaded): State<Loaded>,
    _caller: Caller,
    query: Result<Query<QualityQuery>, QueryRejection>,
) -> Result<Json<ClusterQuality>, Problem> {
    let QualityQuery { cluster } = valid(query)?;
    let snapshot = explainer(&loaded)?.snapshot(&cluster);
    let quality = snapshot.quality.ok_or_else(|| {
        Problem::not_found(format!(
            "no start has been estimated on cluster {cluster} yet"
        ))
    })?;
    Ok(Json(ClusterQuality::clone(&quality)))
}

fn may_see(caller: &Caller, cluster: &str, run: &PendingRun) -> bool {
    caller.may_see(cluster, &run.owner.user, &run.owner.account)
}

fn row(cluster: &str, run: &PendingRun, explanation: Explanation) -> PendingJobRow {
    PendingJobRow {
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

/// Explains why a job waits, or what became of it.
#[utoipa::path(get, operation_id = "getPendingJob", path = "/v1/queue/{cluster}/{job}", tag = "queue", params(path_params::JobPath), responses(
    (status = 200, description = "The job", body = PendingJobDetail), (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound), (status = 503, response = responses::Unavailable),
))]
async fn one(
    State(loaded): State<Loaded>,
    caller: Caller,
    Path((cluster, job)): Path<(String, String)>,
) -> Result<(Extension<AuditedRead>, Json<PendingJobDetail>), Problem> {
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
            PendingJobDetail {
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
            PendingJobDetail {
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
