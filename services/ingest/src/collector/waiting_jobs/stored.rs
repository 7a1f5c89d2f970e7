//! What waits for the end of an earlier run, and how it is stored beside the runs of its shard.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::DateTime;
use mesh_events::RunKey;
use serde::{Deserialize, Serialize};
use slurm_types::{JobBaseState, ReasonClass};

use crate::adapters::shards::{pack, shard_of_record, unpack};
use crate::collector::TracedObservation;
use crate::collector::deferred::{DeferredObservation, DeferredObservations};
use crate::collector::unpublished_runs::{StoredRun, UnpublishedRuns};
use crate::domain::{EntityKind, Observation, Owner, Record, Returned, StoredLookup};
use crate::envelope::Cause;

/// What waits for the end of an earlier run, by Slurm's job id.
#[derive(Default)]
pub struct WaitingJobs {
    /// Observations of waiting runs.
    pub(in crate::collector) deferred: DeferredObservations,
    /// Runs that the controller has shown as restarted: submit time by Slurm's job id. Accounting's rows have no restart count (22.05).
    pub(in crate::collector) restarted: HashMap<u32, i64>,
    /// Lookups of jobs of which every known run has ended, or none is known.
    pub(in crate::collector) lookups: BTreeMap<u32, StoredLookup>,
    /// Runs that were seen and are not published yet.
    pub(in crate::collector) unpublished: UnpublishedRuns,
    /// Jobs of which an observation was deferred that is not stored yet.
    pub(in crate::collector) unstored: BTreeSet<u32>,
}

/// A job as stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StoredJob {
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    observations: Vec<StoredObservation>,
    /// Submit time of a restarted run.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    restarted: Option<i64>,
    #[serde(rename = "oq", default, skip_serializing_if = "Option::is_none")]
    lookup: Option<StoredLookup>,
    /// Runs that are not published yet, by their keys.
    #[serde(rename = "u", default, skip_serializing_if = "BTreeMap::is_empty")]
    unpublished: BTreeMap<String, StoredRun>,
}

/// A record of slurmctld of a waiting run. What such a record does not have is left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredObservation {
    /// Key of the run.
    #[serde(rename = "k")]
    run: String,
    /// Time of the read, in milliseconds since 1970.
    #[serde(rename = "t")]
    at_millis: i64,
    /// The poll or hook that caused the read.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    poll: Option<u64>,
    #[serde(rename = "ho", default, skip_serializing_if = "Option::is_none")]
    hook: Option<String>,
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    digest: Option<u64>,
    #[serde(rename = "a", default)]
    is_array: bool,
    #[serde(rename = "tk", default, skip_serializing_if = "Option::is_none")]
    tasks: Option<String>,
    #[serde(rename = "al", default)]
    allocated: bool,
    #[serde(rename = "cf", default)]
    configuring: bool,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    start: Option<i64>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    end: Option<i64>,
    #[serde(rename = "sp", default, skip_serializing_if = "Option::is_none")]
    suspend_time: Option<i64>,
    #[serde(rename = "ps", default, skip_serializing_if = "Option::is_none")]
    pre_suspend: Option<i64>,
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    restarts: Option<u32>,
    #[serde(rename = "rt", default, skip_serializing_if = "std::ops::Not::not")]
    returned: bool,
    #[serde(rename = "rp", default, skip_serializing_if = "std::ops::Not::not")]
    possibly_returned: bool,
    #[serde(rename = "h", default)]
    held: bool,
    #[serde(rename = "c")]
    class: ReasonClass,
    #[serde(rename = "o")]
    owner: Owner,
    /// `Job` of the events in base64.
    #[serde(rename = "j")]
    job: String,
}

impl StoredObservation {
    fn of(run: &RunKey, deferred: &DeferredObservation) -> Self {
        let TracedObservation {
            observation,
            digest,
            ..
        } = &deferred.reading;
        Self {
            run: run.entity_key(),
            at_millis: deferred.at.timestamp_millis(),
            poll: match deferred.cause {
                Cause::Poll(number) => Some(number),
                _ => None,
            },
            hook: match &deferred.cause {
                Cause::Hook(name) => Some(name.clone()),
                _ => None,
            },
            digest: *digest,
            is_array: observation.entity == EntityKind::Array,
            tasks: observation.tasks.as_ref().map(ToString::to_string),
            allocated: observation.allocated,
            configuring: observation.configuring,
            start: observation.start,
            end: observation.end,
            suspend_time: observation.suspend_time,
            pre_suspend: observation.pre_suspend,
            restarts: observation.restarts,
            returned: observation.returned == Returned::Yes,
            possibly_returned: observation.returned == Returned::Possibly,
            held: observation.held,
            class: observation.class,
            owner: observation.owner.clone(),
            job: pack(&observation.job),
        }
    }

    /// Returns the observation with its run; `None` if another program has written it.
    fn restored(self, cluster: &str, raw_id: u32) -> Option<(RunKey, DeferredObservation)> {
        let run = RunKey::parse(cluster, &self.run).ok()?;
        let entity = match run.task_id {
            _ if self.is_array => EntityKind::Array,
            Some(_) => EntityKind::Task,
            None => EntityKind::Job,
        };
        let observation = Observation {
            run: RunKey {
                attempt: 0,
                ..run.clone()
            },
            raw_id,
            entity,
            tasks: self.tasks.and_then(|tasks| tasks.parse().ok()),
            record: Record::Controller,
            base: Some(JobBaseState::Pending),
            completing: false,
            configuring: self.configuring,
            revoked: false,
            requeued: false,
            allocated: self.allocated,
            nodes_at_end: false,
            ended_by_hook: false,
            end_is_inferred: false,
            own_end: None,
            exit_code: None,
            start: self.start,
            end: self.end,
            suspend_time: self.suspend_time,
            pre_suspend: self.pre_suspend,
            resizes: Vec::new(),
            parts: Vec::new(),
            restarts: self.restarts,
            returned: match (self.returned, self.possibly_returned) {
                (true, _) => Returned::Yes,
                (false, true) => Returned::Possibly,
                (false, false) => Returned::No,
            },
            held: self.held,
            class: self.class,
            cancelled_by: None,
            owner: self.owner,
            job: unpack(&self.job)?,
        };
        let deferred = DeferredObservation {
            cause: match (self.poll, self.hook) {
                (Some(number), _) => Cause::Poll(number),
                (None, Some(hook)) => Cause::Hook(hook),
                (None, None) => Cause::Lookup,
            },
            at: DateTime::from_timestamp_millis(self.at_millis)?,
            reading: TracedObservation {
                digest: self.digest,
                ..TracedObservation::new(observation)
            },
        };
        Some((run, deferred))
    }
}

impl WaitingJobs {
    /// Returns the jobs of a shard, as stored.
    pub fn of_shard(&self, shard: u32) -> BTreeMap<u32, StoredJob> {
        let mut jobs: BTreeMap<u32, StoredJob> = BTreeMap::new();
        let is_in = |raw_id: u32| shard_of_record(raw_id) == shard;
        for (run, deferred) in self.deferred.iter() {
            let raw_id = deferred.reading.observation.raw_id;
            if is_in(raw_id) {
                let job = jobs.entry(raw_id).or_default();
                job.observations.push(StoredObservation::of(run, deferred));
            }
        }
        for (raw_id, submit_time) in self.restarted.iter().filter(|(id, _)| is_in(**id)) {
            jobs.entry(*raw_id).or_default().restarted = Some(*submit_time);
        }
        for (raw_id, lookup) in self.lookups.iter().filter(|(id, _)| is_in(**id)) {
            jobs.entry(*raw_id).or_default().lookup = Some(lookup.clone());
        }
        for (raw_id, run, stored) in self.unpublished.of_shard(shard) {
            let job = jobs.entry(raw_id).or_default();
            job.unpublished.insert(run, stored);
        }
        jobs
    }

    /// Adds jobs of a shard.
    pub fn restore(&mut self, cluster: &str, jobs: BTreeMap<u32, StoredJob>) {
        for (raw_id, job) in jobs {
            let observations = job.observations.into_iter();
            for (run, deferred) in observations.filter_map(|one| one.restored(cluster, raw_id)) {
                self.deferred.push(&run, deferred);
            }
            if let Some(submit_time) = job.restarted {
                self.restarted.insert(raw_id, submit_time);
            }
            if let Some(lookup) = job.lookup {
                self.lookups.insert(raw_id, lookup);
            }
            for (key, stored) in job.unpublished {
                if let Ok(run) = RunKey::parse(cluster, &key) {
                    self.unpublished.restore(run, raw_id, stored);
                }
            }
        }
    }
}
