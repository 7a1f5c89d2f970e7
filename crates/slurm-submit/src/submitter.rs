//! The services' interface: one process of `trigger-submitter` for each request.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slurm_client::Commands;
use slurm_types::{JobId, JobRef};

use crate::request::{Answer, Request, Verb};
use crate::{
    Acted, Action, ArrayRecord, Confirmation, FoundJob, Submission, SubmitError, SubmitKey,
    classify,
};

const PROGRAM: &str = "trigger-submitter";
/// The program ends by itself: it runs three commands at most, each with its own deadline of 30 s. A process of another user cannot even be
/// killed.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Submissions, releases and look-ups per second.
const REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(100).expect("100 is not 0");

/// How the program is started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder of `trigger-submitter`. Unset: the folder of the running program, or `libexec/slurm-mesh` beside that folder, whichever has it,
    /// else `PATH`.
    pub program_dir: Option<PathBuf>,
    /// Configuration of `trigger-submitter`, for a service that runs as root or submits for its own user only.
    pub program_config: Option<PathBuf>,
}

/// Submits jobs and acts on jobs as their owners. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Submitter {
    commands: Commands,
    config: Option<String>,
}

impl Submitter {
    /// Starts nothing yet.
    pub fn new(config: Config) -> Self {
        let installed = || {
            let dir = std::env::current_exe().ok()?.parent()?.to_owned();
            let libexec = dir.parent()?.join("libexec/slurm-mesh");
            let mut dirs = [dir, libexec].into_iter();
            dirs.find(|dir| dir.join(PROGRAM).is_file())
        };
        let commands = slurm_client::Config {
            bin_dir: config.program_dir.or_else(installed),
            command_timeout: TIMEOUT,
            commands_per_second: REQUESTS_PER_SECOND,
            ..slurm_client::Config::default()
        };
        let path = std::env::var_os("PATH").map(|path| ("PATH".into(), path));
        Self {
            commands: Commands::new(commands, path.into_iter().collect()),
            config: config
                .program_config
                .map(|path| path.to_string_lossy().into_owned()),
        }
    }

    /// Submits a job on hold. It runs only after [`Self::release`].
    ///
    /// # Errors
    /// After [`SubmitError::Unknown`] there may be such a job, now or within the life of a munge credential (300 s by default).
    pub async fn submit(&self, submission: &Submission) -> Result<JobId, SubmitError> {
        submission.validate()?;
        let verb = Verb::Submit(Box::new(submission.clone()));
        match self.ask(&submission.owner, verb).await? {
            Answer::Submitted(job) => Ok(job),
            other => Err(odd(&other)),
        }
    }

    /// Submits a job with a chosen id, by slurmrestd and a token of root or SlurmUser. It starts without a release. The same call may be repeated
    /// after any error and by several processes at once: slurmctld accepts an id once. An id must never be used for two submissions, and a call
    /// must not be repeated later than `MinJobAge` after the first one without [`Self::confirm`], since slurmctld purges ended jobs.
    ///
    /// # Errors
    /// [`SubmitError::Refused`] with 2011: another job has the id.
    pub async fn put(&self, submission: &Submission, job: JobId) -> Result<JobId, SubmitError> {
        submission.validate()?;
        let owner = &submission.owner;
        let submission = Box::new(submission.clone());
        match self.ask(owner, Verb::Put { submission, job }).await? {
            Answer::Submitted(job) => Ok(job),
            other => Err(odd(&other)),
        }
    }

    /// The jobs of a user in the controller's memory that have this key. Every job on hold is there; of a released one the id is recorded,
    /// see [`Self::confirm`].
    ///
    /// # Errors
    /// Without a clear answer of the controller, never an empty list.
    pub async fn find(&self, owner: &str, key: &SubmitKey) -> Result<Vec<FoundJob>, SubmitError> {
        self.found(owner, Verb::Find(key.clone())).await
    }

    /// Checks that a job id still is the job with this key: after a crash of the controller the id may be free, or belong to somebody else.
    ///
    /// # Errors
    /// If the program did not answer. Slurm not answering is [`Confirmation::Unknown`].
    pub async fn confirm(
        &self,
        owner: &str,
        job: JobId,
        key: &SubmitKey,
    ) -> Result<Confirmation, SubmitError> {
        let key = key.clone();
        self.confirmed(owner, Verb::Confirm { job, key }).await
    }

    /// The status of any job of a user: [`Confirmation::OtherKey`] means another user's.
    ///
    /// # Errors
    /// As [`Self::confirm`].
    pub async fn status(&self, owner: &str, job: JobId) -> Result<Confirmation, SubmitError> {
        self.confirmed(owner, Verb::Status(job)).await
    }

    /// The records of an array of a user in the controller's memory. Empty if it has none of this user.
    ///
    /// # Errors
    /// Without a clear answer of the controller, never an empty list.
    pub async fn tasks(&self, owner: &str, array: JobId) -> Result<Vec<ArrayRecord>, SubmitError> {
        match self.ask(owner, Verb::Tasks(array)).await? {
            Answer::Tasks(records) => Ok(records),
            other => Err(odd(&other)),
        }
    }

    /// Releases a job that has this id and this key. Done as well if it is released already.
    ///
    /// # Errors
    /// [`SubmitError::Transient`] and [`SubmitError::Unknown`] may be retried: releasing twice does nothing.
    pub async fn release(
        &self,
        owner: &str,
        job: JobId,
        key: &SubmitKey,
    ) -> Result<Acted, SubmitError> {
        let key = key.clone();
        self.acted(owner, Verb::Release { job, key }).await
    }

    /// Cancels a job that has this id and this key.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn cancel(
        &self,
        owner: &str,
        job: JobId,
        key: &SubmitKey,
    ) -> Result<Acted, SubmitError> {
        let key = key.clone();
        self.acted(owner, Verb::Cancel { job, key }).await
    }

    /// The held jobs of a user that have one of these keys. Those that are not recorded are copies, to be cancelled with [`Self::cancel`]. A copy
    /// may be on its way for as long as a credential lives.
    ///
    /// # Errors
    /// Without a clear answer of the controller, never an empty list.
    pub async fn find_held(
        &self,
        owner: &str,
        keys: BTreeSet<SubmitKey>,
    ) -> Result<Vec<FoundJob>, SubmitError> {
        self.found(owner, Verb::FindHeld(keys)).await
    }

    /// Acts on a job, an array or a task as this user, who must own it.
    ///
    /// # Errors
    /// Refused with Slurm's words, or nothing is known.
    pub async fn act(
        &self,
        owner: &str,
        job: &JobRef,
        action: &Action,
    ) -> Result<Acted, SubmitError> {
        action.validate()?;
        let (job, action) = (job.to_string(), action.clone());
        self.acted(owner, Verb::Act { job, action }).await
    }

    /// Checks that jobs may be submitted for this user: by the program's configuration and rights. Asks nothing of Slurm.
    ///
    /// # Errors
    /// [`SubmitError::Refused`] with the reason if they may not. Otherwise nothing is known.
    pub async fn permits(&self, owner: &str) -> Result<(), SubmitError> {
        match self.ask(owner, Verb::Permits).await? {
            Answer::Permitted => Ok(()),
            other => Err(odd(&other)),
        }
    }

    async fn found(&self, owner: &str, verb: Verb) -> Result<Vec<FoundJob>, SubmitError> {
        match self.ask(owner, verb).await? {
            Answer::Found(jobs) => Ok(jobs),
            other => Err(odd(&other)),
        }
    }

    async fn confirmed(&self, owner: &str, verb: Verb) -> Result<Confirmation, SubmitError> {
        match self.ask(owner, verb).await? {
            Answer::Confirmed(confirmation) => Ok(confirmation),
            other => Err(odd(&other)),
        }
    }

    async fn acted(&self, owner: &str, verb: Verb) -> Result<Acted, SubmitError> {
        match self.ask(owner, verb).await? {
            Answer::Acted(acted) => Ok(acted),
            other => Err(odd(&other)),
        }
    }

    async fn ask(&self, owner: &str, verb: Verb) -> Result<Answer, SubmitError> {
        let request = Request {
            owner: owner.to_owned(),
            verb,
        };
        let request = serde_json::to_vec(&request)
            .map_err(|error| SubmitError::refused(format!("write the request: {error}")))?;
        let arguments: Vec<&str> = match &self.config {
            Some(path) => vec!["--config", path],
            None => Vec::new(),
        };
        let output = self
            .commands
            .run(PROGRAM, &arguments, &BTreeMap::new(), &request)
            .await
            .map_err(|error| classify::no_answer(&error))?;
        match serde_json::from_str(&output.stdout) {
            Ok(Answer::Failed(error)) => Err(error),
            Ok(answer) => Ok(answer),
            Err(_) => {
                let stderr: String = output.stderr.trim().chars().take(400).collect();
                let status = output.status;
                let words =
                    format!("{PROGRAM} ended with status {status} without an answer: {stderr}");
                Err(SubmitError::unknown(words))
            }
        }
    }
}

fn odd(answer: &Answer) -> SubmitError {
    SubmitError::unknown(format!(
        "{PROGRAM} gave the answer to another question: {answer:?}"
    ))
}
