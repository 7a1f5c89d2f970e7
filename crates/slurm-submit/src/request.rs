//! What the program is asked and answers: one JSON document each.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use slurm_types::JobId;

use crate::{
    Acted, Action, ArrayRecord, Confirmation, FoundJob, Submission, SubmitError, SubmitKey,
};

/// Longest request. Scripts are 4 MiB at most, and a control character is six bytes in JSON.
pub(crate) const MAX_REQUEST_BYTES: u64 = 32 << 20;

/// One request on behalf of a user.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) owner: String,
    pub(crate) verb: Verb,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Verb {
    /// Submits on hold.
    Submit(Box<Submission>),
    /// Submits with a chosen id, by slurmrestd.
    Put {
        submission: Box<Submission>,
        job: JobId,
    },
    Find(SubmitKey),
    Status(JobId),
    /// The records of an array.
    Tasks(JobId),
    Confirm {
        job: JobId,
        key: SubmitKey,
    },
    Release {
        job: JobId,
        key: SubmitKey,
    },
    Cancel {
        job: JobId,
        key: SubmitKey,
    },
    /// The held jobs with one of these keys.
    FindHeld(BTreeSet<SubmitKey>),
    Act {
        job: String,
        action: Action,
    },
    /// Asks whether jobs may be submitted for the user.
    Permits,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Submitted(JobId),
    Found(Vec<FoundJob>),
    Confirmed(Confirmation),
    Tasks(Vec<ArrayRecord>),
    Acted(Acted),
    Permitted,
    Failed(SubmitError),
}
