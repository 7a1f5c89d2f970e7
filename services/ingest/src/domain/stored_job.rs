//! What is stored of a job beside the runs of its shard: what waits for the end of an earlier run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slurm_types::ReasonClass;

use super::lookup::StoredLookup;
use super::observation::Owner;

/// A job that waits for the end of an earlier run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StoredJob {
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) observations: Vec<StoredObservation>,
    /// Submit time of a restarted run.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub(crate) restarted: Option<i64>,
    #[serde(rename = "oq", default, skip_serializing_if = "Option::is_none")]
    pub(crate) lookup: Option<StoredLookup>,
    /// Runs that are not published yet, by their keys.
    #[serde(rename = "u", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) unpublished: BTreeMap<String, StoredRun>,
}

/// A record of slurmctld of a waiting run. What such a record does not have is left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredObservation {
    /// Key of the run.
    #[serde(rename = "k")]
    pub(crate) run: String,
    /// Time of the read, in milliseconds since 1970.
    #[serde(rename = "t")]
    pub(crate) at_millis: i64,
    /// The poll or hook that caused the read.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub(crate) poll: Option<u64>,
    #[serde(rename = "ho", default, skip_serializing_if = "Option::is_none")]
    pub(crate) hook: Option<String>,
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<u64>,
    #[serde(rename = "a", default)]
    pub(crate) is_array: bool,
    #[serde(rename = "tk", default, skip_serializing_if = "Option::is_none")]
    pub(crate) tasks: Option<String>,
    #[serde(rename = "al", default)]
    pub(crate) allocated: bool,
    #[serde(rename = "cf", default)]
    pub(crate) configuring: bool,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<i64>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<i64>,
    #[serde(rename = "sp", default, skip_serializing_if = "Option::is_none")]
    pub(crate) suspend_time: Option<i64>,
    #[serde(rename = "ps", default, skip_serializing_if = "Option::is_none")]
    pub(crate) pre_suspend: Option<i64>,
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub(crate) restarts: Option<u32>,
    #[serde(rename = "rt", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) returned: bool,
    #[serde(rename = "rp", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) possibly_returned: bool,
    #[serde(rename = "h", default)]
    pub(crate) held: bool,
    #[serde(rename = "c")]
    pub(crate) class: ReasonClass,
    #[serde(rename = "o")]
    pub(crate) owner: Owner,
    /// `Job` of the events in base64.
    #[serde(rename = "j")]
    pub(crate) job: String,
}

/// A run that is not published yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StoredRun {
    #[serde(rename = "o", default)]
    pub(crate) owner: Owner,
    /// How long accounting was waited for, in seconds.
    #[serde(rename = "w", default)]
    pub(crate) waited: u64,
}
