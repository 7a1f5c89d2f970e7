//! What explains the scheduler's decisions: who runs, limits with their use, reservations, licenses, priorities, backfill.

use std::collections::BTreeMap;

use slurm_types::{Tres, UnixTime};

/// A job that holds an allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunningRow {
    /// The record's own id.
    pub job_id: u32,
    /// Slurm's id form for people: `123_4`.
    pub display_id: String,
    /// Owner.
    pub user: String,
    /// Account charged.
    pub account: String,
    /// Quality of service.
    pub qos: String,
    /// Partition.
    pub partition: String,
    /// State as squeue prints it: a flag such as `CONFIGURING` in place of the base state.
    pub state: String,
    /// Start of the allocation.
    pub start: Option<UnixTime>,
    /// End by its time limit.
    pub end: Option<UnixTime>,
    /// Allocated resources.
    pub tres: Tres,
    /// Nodes as a host list.
    pub nodes: String,
    /// Licenses as requested: `matlab:2`.
    pub licenses: String,
    /// Reservation. Empty if none.
    pub reservation: String,
}

/// Limits of QOS and associations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Parent of each account; empty for the root.
    pub accounts: BTreeMap<String, String>,
    /// Limits that have a value.
    pub limits: Vec<LimitRecord>,
}

/// A limit that has a value. It is one of a QOS if `qos` is set, else one of an association.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitRecord {
    /// QOS that sets it.
    pub qos: String,
    /// Account of the association, or the account whose use is meant.
    pub account: String,
    /// User of the association, or the user whose use is meant.
    pub user: String,
    /// Partition of the association.
    pub partition: String,
    /// Name as in the reason table: `GrpTRES`, `MaxJobsPerUser`, …
    pub limit: &'static str,
    /// Resource: `cpu`, `gres/gpu`. Empty if none.
    pub tres: String,
    /// Value. Memory in MiB, times in minutes.
    pub value: u64,
    /// Use; `None` for limits of a single job.
    pub used: Option<u64>,
}

/// A reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationRecord {
    /// Name.
    pub name: String,
    /// Begin.
    pub start: Option<UnixTime>,
    /// End.
    pub end: Option<UnixTime>,
    /// Nodes as a host list.
    pub nodes: String,
    /// Flags: `MAINT`, `SPEC_NODES`.
    pub flags: Vec<String>,
    /// Users that may use it.
    pub users: Vec<String>,
    /// Accounts that may use it.
    pub accounts: Vec<String>,
    /// Licenses that it reserves.
    pub licenses: String,
    /// `ACTIVE` or `INACTIVE`.
    pub state: String,
}

/// A license.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LicenseRecord {
    /// Name.
    pub name: String,
    /// How many there are.
    pub total: u64,
    /// How many are in use.
    pub used: u64,
    /// How many are kept for reservations.
    pub reserved: u64,
}

/// The priority of a pending job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityRow {
    /// Its id.
    pub job_id: u32,
    /// Weighted factors that are not 0, by name.
    pub factors: Vec<(&'static str, i64)>,
}

/// Backfill's last cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackfillStats {
    /// When it ran; `None` if it has not run since slurmctld started.
    pub last_cycle: Option<UnixTime>,
    /// Jobs that it considered.
    pub last_depth: u32,
    /// Jobs that were pending then.
    pub queue_length: u32,
}
