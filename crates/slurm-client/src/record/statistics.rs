//! Statistics of slurmctld (`sdiag`) and fairshare (`sshare`).

use std::collections::BTreeMap;

/// Every figure by the name that slurmrestd gives it. Means and sums that only slurmrestd has are absent over commands.
pub const FIGURES: [&str; 59] = [
    "req_time",
    "req_time_start",
    "server_thread_count",
    "agent_queue_size",
    "agent_count",
    "agent_thread_count",
    "dbd_agent_queue_size",
    "gettimeofday_latency",
    "jobs_submitted",
    "jobs_started",
    "jobs_completed",
    "jobs_canceled",
    "jobs_failed",
    "job_states_ts",
    "jobs_pending",
    "jobs_running",
    "schedule_cycle_last",
    "schedule_cycle_max",
    "schedule_cycle_total",
    "schedule_cycle_mean",
    "schedule_cycle_mean_depth",
    "schedule_cycle_per_minute",
    "schedule_cycle_depth",
    "schedule_cycle_sum",
    "schedule_queue_length",
    "schedule_exit.end_job_queue",
    "schedule_exit.default_queue_depth",
    "schedule_exit.max_job_start",
    "schedule_exit.licenses",
    "schedule_exit.max_rpc_cnt",
    "schedule_exit.max_sched_time",
    "bf_active",
    "bf_backfilled_jobs",
    "bf_last_backfilled_jobs",
    "bf_backfilled_het_jobs",
    "bf_cycle_counter",
    "bf_cycle_last",
    "bf_cycle_max",
    "bf_cycle_mean",
    "bf_cycle_sum",
    "bf_when_last_cycle",
    "bf_last_depth",
    "bf_last_depth_try",
    "bf_depth_mean",
    "bf_depth_mean_try",
    "bf_depth_sum",
    "bf_depth_try_sum",
    "bf_queue_len",
    "bf_queue_len_mean",
    "bf_queue_len_sum",
    "bf_table_size",
    "bf_table_size_mean",
    "bf_table_size_sum",
    "bf_exit.end_job_queue",
    "bf_exit.bf_max_job_start",
    "bf_exit.bf_max_job_test",
    "bf_exit.state_changed",
    "bf_exit.bf_node_space_size",
    "bf_exit.bf_max_time",
];

/// What slurmctld counts about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Numbers, by a name of [`FIGURES`]. Times are in microseconds, points in time in Unix seconds.
    pub figures: BTreeMap<&'static str, i64>,
    /// Remote procedure calls by message type.
    pub calls_by_type: Vec<CallStats>,
    /// Remote procedure calls by user.
    pub calls_by_user: Vec<CallStats>,
}

/// Remote procedure calls of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStats {
    /// Message type or user.
    pub name: String,
    /// Number.
    pub count: u64,
    /// Average time of one, in microseconds.
    pub average_micros: u64,
    /// Total time, in microseconds.
    pub total_micros: u64,
}

/// Fairshare of an account, or of a user in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShareRecord {
    /// Account.
    pub account: String,
    /// User. Empty for the account itself.
    pub user: String,
    /// Shares as configured. 0 if inherited.
    pub raw_shares: u64,
    /// Its part of the shares.
    pub norm_shares: f64,
    /// Decayed use.
    pub raw_usage: u64,
    /// Its part of the use.
    pub norm_usage: f64,
    /// Factor. `None` if Slurm prints none, which Fair Tree does for accounts.
    pub fairshare: Option<f64>,
    /// Shares divided by the use among its siblings. `None` if Slurm prints none, or if nothing was used.
    pub level_fairshare: Option<f64>,
}
