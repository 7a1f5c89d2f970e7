//! What waits for the end of an earlier run, and how it is restored from what is stored beside the runs of its shard.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::DateTime;
use mesh_events::RunKey;
use slurm_types::JobBaseState;

use crate::adapters::shards::{pack, shard_of_record, unpack};
use crate::collector::TracedObservation;
use crate::collector::deferred::{DeferredObservation, DeferredObservations};
use crate::collector::unpublished_runs::UnpublishedRuns;
use crate::domain::{
    EntityKind, Observation, Record, Returned, StoredJob, StoredLookup, StoredObservation,
};
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

impl DeferredObservation {
    fn to_stored(&self, run: &RunKey) -> StoredObservation {
        let TracedObservation {
            observation,
            digest,
            ..
        } = &self.reading;
        StoredObservation {
            run: run.entity_key(),
            at_millis: self.at.timestamp_millis(),
            poll: match self.cause {
                Cause::Poll(number) => Some(number),
                _ => None,
            },
            hook: match &self.cause {
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
    fn from_stored(
        stored: StoredObservation,
        cluster: &str,
        raw_id: u32,
    ) -> Option<(RunKey, Self)> {
        let run = RunKey::parse(cluster, &stored.run).ok()?;
        let entity = match run.task_id {
            _ if stored.is_array => EntityKind::Array,
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
            tasks: stored.tasks.and_then(|tasks| tasks.parse().ok()),
            record: Record::Controller,
            base: Some(JobBaseState::Pending),
            completing: false,
            configuring: stored.configuring,
            revoked: false,
            requeued: false,
            allocated: stored.allocated,
            nodes_at_end: false,
            ended_by_hook: false,
            end_is_inferred: false,
            own_end: None,
            exit_code: None,
            start: stored.start,
            end: stored.end,
            suspend_time: stored.suspend_time,
            pre_suspend: stored.pre_suspend,
            resizes: Vec::new(),
            parts: Vec::new(),
            restarts: stored.restarts,
            returned: match (stored.returned, stored.possibly_returned) {
                (true, _) => Returned::Yes,
                (false, true) => Returned::Possibly,
                (false, false) => Returned::No,
            },
            held: stored.held,
            class: stored.class,
            cancelled_by: None,
            owner: stored.owner,
            job: unpack(&stored.job)?,
        };
        let deferred = Self {
            cause: match (stored.poll, stored.hook) {
                (Some(number), _) => Cause::Poll(number),
                (None, Some(hook)) => Cause::Hook(hook),
                (None, None) => Cause::Lookup,
            },
            at: DateTime::from_timestamp_millis(stored.at_millis)?,
            reading: TracedObservation {
                digest: stored.digest,
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
                job.observations.push(deferred.to_stored(run));
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
            for stored in job.observations {
                let restored = DeferredObservation::from_stored(stored, cluster, raw_id);
                if let Some((run, deferred)) = restored {
                    self.deferred.push(&run, deferred);
                }
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
