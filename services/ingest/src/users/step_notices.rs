//! What the SPANK plugin reports of the steps of a job with `--mesh-notify`, as `user.notified` to the job's owner.
//!
//! The report comes from root of a node over the doorbells' credential, so it is evidence (ADR 14, ADR 29): the event is inferred. That the
//! job ran then, and whose it is, is Slurm's record's word; a report that no record supports is a dead letter. What is published is limited
//! per user and minute, as for logins. The event id is derived from the doorbell's id.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_bus::{Bus, Disposition};
use mesh_events::proto::mesh::event::v1::{
    Confidence, Correlation, Entity, Event, IdSource, Source, event::Payload,
};
use mesh_events::proto::mesh::hook::v1::{Doorbell, StepReport};
use mesh_events::proto::mesh::user::v1::{Notice, UserEvent};
use mesh_events::{EventId, EventType, RunKey, SCHEMA_VERSION, from_timestamp, hooks, timestamp};
use rate_limit::LeakyBucket;
use slurm_client::{AccountingQuery, Slurm};
use slurm_types::JobId;
use tokio_util::sync::CancellationToken;

use super::limited_publisher::LimitedPublisher;
use super::login::check_time;
use crate::collector::Collector;
use crate::domain::{EntityKind, Observation, Owner, fold};
use crate::identity::IdentityResolver;
use crate::metrics;

/// Events per user and minute of the reports.
const NOTICES_PER_MINUTE: u32 = 60;
/// Jobs per minute that are read from Slurm, because no poll has shown them running.
const LOOKUPS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).expect("not 0");
/// Deliveries of a report that no record supports, before it is refused: a job may be in no record for a moment.
const MAX_DELIVERIES: u64 = 4;
/// Deliveries of a report that is not looked up because of others, before it is refused: minutes. Postponed doorbells count against
/// those that the consumer may have unacknowledged, which are also those of jobs.
const MAX_LIMITED_DELIVERIES: u64 = 16;
/// How far clocks of nodes may be from the controller's, in seconds.
const MAX_CLOCK_SKEW: i64 = 60;
/// Longest host name.
const MAX_HOST_BYTES: usize = 256;
/// Most failed tasks that a report names.
const MAX_FAILURES: usize = 64;
const MOMENTS: &[&str] = &["start", "task", "exit"];
/// Steps with names, by Slurm's numbers (slurm.h).
const NAMED_STEPS: &[(u32, &str)] = &[
    (0xffff_fffa, "interactive"),
    (0xffff_fffb, "batch"),
    (0xffff_fffc, "extern"),
];

/// Publishes reports of steps.
pub struct StepNotices {
    collector: Collector,
    slurm: Slurm,
    publisher: LimitedPublisher,
    identities: Arc<IdentityResolver>,
    lookups: Mutex<LeakyBucket>,
}

/// The run that a step belongs to, by Slurm's record.
struct RunOfStep {
    run: RunKey,
    owner: Owner,
}

/// Why a report is not published now.
enum Refusal {
    /// It is no report, or contradicts Slurm's record.
    Unusable(&'static str),
    /// No record supports it yet.
    Unsupported,
    /// It is not looked up now, because others are.
    Limited,
    /// Slurm does not answer.
    Unavailable,
}

impl StepNotices {
    /// Creates the publisher.
    pub fn new(
        collector: Collector,
        slurm: Slurm,
        bus: Bus,
        identities: Arc<IdentityResolver>,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            collector,
            slurm,
            publisher: LimitedPublisher::new(bus, NOTICES_PER_MINUTE, shutdown),
            identities,
            lookups: Mutex::new(LeakyBucket::new(
                LOOKUPS_PER_MINUTE,
                Duration::from_secs(60),
            )),
        }
    }

    /// Handles a doorbell of the SPANK plugin. `delivery` is its number of deliveries.
    pub async fn request(&self, doorbell: &Doorbell, delivery: u64) -> Disposition {
        let event = match self.event(doorbell).await {
            Ok(event) => event,
            Err(Refusal::Unusable(problem)) => {
                metrics::doorbell("unusable");
                return dead(problem);
            }
            Err(Refusal::Unsupported) if delivery >= MAX_DELIVERIES => {
                metrics::doorbell("unusable");
                return dead("no record of Slurm has its job running at that time");
            }
            Err(Refusal::Limited) if delivery >= MAX_LIMITED_DELIVERIES => {
                metrics::doorbell("limited");
                return dead("too many reports name jobs that no poll has shown running");
            }
            Err(Refusal::Unsupported | Refusal::Limited | Refusal::Unavailable) => {
                metrics::doorbell("delayed");
                let after = Duration::from_secs(1 << delivery.clamp(1, 5));
                return Disposition::Nak { after };
            }
        };
        let user = event.owner.as_ref().map(|owner| owner.user.clone());
        let user = user.unwrap_or_default();
        let minute = event.occurred_at.as_ref().map_or(0, |at| at.seconds / 60);
        self.publisher.publish(event, &user, minute).await
    }

    async fn event(&self, doorbell: &Doorbell) -> Result<Event, Refusal> {
        let unusable = Refusal::Unusable;
        let id = EventId::of_doorbell(&doorbell.id, EventType::UserNotified)
            .ok_or(unusable("its id is not a UUID"))?;
        let step = checked(doorbell, &self.collector.cluster).map_err(unusable)?;
        let now = Utc::now();
        let called = doorbell.called_at.as_ref().and_then(from_timestamp);
        let called = called.ok_or(unusable("it has no time"))?;
        check_time(called, now).map_err(unusable)?;
        let RunOfStep { run, owner } = self.run_of(doorbell.job_id, called).await?;
        if owner.uid.is_some_and(|uid| uid != step.uid) {
            return Err(unusable("its uid is not that of the job's owner"));
        }
        let name = step_name(doorbell.job_id, step.step_id);
        Ok(Event {
            id: id.to_string(),
            id_source: IdSource::of_doorbell(&doorbell.id),
            cluster: self.collector.cluster.clone(),
            r#type: EventType::UserNotified.to_string(),
            occurred_at: Some(timestamp(called)),
            observed_at: Some(timestamp(now)),
            source: Source::Hook.into(),
            source_detail: hooks::SPANK_HOOK.to_owned(),
            confidence: Confidence::Inferred.into(),
            late: (now - called).num_seconds() > MAX_CLOCK_SKEW,
            correlation: Some(Correlation {
                event_ids: Vec::new(),
                entities: vec![run.entity_key()],
            }),
            owner: Some(mesh_events::proto::mesh::event::v1::Owner {
                identity: self.identities.get(&owner.user),
                user: owner.user.clone(),
                uid: owner.uid,
                account: owner.account.clone(),
            }),
            entity: Some(Entity {
                kind: "step".to_owned(),
                key: format!("step/{}", doorbell.id.to_ascii_lowercase()),
            }),
            run_seq: 1,
            schema_version: SCHEMA_VERSION,
            payload: Some(Payload::User(UserEvent {
                user: owner.user,
                attribute: "Step".to_owned(),
                after: name.clone(),
                notice: Some(Notice {
                    run: run.entity_key(),
                    text: text(&name, &doorbell.host, step),
                    data: data(name, &doorbell.host, step),
                    ..Notice::default()
                }),
                ..UserEvent::default()
            })),
            ..Event::default()
        })
    }

    /// The run of this job that Slurm's record has running at that time: as last read, else read now.
    async fn run_of(&self, job_id: u32, at: DateTime<Utc>) -> Result<RunOfStep, Refusal> {
        let at = at.timestamp();
        {
            let state = self.collector.state().await;
            for run in state.run_store.by_raw_id(job_id).into_iter().rev() {
                let Some(known) = state.run_store.get(&run) else {
                    continue;
                };
                let end = known.end.as_ref().map(|end| end.at);
                if !known.is_array
                    && !known.hook_only
                    && ran(known.started, end, at)
                    && let Some(owner) = state.owner_of(&run)
                {
                    return Ok(RunOfStep { run, owner });
                }
            }
        }
        let id = JobId::new(job_id).ok_or(Refusal::Unusable("it names no job"))?;
        let is_admitted = self
            .lookups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_take(tokio::time::Instant::now());
        if !is_admitted {
            return Err(Refusal::Limited);
        }
        let read = self.read(id).await.map_err(|error| {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                job.id = job_id,
                "job of a step not read"
            );
            Refusal::Unavailable
        })?;
        read.into_iter()
            // Slurm's start of a pending job is a plan.
            .find(|found| {
                found.entity != EntityKind::Array
                    && found.allocated
                    && ran(found.start, found.end, at)
            })
            .map(|found| RunOfStep {
                run: found.run,
                owner: found.owner,
            })
            .ok_or(Refusal::Unsupported)
    }

    /// What slurmctld has of a job, else accounting: a report may come hours later, when slurmctld has purged the job.
    async fn read(&self, id: JobId) -> Result<Vec<Observation>, slurm_client::Error> {
        let cluster = &self.collector.cluster;
        let answer = self.slurm.jobs(&[id]).await?;
        let records = answer.found.iter();
        let found: Vec<Observation> = records
            .filter(|record| record.job_id == Some(id))
            .filter_map(|record| Observation::from_controller(cluster, record))
            .collect();
        if !found.is_empty() || !self.collector.config.accounting {
            return Ok(found);
        }
        let rows = AccountingQuery::Jobs(vec![id]);
        let mut found = fold(cluster, &self.slurm.accounting(&rows).await?);
        found.retain(|row| row.raw_id == id.get());
        Ok(found)
    }
}

fn dead(problem: &str) -> Disposition {
    Disposition::DeadLetter {
        reason: format!("doorbell of a step: {problem}"),
    }
}

/// Whether a run with this start and end ran at that time.
fn ran(start: Option<i64>, end: Option<i64>, at: i64) -> bool {
    start.is_some_and(|start| start <= at + MAX_CLOCK_SKEW)
        && end.is_none_or(|end| at <= end + MAX_CLOCK_SKEW)
}

/// The report, if it is one.
fn checked<'a>(doorbell: &'a Doorbell, cluster: &str) -> Result<&'a StepReport, &'static str> {
    let step = doorbell.step.as_ref().ok_or("it has no step")?;
    if doorbell.cluster != cluster {
        return Err("it is from another cluster");
    }
    if doorbell.host.len() > MAX_HOST_BYTES || doorbell.host.contains(char::is_control) {
        return Err("its host is longer than 256 bytes or contains control characters");
    }
    if !MOMENTS.contains(&step.moment.as_str()) {
        return Err("its moment is unknown");
    }
    if step.failures.len() > MAX_FAILURES {
        return Err("it names more than 64 tasks");
    }
    Ok(step)
}

/// A step as Slurm prints it: `12.0`, `12.batch`.
fn step_name(job_id: u32, step_id: u32) -> String {
    match NAMED_STEPS.iter().find(|(number, _)| *number == step_id) {
        Some((_, name)) => format!("{job_id}.{name}"),
        None => format!("{job_id}.{step_id}"),
    }
}

fn text(name: &str, host: &str, step: &StepReport) -> String {
    let tasks = match step.tasks {
        1 => "1 task".to_owned(),
        tasks => format!("{tasks} tasks"),
    };
    let first = step.failures.first().map_or_else(String::new, |end| {
        let how = match end.signal {
            0 => format!("exit code {}", end.code),
            signal => format!("signal {signal}"),
        };
        format!(", task {} with {how}", end.task)
    });
    match step.moment.as_str() {
        "start" => format!("Step {name} has started on {host}, {tasks}"),
        "task" => format!("A task of step {name} on {host} has failed{first}"),
        _ if step.failed == 0 => format!("Step {name} has ended on {host}, {tasks}"),
        _ => format!(
            "Step {name} has ended on {host}, {} of {tasks} failed{first}",
            step.failed
        ),
    }
}

fn data(name: String, host: &str, step: &StepReport) -> BTreeMap<String, String> {
    let numbers = [
        ("node", step.node),
        ("tasks", step.tasks),
        ("ended", step.ended),
        ("failed", step.failed),
        ("lost", step.lost),
    ];
    let mut data: BTreeMap<String, String> = numbers
        .into_iter()
        .map(|(key, number)| (key.to_owned(), number.to_string()))
        .collect();
    data.extend([
        ("moment".to_owned(), step.moment.clone()),
        ("step".to_owned(), name),
        ("host".to_owned(), host.to_owned()),
    ]);
    let failures = step.failures.iter();
    data.extend(failures.map(|end| {
        (
            format!("task.{}", end.task),
            format!("{}:{}", end.code, end.signal),
        )
    }));
    data
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::hook::v1::TaskEnd;

    use super::*;

    #[test]
    fn a_step_is_named_as_slurm_prints_it() {
        for (step, expected) in [
            (0, "12.0"),
            (u32::MAX - 4, "12.batch"),
            (u32::MAX - 5, "12.interactive"),
        ] {
            assert_eq!(step_name(12, step), expected);
        }
    }

    #[test]
    fn a_report_counts_while_the_run_ran() {
        for (start, end, at, expected) in [
            (Some(100), None, 100, true),
            (Some(100), None, 30, false),
            (Some(100), Some(200), 255, true),
            (Some(100), Some(200), 300, false),
            (None, None, 100, false),
        ] {
            assert_eq!(ran(start, end, at), expected, "{start:?} {end:?} {at}");
        }
    }

    #[test]
    fn texts_name_the_first_failure_and_data_every_one() {
        let end = |task, code, signal| TaskEnd { task, code, signal };
        let mut step = StepReport {
            moment: "exit".into(),
            tasks: 4,
            ended: 4,
            failed: 2,
            failures: vec![end(2, 3, 0), end(3, 0, 9)],
            ..StepReport::default()
        };
        assert_eq!(
            text("12.0", "n1", &step),
            "Step 12.0 has ended on n1, 2 of 4 tasks failed, task 2 with exit code 3"
        );
        let data = data("12.0".into(), "n1", &step);
        assert_eq!((&*data["task.2"], &*data["task.3"]), ("3:0", "0:9"));
        assert_eq!((&*data["failed"], &*data["ended"]), ("2", "4"));
        step.moment = "task".into();
        step.failures = vec![end(3, 0, 9)];
        assert_eq!(
            text("12.0", "n1", &step),
            "A task of step 12.0 on n1 has failed, task 3 with signal 9"
        );
    }
}
