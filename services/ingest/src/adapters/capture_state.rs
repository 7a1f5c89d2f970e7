//! The state of capture as a whole, an entry of bucket `mesh_ingest`.

use std::collections::BTreeMap;

use mesh_events::is_default;
use serde::{Deserialize, Serialize};

/// Stored state of capture in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureState {
    /// Format version of the value.
    pub version: u32,
    /// Start of capture, in Unix seconds. Runs that ended earlier are not published.
    pub capture_since: i64,
    /// Start of the last completely published poll, in Unix seconds.
    pub watermark: i64,
    /// Stream sequence until which the state of every published event is stored; 0 until the second poll.
    #[serde(default)]
    pub published: u64,
    /// Last poll before the clock was set ahead, in Unix seconds, for one day: the clock may be set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_from: Option<i64>,
    /// Number of the last completely published poll.
    #[serde(rename = "sweep")]
    pub poll: u64,
    /// Whether the first poll was published.
    pub baseline_done: bool,
    /// Start of the time that accounting must still be asked about, in Unix seconds.
    #[serde(rename = "owed_from", default, skip_serializing_if = "Option::is_none")]
    pub backlog_from: Option<i64>,
    /// Newest end of a run that was removed, in Slurm's time. An unknown run that ended by then was published.
    #[serde(default, skip_serializing_if = "is_default")]
    pub removed_until: i64,
    /// Newest job that polls have shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<NewestJob>,
    /// Ids that must still be looked up in accounting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenRange>,
    /// When each unavailable source failed, in Unix seconds, as published.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub down_since: BTreeMap<String, i64>,
    /// Runs that a slurmctld with an older state has started again, until all of them are published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_state: Option<LostState>,
    /// Unknown formats that were published, with the day since 1970.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drifts: BTreeMap<String, i64>,
    /// Count before the first of each type and source: the time at which the counts were lost, in Unix seconds. No earlier count is as large.
    #[serde(default, skip_serializing_if = "is_default")]
    pub counts_from: u64,
    /// Number of published capture events, by `<type> <source>`.
    pub counts: BTreeMap<String, u64>,
    /// Events whose publication is not confirmed.
    #[serde(default)]
    pub outbox: Vec<String>,
}

/// The job that was submitted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NewestJob {
    /// Submit time in Unix seconds.
    pub submit: i64,
    /// Slurm's job id.
    pub id: u32,
}

/// A range of ids between two jobs that were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnseenRange {
    /// First id of the range.
    pub first: u32,
    /// Last id of the range.
    pub last: u32,
    /// How long accounting was waited for, in seconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waited: u64,
}

/// Runs that slurmctld has started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostState {
    /// Earliest end that slurmctld has lost, in Unix seconds.
    pub from: i64,
    /// Number of runs.
    pub runs: u64,
    /// Number of the poll before which the last of them was published.
    #[serde(rename = "sweep")]
    pub poll: u64,
}
