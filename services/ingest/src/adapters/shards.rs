//! Shards of the runs of a cluster: which one has a run, and how a payload is written in it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_events::proto::mesh::job::v1::Job;
use prost::Message as _;

use crate::domain::RunState;

/// Shards per cluster, by Slurm's job id so that a large array spreads. With 1 MiB each they hold about half a million runs.
pub const SHARDS: u32 = 128;

/// Returns the shard of a run.
pub const fn shard_of(tracked: &RunState) -> u32 {
    shard_of_record(tracked.raw_id)
}

/// Returns the shard of the runs with this job id of Slurm.
pub const fn shard_of_record(raw_id: u32) -> u32 {
    raw_id % SHARDS
}

pub(super) fn shard_number(key: &str) -> Option<u32> {
    let number = key.rsplit('.').next()?.parse().ok()?;
    (number < SHARDS).then_some(number)
}

/// Writes a payload as text.
pub fn pack(job: &Job) -> String {
    STANDARD.encode(job.encode_to_vec())
}

/// Reads a payload; `None` if there is none, or another program has written it.
pub fn unpack(text: &str) -> Option<Job> {
    let bytes = STANDARD
        .decode(text)
        .ok()
        .filter(|bytes| !bytes.is_empty())?;
    Job::decode(&*bytes).ok()
}
