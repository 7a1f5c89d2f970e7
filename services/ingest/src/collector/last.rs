//! The newest snapshots of runs, encoded: of 100,000 jobs they are most of what ingest holds, and few are looked at again before their end.

use std::collections::HashMap;

use mesh_events::RunKey;
use mesh_events::proto::mesh::job::v1::Job;
use prost::Message as _;

use crate::domain::Owner;

/// Snapshots by run.
#[derive(Default)]
pub(super) struct Last(HashMap<RunKey, Packed>);

struct Packed {
    job: Box<[u8]>,
    owner: Owner,
}

impl Last {
    /// What was seen last of a run, and whose it is.
    pub(super) fn get(&self, run: &RunKey) -> Option<(Job, Owner)> {
        let packed = self.0.get(run)?;
        // What was encoded here can be decoded here.
        let job = Job::decode(&*packed.job).ok()?;
        Some((job, packed.owner.clone()))
    }

    /// Whether something was seen of a run.
    pub(super) fn has(&self, run: &RunKey) -> bool {
        self.0.contains_key(run)
    }

    /// Remembers what was seen of a run.
    pub(super) fn insert(&mut self, run: RunKey, job: &Job, owner: &Owner) {
        let packed = Packed {
            job: job.encode_to_vec().into_boxed_slice(),
            owner: owner.clone(),
        };
        self.0.insert(run, packed);
    }

    /// Forgets a run.
    pub(super) fn remove(&mut self, run: &RunKey) {
        self.0.remove(run);
    }
}
