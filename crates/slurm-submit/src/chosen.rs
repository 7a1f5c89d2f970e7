//! Submits a job with a chosen id by slurmrestd, with a token of root or SlurmUser.
//!
//! slurmctld accepts an id once and answers 2011 from then on, so the same request may be sent any number of times: after a timeout, by two
//! processes at once, or after a crash that made slurmctld lose the job.

use slurm_client::{Slurm, Source, SubmitAnswer, SubmitApi};
use slurm_types::JobId;

use crate::classify::{self, DUPLICATE_JOB_ID};
use crate::owner::Owner;
use crate::policy::Policy;
use crate::{Confirmation, Submission, SubmitError, document, lookup};

/// Submits, or finds that the job with this id and key is there already.
pub(crate) async fn put(
    policy: &Policy,
    owner: &Owner,
    submission: &Submission,
    id: JobId,
) -> Result<JobId, SubmitError> {
    policy.permits_id(id)?;
    let config = slurm_client::Config {
        source: Source::Rest,
        ..policy.slurm.clone()
    };
    let api = SubmitApi::new(config.clone());
    let answer = api.submit(document::job(submission, id, owner)).await;
    let answer = answer.map_err(|error| classify::not_run(&error))?;
    if answer.job_id == Some(id) {
        return accepted(&answer, id);
    }
    let words: Vec<&str> = answer
        .errors
        .iter()
        .map(|(_, text)| text.as_str())
        .collect();
    let words = words.join("; ");
    let has = |number: u32| {
        answer
            .errors
            .iter()
            .any(|(found, _)| *found == Some(number.into()))
    };
    if !has(DUPLICATE_JOB_ID) {
        let errno = answer.errors.iter().find_map(|(number, _)| *number);
        return Err(classify::words(
            &words,
            errno.and_then(|number| u32::try_from(number).ok()),
        ));
    }
    let slurm = Slurm::new(config);
    match lookup::status(&slurm, owner.uid, id, Some(&submission.key)).await? {
        Confirmation::Present(_) => Ok(id),
        Confirmation::OtherKey => Err(SubmitError::Refused {
            words: format!("job id {id} belongs to another job: choose another one"),
            errno: Some(DUPLICATE_JOB_ID),
        }),
        Confirmation::Absent | Confirmation::Unknown(_) => Err(SubmitError::unknown(words)),
    }
}

/// A key that slurmrestd does not know is left out with a warning: the job would lack a limit.
fn accepted(answer: &SubmitAnswer, id: JobId) -> Result<JobId, SubmitError> {
    let is_unknown_key = |warning: &&String| warning.to_ascii_lowercase().contains("unknown key");
    match answer.warnings.iter().find(is_unknown_key) {
        None => Ok(id),
        Some(warning) => Err(SubmitError::unknown(format!(
            "slurmrestd accepted job {id} without a part of its request: {warning}"
        ))),
    }
}
