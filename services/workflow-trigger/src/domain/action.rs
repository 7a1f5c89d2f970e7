//! Actions as a rule has them, with templates, and how they are rendered for one event.

use std::collections::BTreeMap;
use std::sync::Arc;

use event_filter::Template;
use serde_json::Value;
use slurm_submit::{JobFields, JobUpdate, Submission, SubmitKey};

use super::event_job::EventJob;
use super::planned_action::PlannedAction;
use super::retry::RetryPolicy;

/// What a rule does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Submits a new job.
    Submit(SubmitAction),
    /// Acts on a job.
    Act(JobAct),
    /// Publishes an event.
    Publish(PublishAction),
    /// Tells the owner something, by webhook endpoints.
    Notify(NotifyAction),
    /// Runs the event's job again, with more memory, time or other nodes.
    Retry(RetryPolicy),
}

/// A new job.
#[derive(Clone, Debug)]
pub struct SubmitAction {
    /// The batch script, as its owner wrote it. Never rendered.
    pub script: Arc<str>,
    /// Its arguments.
    pub args: Vec<Template>,
    /// Its environment. Names begin with `MESH_EVENT_`.
    pub environment: BTreeMap<String, Template>,
    /// Fields of the job by their names in [`JobFields`].
    pub fields: BTreeMap<String, Template>,
}

/// An event that others of the owner's rules select by `source = "publish"`.
#[derive(Clone, Debug)]
pub struct PublishAction {
    /// Its type.
    pub event_type: String,
    /// Its data.
    pub data: BTreeMap<String, Template>,
}

/// A message, `user.notified` on the bus.
#[derive(Clone, Debug)]
pub struct NotifyAction {
    /// Its text.
    pub text: Template,
    /// Its data.
    pub data: BTreeMap<String, Template>,
}

/// An act on a job.
#[derive(Clone, Debug)]
pub struct JobAct {
    /// What is done.
    pub verb: JobVerb,
    /// Id of the job.
    pub job: Template,
    /// For `signal`: its name.
    pub signal: String,
    /// For `signal`: whether only the batch script gets it.
    pub is_batch_only: bool,
    /// For `update`: fields that change, by their names in [`JobFields`].
    pub changes: BTreeMap<String, Template>,
}

/// Acts on jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobVerb {
    /// `scontrol requeue`
    Requeue,
    /// `scontrol hold`
    Hold,
    /// `scontrol release`
    Release,
    /// `scancel`
    Cancel,
    /// `scancel --signal`
    Signal,
    /// `scontrol update`
    Update,
}

impl JobVerb {
    /// Every act.
    pub const ALL: [Self; 6] = [
        Self::Requeue,
        Self::Hold,
        Self::Release,
        Self::Cancel,
        Self::Signal,
        Self::Update,
    ];

    /// The word in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Cancel => "cancel",
            Self::Signal => "signal",
            Self::Update => "update",
        }
    }
}

impl SubmitAction {
    /// The job for an event.
    ///
    /// # Errors
    /// The key and the problem.
    pub fn render(
        &self,
        key: SubmitKey,
        owner: &str,
        fields: &Value,
        event: &EventVariables<'_>,
    ) -> Result<PlannedAction, String> {
        let mut args = Vec::with_capacity(self.args.len());
        for (place, template) in self.args.iter().enumerate() {
            args.push(value(&format!("action.args[{place}]"), template, fields)?);
        }
        let mut environment = event.environment();
        for (name, template) in &self.environment {
            let value = value(&format!("action.environment.{name}"), template, fields)?;
            environment.insert(name.clone(), value);
        }
        let job = Submission {
            key,
            owner: owner.to_owned(),
            script: self.script.to_string(),
            args,
            environment,
            fields: job_fields(&self.fields, fields)?,
        };
        job.validate().map_err(|error| format!("action.{error}"))?;
        Ok(PlannedAction::Submit { job: Box::new(job) })
    }
}

impl PublishAction {
    /// The event.
    ///
    /// # Errors
    /// The key and the problem.
    pub fn render(&self, fields: &Value) -> Result<PlannedAction, String> {
        Ok(PlannedAction::Publish {
            event_type: self.event_type.clone(),
            data: rendered_data(&self.data, fields)?,
        })
    }
}

impl NotifyAction {
    /// The message.
    ///
    /// # Errors
    /// The key and the problem.
    pub fn render(&self, fields: &Value) -> Result<PlannedAction, String> {
        Ok(PlannedAction::Notify {
            text: value("action.notify", &self.text, fields)?,
            data: rendered_data(&self.data, fields)?,
        })
    }
}

fn rendered_data(
    templates: &BTreeMap<String, Template>,
    fields: &Value,
) -> Result<BTreeMap<String, String>, String> {
    let rendered = templates.iter().map(|(name, template)| {
        let value = value(&format!("action.data.{name}"), template, fields)?;
        Ok((name.clone(), value))
    });
    rendered.collect()
}

impl JobAct {
    /// The act for an event, which may be about a job.
    ///
    /// # Errors
    /// The key and the problem.
    pub fn render(&self, fields: &Value, event_job: &EventJob) -> Result<PlannedAction, String> {
        let key = format!("action.{}", self.verb.as_str());
        let text = value(&key, &self.job, &event_job.named_in(fields))?;
        let (job_id, task) = event_job.target(&text).ok_or_else(|| {
            format!("{key}: {text:?} is not the number of a job or of a task, as 4711 or 4711_2")
        })?;
        let action = match self.verb {
            // A job that is requeued twice runs twice.
            JobVerb::Requeue => {
                return Ok(PlannedAction::Rerun {
                    job_id,
                    task,
                    restarts: event_job.restarts,
                    changes: JobUpdate::default(),
                });
            }
            JobVerb::Hold => slurm_submit::Action::Hold,
            JobVerb::Release => slurm_submit::Action::Release,
            JobVerb::Cancel => slurm_submit::Action::Cancel,
            JobVerb::Signal => slurm_submit::Action::Signal {
                signal: self.signal.clone(),
                batch: self.is_batch_only,
            },
            JobVerb::Update => {
                let new = job_fields(&self.changes, fields)?;
                slurm_submit::Action::Update(JobUpdate {
                    time: new.time,
                    memory: new.memory,
                    nodes: new.nodes,
                    partition: new.partition,
                    exclude: new.exclude,
                })
            }
        };
        action
            .validate()
            .map_err(|error| format!("action.{error}"))?;
        Ok(PlannedAction::Act {
            job_id,
            task,
            action,
        })
    }
}

/// Variables that every submitted job has.
pub struct EventVariables<'a> {
    /// Id of the event.
    pub id: &'a str,
    /// Type of the event.
    pub kind: &'a str,
    /// The rule.
    pub rule: &'a str,
}

impl EventVariables<'_> {
    fn environment(&self) -> BTreeMap<String, String> {
        [
            ("MESH_EVENT_ID", self.id),
            ("MESH_EVENT_TYPE", self.kind),
            ("MESH_EVENT_RULE", self.rule),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }
}

fn job_fields(templates: &BTreeMap<String, Template>, fields: &Value) -> Result<JobFields, String> {
    let mut job = JobFields::default();
    for (name, template) in templates {
        let text = value(&format!("action.{name}"), template, fields)?;
        job.set(name, &text)
            .map_err(|error| format!("action.{error}"))?;
    }
    Ok(job)
}

fn value(key: &str, template: &Template, fields: &Value) -> Result<String, String> {
    template
        .render(fields)
        .map_err(|problem| format!("{key}: {problem}"))
}
