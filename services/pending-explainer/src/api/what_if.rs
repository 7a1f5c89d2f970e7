//! `POST /v1/queue/{cluster}/{job}/what-if` and `POST /v1/queue/{cluster}/what-if`: when a job may start if its request were different,
//! and when one may start that is not submitted yet. Slurm is not asked.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slurm_types::{ReasonClass, Tres};
use utoipa::ToSchema;

use super::{Loaded, explainer, find, path_params, responses};
use crate::domain::pending_job::PendingJob;
use crate::domain::what_if::{
    MAX_CHANGES, RequestChange, WhatIfEstimate, WhatIfRequest, whole_nodes,
};
use crate::handlers::Explainer;

/// A question about a pending job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangedJobRequest {
    /// What would be different in each.
    variants: Vec<RequestChange>,
}

/// A question about a job that is not submitted yet.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewJobRequest {
    /// What it would ask for. Partition and time limit must be given.
    request: RequestChange,
    /// What would be different in each variant.
    #[serde(default)]
    variants: Vec<RequestChange>,
}

/// When a job may start with the request as it is, and with each variant.
#[derive(Serialize, ToSchema)]
pub(super) struct WhatIfAnswer {
    /// Name of the cluster.
    cluster: String,
    /// Empty for a job that is not submitted yet.
    job: String,
    /// The request as it is.
    request: RequestChange,
    /// When the queue was read from Slurm that the answer is based on.
    queue_as_of: DateTime<Utc>,
    #[serde(flatten)]
    answers: WhatIfEstimate,
    /// What the answer assumes.
    note: &'static str,
}

/// Estimates when a pending job would start if its request were different.
#[utoipa::path(post, operation_id = "estimateChangedJob", path = "/v1/queue/{cluster}/{job}/what-if", tag = "what-if", params(path_params::JobPath), request_body = ChangedJobRequest, responses(
    (status = 200, description = "The estimates", body = WhatIfAnswer), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound), (status = 409, response = responses::Conflict), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn of_job(
    State(loaded): State<Loaded>,
    caller: Caller,
    Path((cluster, job)): Path<(String, String)>,
    body: Bytes,
) -> Result<(Extension<AuditedRead>, Json<WhatIfAnswer>), Problem> {
    let asked: ChangedJobRequest = decoded(&body)?;
    if asked.variants.is_empty() {
        return Err(Problem::bad_request("variants: at least one is needed"));
    }
    let explainer = explainer(&loaded)?;
    let run = find(explainer, &caller, &cluster, &job).await;
    let run = run.filter(|run| run.left_at.is_none()).ok_or_else(|| {
        Problem::not_found(format!(
            "job {job} of yours is not waiting on cluster {cluster}"
        ))
    })?;
    let mut audited_read = AuditedRead::to(&caller);
    audited_read.row(&run.owner.user);
    let snapshot = explainer.snapshot(&cluster);
    let explanation = run.explain(snapshot.view(), Utc::now());
    // A changed request ends neither a hold nor a dependency.
    let stuck = [
        ReasonClass::Held,
        ReasonClass::BeginTime,
        ReasonClass::Dependency,
        ReasonClass::DependencyNeverSatisfied,
        ReasonClass::Failure,
    ];
    if stuck
        .iter()
        .any(|class| class.as_str() == explanation.reason_class)
    {
        return Err(Problem::new(StatusCode::CONFLICT, explanation.summary));
    }
    let subject = WhatIfJob {
        job: run.job,
        user: run.owner.user,
        account: run.owner.account,
        is_submitted: true,
    };
    let note = "Its priority is taken to stay as it is.";
    let answer = answer(explainer, cluster, subject, asked.variants, note).await?;
    Ok((audited_read.extension(), Json(answer)))
}

/// Estimates when a job would start that is not submitted yet.
#[utoipa::path(post, operation_id = "estimateNewJob", path = "/v1/queue/{cluster}/what-if", tag = "what-if", params(path_params::ClusterPath), request_body = NewJobRequest, responses(
    (status = 200, description = "The estimates", body = WhatIfAnswer), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn of_new_job(
    State(loaded): State<Loaded>,
    caller: Caller,
    Path(cluster): Path<String>,
    body: Bytes,
) -> Result<(Extension<AuditedRead>, Json<WhatIfAnswer>), Problem> {
    let asked: NewJobRequest = decoded(&body)?;
    let explainer = explainer(&loaded)?;
    let snapshot = explainer.snapshot(&cluster);
    let request = &asked.request;
    let (Some(partition), Some(_)) = (&request.partition, request.time_limit_minutes) else {
        let text = "request: partition and time_limit_minutes must be given";
        return Err(Problem::bad_request(text));
    };
    let user = caller.users.first().cloned().unwrap_or_default();
    let nodes = request.nodes.unwrap_or(1).max(1);
    let amounts = [request.cpus, request.memory_mib, request.gpus];
    let whole = snapshot
        .evidence
        .as_deref()
        .filter(|_| amounts == [None; 3])
        .and_then(|evidence| whole_nodes(partition, nodes, evidence));
    let mut tres = whole.unwrap_or_else(|| {
        let mut tres = Tres::default();
        tres.set("cpu", u64::from(nodes));
        tres.set("node", u64::from(nodes));
        tres
    });
    tres.set("node", u64::from(nodes));
    let empty = Job {
        run: format!("new/{user}"),
        req_tres: tres.to_string(),
        node_count: nodes,
        ..Job::default()
    };
    let subject = WhatIfJob {
        job: request.apply(&empty),
        account: request.account.clone().unwrap_or_default(),
        user,
        is_submitted: false,
    };
    let note = "It is placed behind all jobs that wait in its partition: its priority is not known. Without CPUs, memory or GPUs it asks for whole nodes.";
    let answer = answer(explainer, cluster, subject, asked.variants, note).await?;
    Ok((AuditedRead::nothing().extension(), Json(answer)))
}

fn decoded<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(error.to_string()))
}

/// The job of a question.
struct WhatIfJob {
    job: Job,
    user: String,
    account: String,
    is_submitted: bool,
}

async fn answer(
    explainer: &Explainer,
    cluster: String,
    subject: WhatIfJob,
    changes: Vec<RequestChange>,
    note: &'static str,
) -> Result<WhatIfAnswer, Problem> {
    if changes.len() > MAX_CHANGES {
        let text = format!("variants: at most {MAX_CHANGES} at a time");
        return Err(Problem::bad_request(text));
    }
    let snapshot = explainer.snapshot(&cluster);
    let (Some(basis), Some(evidence)) = (snapshot.basis.clone(), snapshot.evidence.clone()) else {
        return Err(Problem::unavailable_for(
            "no start has been estimated on this cluster yet",
            60,
        ));
    };
    let permit = Arc::clone(&explainer.what_if).acquire_owned().await;
    let worked = tokio::task::spawn_blocking(move || {
        let question = WhatIfRequest {
            basis: &basis,
            waiting: PendingJob {
                job: &subject.job,
                user: &subject.user,
                account: &subject.account,
                position: None,
                view: snapshot.view(),
                now: Utc::now(),
            },
            evidence: &evidence,
            is_submitted: subject.is_submitted,
        };
        let answers = question.answer(&changes);
        drop(permit);
        WhatIfAnswer {
            cluster,
            request: present_request(&subject),
            job: subject.job.display_id,
            queue_as_of: DateTime::from_timestamp(basis.state.as_of, 0).unwrap_or_default(),
            answers,
            note,
        }
    });
    worked.await.map_err(|error| Problem::internal(&error))
}

/// What the job asks for.
fn present_request(subject: &WhatIfJob) -> RequestChange {
    let job = &subject.job;
    let tres = Tres::parse_lossy(&job.req_tres).0;
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let amount = |amount: u64| Some(amount).filter(|amount| *amount > 0);
    RequestChange {
        time_limit_minutes: job.time_limit_minutes,
        partition: text(&job.partition),
        nodes: u32::try_from(tres.nodes().max(u64::from(job.node_count)).max(1)).ok(),
        cpus: amount(tres.cpus()),
        memory_mib: tres.mem_mib().filter(|mib| *mib > 0),
        gpus: amount(tres.gpus()),
        account: text(&subject.account),
        qos: text(&job.qos),
    }
}
