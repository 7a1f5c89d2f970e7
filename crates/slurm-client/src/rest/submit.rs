//! Submits a job.

use serde::Deserialize;
use serde_json::Value;
use slurm_types::JobId;

use super::{Family, Rest, SUBMIT};
use crate::{Config, Error, error::excerpt, json, metrics};

/// The first version whose jobs may name their id and their arguments (older ones refuse or die).
const MIN_VERSION: u32 = 40;

/// Submits jobs by slurmrestd, v0.0.40 or newer.
#[derive(Clone, Debug)]
pub struct SubmitApi(Rest);

/// slurmrestd's answer to a submission. Success is a job id: there are errors and warnings with it, and HTTP 200 without it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmitAnswer {
    /// Id of the job that was accepted.
    pub job_id: Option<JobId>,
    /// Errors: Slurm's number and message.
    pub errors: Vec<(Option<i64>, String)>,
    /// Warnings, among them keys that this version does not know and left out.
    pub warnings: Vec<String>,
}

impl SubmitApi {
    /// Sends nothing yet.
    pub fn new(config: Config) -> Self {
        metrics::describe();
        Self(Rest::new(config))
    }

    /// Submits a job: the value of `job` of slurmrestd's document.
    ///
    /// # Errors
    /// Without an answer of Slurm's. The job may have been accepted.
    pub async fn submit(&self, job: Value) -> Result<SubmitAnswer, Error> {
        let answer = self.0.submit(job).await;
        if let Err(error) = &answer {
            metrics::failed(SUBMIT, error.kind());
        }
        answer
    }
}

impl Rest {
    async fn submit(&self, job: Value) -> Result<SubmitAnswer, Error> {
        let api = self.api().await?;
        let path = api
            .version(Family::Controller)
            .filter(|version| *version >= MIN_VERSION)
            .and_then(|_| api.path(Family::Controller, "job/submit"));
        let Some(path) = path else {
            self.invalidate_api();
            return Err(Error::NotServed {
                command: SUBMIT,
                served: api.served(Family::Controller),
                needed: "v0.0.40 or newer",
            });
        };
        let body = serde_json::json!({ "job": job });
        let reply = self.http.post(SUBMIT, &path, &body).await?;
        let malformed = |problem| Error::Malformed {
            command: SUBMIT,
            problem,
            excerpt: excerpt(&String::from_utf8_lossy(&reply.body)),
        };
        let envelope = json::envelope(&reply.body).map_err(|_| malformed("no document"))?;
        let accepted: Accepted =
            serde_json::from_slice(&reply.body).map_err(|_| malformed("no document"))?;
        let job_id = accepted.job_id.and_then(JobId::new);
        if job_id.is_none() && envelope.errors.is_empty() {
            return Err(malformed("neither a job id nor an error"));
        }
        Ok(SubmitAnswer {
            job_id,
            errors: envelope.errors,
            warnings: envelope.warnings,
        })
    }
}

#[derive(Deserialize)]
struct Accepted {
    job_id: Option<u32>,
}
