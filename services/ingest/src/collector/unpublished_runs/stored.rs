//! The runs that are not published yet, and how they are restored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_events::RunKey;
use tokio::time::Instant;

use crate::adapters::shards::shard_of_record;
use crate::collector::accounting_wait::AccountingWait;
use crate::domain::{Owner, StoredRun};

/// A run that is not published yet.
#[derive(Clone, Debug)]
pub(super) struct UnpublishedRun {
    /// Slurm's job id.
    pub(super) raw_id: u32,
    pub(super) owner: Owner,
    /// How long accounting was waited for since slurmctld has the run no more.
    pub(super) wait: AccountingWait,
    /// The part of it that is stored.
    pub(super) stored: Duration,
}

impl UnpublishedRun {
    pub(super) fn new(raw_id: u32, owner: Owner, waited: Duration) -> Self {
        Self {
            raw_id,
            owner,
            wait: AccountingWait::continued(waited, Instant::now()),
            stored: waited,
        }
    }
}

/// Runs that are not published yet.
#[derive(Debug, Default)]
pub(in crate::collector) struct UnpublishedRuns(pub(super) BTreeMap<RunKey, UnpublishedRun>);

impl UnpublishedRuns {
    /// Returns every wait.
    pub(in crate::collector) fn waits(&mut self) -> impl Iterator<Item = &mut AccountingWait> {
        self.0.values_mut().map(|run| &mut run.wait)
    }

    /// Records an answer of accounting about these jobs. A run of it that has ended is published next.
    pub(in crate::collector) fn answered(&mut self, ids: &BTreeSet<u32>) {
        let now = Instant::now();
        let asked = self.0.values_mut();
        asked
            .filter(|run| ids.contains(&run.raw_id))
            .for_each(|run| run.wait.answered(now));
    }

    /// Returns the runs of a shard, with their job, as stored.
    pub(in crate::collector) fn of_shard(
        &self,
        shard: u32,
    ) -> impl Iterator<Item = (u32, String, StoredRun)> {
        let runs = self.0.iter();
        let runs = runs.filter(move |(_, run)| shard_of_record(run.raw_id) == shard);
        runs.map(|(key, run)| {
            let stored = StoredRun {
                owner: run.owner.clone(),
                waited: run.stored.as_secs(),
            };
            (run.raw_id, key.entity_key(), stored)
        })
    }

    /// Adds a stored run.
    pub(in crate::collector) fn restore(&mut self, run: RunKey, raw_id: u32, stored: StoredRun) {
        let waited = Duration::from_secs(stored.waited);
        let restored = UnpublishedRun::new(raw_id, stored.owner, waited);
        self.0.insert(run, restored);
    }
}
