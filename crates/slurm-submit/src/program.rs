//! `trigger-submitter`: one request on standard input, one answer on standard output.
//!
//! It becomes the owner before it runs anything. What it runs is Slurm's commands with arguments that it makes from a validated request, with
//! the owner's variables and none of its caller's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use slurm_client::{Commands, Slurm};
use slurm_types::{JobId, JobRef};
use tokio::runtime::Runtime;

use crate::action::Action;
use crate::owner::Owner;
use crate::policy::Policy;
use crate::request::{Answer, MAX_REQUEST_BYTES, Request, Verb};
use crate::{
    Acted, Confirmation, FoundJob, Submission, SubmitError, SubmitKey, arguments, chosen, classify,
    lookup,
};

pub use crate::policy::{CONFIG_PATH, Policy as Configuration};

/// Arguments of the program.
#[derive(Debug, clap::Parser)]
#[command(
    name = "trigger-submitter",
    version,
    about = "Submits one job to Slurm, or acts on one, as its owner. Reads a request from standard input."
)]
pub struct Arguments {
    /// Another configuration than /etc/slurm-mesh/trigger-submitter.toml; for root, or without any privilege
    #[arg(long)]
    pub config: Option<PathBuf>,
}

/// Reads a request, does it, and prints the answer.
///
/// # Errors
/// If there is no request, or the answer cannot be printed.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut text = String::new();
    io::stdin()
        .take(MAX_REQUEST_BYTES)
        .read_to_string(&mut text)?;
    let request: Request = serde_json::from_str(&text)?;
    let answer = answer(arguments, &request).unwrap_or_else(Answer::Failed);
    let mut line = serde_json::to_string(&answer)?;
    line.push('\n');
    Ok(io::stdout().write_all(line.as_bytes())?)
}

fn answer(arguments: &Arguments, request: &Request) -> Result<Answer, SubmitError> {
    validate(request)?;
    let policy = Policy::load(arguments.config.as_deref())
        .map_err(|error| SubmitError::transient(format!("read trigger-submitter.toml: {error}")))?;
    let owner = Owner::resolve(&request.owner).ok_or_else(|| {
        let name = request.owner.escape_debug();
        SubmitError::refused(format!("user {name}: no such user on this host"))
    })?;
    if let Verb::Put { submission, job } = &request.verb {
        // By the token of root or SlurmUser: slurmctld gives the job its owner.
        policy.lists(&owner)?;
        let put = chosen::put(&policy, &owner, submission, *job);
        return runtime()?.block_on(put).map(Answer::Submitted);
    }
    policy.permits(&owner)?;
    if matches!(request.verb, Verb::Permits) {
        return Ok(Answer::Permitted);
    }
    owner
        .become_this()
        .map_err(|error| SubmitError::transient(format!("become user {}: {error}", owner.name)))?;
    runtime()?.block_on(async {
        OwnersSlurm::new(owner, &policy)
            .perform(&request.verb)
            .await
    })
}

/// Starts no thread before the process is the owner.
fn runtime() -> Result<Runtime, SubmitError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build();
    runtime.map_err(|error| SubmitError::transient(format!("start: {error}")))
}

fn validate(request: &Request) -> Result<(), SubmitError> {
    match &request.verb {
        Verb::Submit(submission) | Verb::Put { submission, .. } => {
            submission.validate()?;
            match submission.owner == request.owner {
                true => Ok(()),
                false => Err(SubmitError::refused("owner: two different owners")),
            }
        }
        Verb::Act { job, action } => {
            job.parse::<JobRef>()
                .map_err(|error| SubmitError::refused(format!("job: {error}")))?;
            Ok(action.validate()?)
        }
        Verb::Find(_)
        | Verb::Status(_)
        | Verb::Tasks(_)
        | Verb::Confirm { .. }
        | Verb::Release { .. }
        | Verb::Cancel { .. }
        | Verb::FindHeld(_)
        | Verb::Permits => Ok(()),
    }
}

/// Slurm as the owner sees and changes it.
struct OwnersSlurm {
    owner: Owner,
    slurm: Slurm,
    commands: Commands,
}

impl OwnersSlurm {
    fn new(owner: Owner, policy: &Policy) -> Self {
        let config = policy.commands();
        Self {
            slurm: Slurm::isolated(config.clone(), owner.environment()),
            commands: Commands::new(config, owner.environment()),
            owner,
        }
    }

    async fn perform(&self, verb: &Verb) -> Result<Answer, SubmitError> {
        Ok(match verb {
            Verb::Submit(submission) => Answer::Submitted(self.submit(submission).await?),
            Verb::Put { .. } => return Err(SubmitError::refused("a chosen id needs slurmrestd")),
            Verb::Find(key) => Answer::Found(self.jobs(|found| found == key).await?),
            Verb::Status(job) => Answer::Confirmed(self.status(*job).await?),
            Verb::Tasks(array) => {
                Answer::Tasks(lookup::tasks(&self.slurm, self.owner.uid, *array).await?)
            }
            Verb::Confirm { job, key } => Answer::Confirmed(self.confirm(*job, key).await?),
            Verb::Release { job, key } => Answer::Acted(self.release(*job, key).await?),
            Verb::Cancel { job, key } => Answer::Acted(self.cancel(*job, key).await?),
            Verb::FindHeld(keys) => Answer::Found(self.held(keys).await?),
            Verb::Act { job, action } => Answer::Acted(self.act(job, action).await?),
            Verb::Permits => Answer::Permitted,
        })
    }

    async fn submit(&self, submission: &Submission) -> Result<JobId, SubmitError> {
        let arguments = arguments::sbatch(submission, &self.owner.home());
        let script = submission.script.as_bytes();
        classify::submitted(
            self.run("sbatch", &arguments, &submission.environment, script)
                .await,
        )
    }

    async fn run(
        &self,
        command: &'static str,
        arguments: &[String],
        variables: &BTreeMap<String, String>,
        stdin: &[u8],
    ) -> Result<slurm_client::CommandOutput, slurm_client::Error> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.commands
            .run(command, &arguments, variables, stdin)
            .await
    }

    /// Jobs of the owner in the controller whose keys are of interest, one for each id.
    async fn jobs(
        &self,
        is_of_interest: impl Fn(&SubmitKey) -> bool,
    ) -> Result<Vec<FoundJob>, SubmitError> {
        let jobs = self.slurm.jobs_of_user(&self.owner.name).await;
        let jobs = jobs.map_err(|error| classify::unanswered(&error))?;
        let mut found = BTreeMap::new();
        for job in jobs {
            let key = SubmitKey::in_comment(&job.comment).filter(|key| is_of_interest(key));
            if let Some(key) = key {
                let status = lookup::of_commented(&job);
                let job_id = job.job_id;
                found.entry(job_id).or_insert(FoundJob {
                    job_id,
                    key,
                    status,
                });
            }
        }
        Ok(found.into_values().collect())
    }

    async fn status(&self, job: JobId) -> Result<Confirmation, SubmitError> {
        lookup::status(&self.slurm, self.owner.uid, job, None).await
    }

    async fn confirm(&self, job: JobId, key: &SubmitKey) -> Result<Confirmation, SubmitError> {
        lookup::status(&self.slurm, self.owner.uid, job, Some(key)).await
    }

    async fn release(&self, job: JobId, key: &SubmitKey) -> Result<Acted, SubmitError> {
        match self.confirm(job, key).await? {
            Confirmation::Present(status) if status.held => {
                self.act(&job.to_string(), &Action::Release).await
            }
            Confirmation::Present(_) => Ok(Acted::Done),
            other => not_present(other),
        }
    }

    async fn cancel(&self, job: JobId, key: &SubmitKey) -> Result<Acted, SubmitError> {
        match self.confirm(job, key).await? {
            Confirmation::Present(status) if status.state.finished() => Ok(Acted::Done),
            Confirmation::Present(_) => self.act(&job.to_string(), &Action::Cancel).await,
            other => not_present(other),
        }
    }

    async fn held(&self, keys: &BTreeSet<SubmitKey>) -> Result<Vec<FoundJob>, SubmitError> {
        let mut held = self.jobs(|key| keys.contains(key)).await?;
        held.retain(|job| job.status.held);
        Ok(held)
    }

    async fn is_absent(&self, job: &str) -> Result<bool, SubmitError> {
        let job: JobRef = job
            .parse()
            .map_err(|error| SubmitError::refused(format!("job: {error}")))?;
        Ok(match self.status(job.root()).await? {
            Confirmation::Absent => true,
            Confirmation::Present(status) => status.from_accounting,
            Confirmation::OtherKey | Confirmation::Unknown(_) => false,
        })
    }

    async fn act(&self, job: &str, action: &Action) -> Result<Acted, SubmitError> {
        // scancel says nothing about a job that is not there.
        if matches!(action, Action::Cancel | Action::Signal { .. }) && self.is_absent(job).await? {
            return Ok(Acted::Absent);
        }
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (command, arguments): (_, Vec<String>) = match action {
            Action::Requeue => ("scontrol", words(&["requeue", job])),
            Action::RequeueHold => ("scontrol", words(&["requeuehold", job])),
            Action::Hold => ("scontrol", words(&["hold", job])),
            Action::Release => ("scontrol", words(&["release", job])),
            Action::Cancel => ("scancel", words(&[job])),
            Action::Signal { signal, batch } => {
                let mut arguments = vec![format!("--signal={signal}")];
                arguments.extend(batch.then(|| "--batch".to_owned()));
                arguments.push(job.to_owned());
                ("scancel", arguments)
            }
            Action::Update(update) => ("scontrol", arguments::update(job, update)),
        };
        let result = self.run(command, &arguments, &BTreeMap::new(), &[]).await;
        match classify::done(result) {
            Err(SubmitError::Refused {
                errno: Some(errno), ..
            }) if errno == classify::INVALID_JOB_ID => Ok(Acted::Absent),
            // The job ended before its cancellation.
            Err(SubmitError::Refused {
                errno: Some(errno), ..
            }) if errno == classify::ALREADY_DONE && *action == Action::Cancel => Ok(Acted::Done),
            result => result.map(|()| Acted::Done),
        }
    }
}

fn not_present(confirmation: Confirmation) -> Result<Acted, SubmitError> {
    match confirmation {
        Confirmation::Present(_) => Ok(Acted::Done),
        Confirmation::Absent => Ok(Acted::Absent),
        Confirmation::OtherKey => Ok(Acted::OtherKey),
        // Nothing was done.
        Confirmation::Unknown(words) => Err(SubmitError::transient(words)),
    }
}
