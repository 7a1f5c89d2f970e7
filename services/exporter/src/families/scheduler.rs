//! Statistics of slurmctld (`sdiag`) in the names of several families. Times are in microseconds in all of them, whatever the name says.

use mesh_events::proto::mesh::metrics::v1::Calls;

use super::{Inputs, float};
use crate::domain::exposition::{Exposition, Kind};

/// Name of a metric, and the figure that it shows.
type Names = [(&'static str, &'static str)];

/// `/metrics/scheduler` of slurmctld 25.11 and newer.
const NATIVE: &Names = &[
    ("slurm_agent_cnt", "agent_count"),
    ("slurm_agent_queue_size", "agent_queue_size"),
    ("slurm_agent_thread_cnt", "agent_thread_count"),
    ("slurm_bf_depth_mean", "bf_depth_mean"),
    ("slurm_bf_mean_cycle", "bf_cycle_mean"),
    ("slurm_bf_mean_table_sz", "bf_table_size_mean"),
    ("slurm_bf_queue_len_mean", "bf_queue_len_mean"),
    ("slurm_bf_try_depth_mean", "bf_depth_mean_try"),
    ("slurm_backfilled_het_jobs", "bf_backfilled_het_jobs"),
    ("slurm_backfilled_jobs", "bf_backfilled_jobs"),
    ("slurm_bf_active", "bf_active"),
    ("slurm_bf_cycle_cnt", "bf_cycle_counter"),
    ("slurm_bf_cycle_last", "bf_cycle_last"),
    ("slurm_bf_cycle_max", "bf_cycle_max"),
    ("slurm_bf_cycle_tot", "bf_cycle_sum"),
    ("slurm_bf_depth_tot", "bf_depth_sum"),
    ("slurm_bf_depth_try_tot", "bf_depth_try_sum"),
    ("slurm_bf_last_depth", "bf_last_depth"),
    ("slurm_bf_last_depth_try", "bf_last_depth_try"),
    ("slurm_bf_queue_len", "bf_queue_len"),
    ("slurm_bf_queue_len_tot", "bf_queue_len_sum"),
    ("slurm_bf_table_size", "bf_table_size"),
    ("slurm_bf_table_size_tot", "bf_table_size_sum"),
    ("slurm_bf_when_last_cycle", "bf_when_last_cycle"),
    ("slurm_sdiag_jobs_canceled", "jobs_canceled"),
    ("slurm_sdiag_jobs_completed", "jobs_completed"),
    ("slurm_sdiag_jobs_failed", "jobs_failed"),
    ("slurm_sdiag_jobs_pending", "jobs_pending"),
    ("slurm_sdiag_jobs_running", "jobs_running"),
    ("slurm_sdiag_jobs_started", "jobs_started"),
    ("slurm_sdiag_jobs_submitted", "jobs_submitted"),
    ("slurm_sdiag_job_states_ts", "job_states_ts"),
    ("slurm_last_backfilled_jobs", "bf_last_backfilled_jobs"),
    ("slurm_sdiag_latency", "gettimeofday_latency"),
    ("slurm_schedule_cycle_cnt", "schedule_cycle_total"),
    ("slurm_schedule_cycle_depth", "schedule_cycle_depth"),
    ("slurm_schedule_cycle_last", "schedule_cycle_last"),
    ("slurm_schedule_cycle_max", "schedule_cycle_max"),
    ("slurm_schedule_cycle_tot", "schedule_cycle_sum"),
    ("slurm_schedule_queue_len", "schedule_queue_length"),
    ("slurm_sched_exit_end", "schedule_exit.end_job_queue"),
    (
        "slurm_sched_exit_max_depth",
        "schedule_exit.default_queue_depth",
    ),
    (
        "slurm_sched_exit_max_job_start",
        "schedule_exit.max_job_start",
    ),
    ("slurm_sched_exit_lic", "schedule_exit.licenses"),
    ("slurm_sched_exit_rpc_cnt", "schedule_exit.max_rpc_cnt"),
    ("slurm_sched_exit_timeout", "schedule_exit.max_sched_time"),
    ("slurm_bf_exit_end", "bf_exit.end_job_queue"),
    ("slurm_bf_exit_max_job_start", "bf_exit.bf_max_job_start"),
    ("slurm_bf_exit_max_job_test", "bf_exit.bf_max_job_test"),
    ("slurm_bf_exit_state_changed", "bf_exit.state_changed"),
    ("slurm_bf_exit_table_limit", "bf_exit.bf_node_space_size"),
    ("slurm_bf_exit_timeout", "bf_exit.bf_max_time"),
    ("slurm_sched_mean_cycle", "schedule_cycle_mean"),
    ("slurm_sched_mean_depth_cycle", "schedule_cycle_mean_depth"),
    ("slurm_server_thread_cnt", "server_thread_count"),
    ("slurm_slurmdbd_queue_size", "dbd_agent_queue_size"),
    ("slurm_last_proc_req_start", "req_time_start"),
    ("slurm_sched_stats_timestamp", "req_time"),
];

/// prometheus-slurm-exporter and its descendants.
const VPENSO: &Names = &[
    ("slurm_scheduler_threads", "server_thread_count"),
    ("slurm_scheduler_queue_size", "agent_queue_size"),
    ("slurm_scheduler_dbd_queue_size", "dbd_agent_queue_size"),
    ("slurm_scheduler_last_cycle", "schedule_cycle_last"),
    ("slurm_scheduler_mean_cycle", "schedule_cycle_mean"),
    (
        "slurm_scheduler_cycle_per_minute",
        "schedule_cycle_per_minute",
    ),
    ("slurm_scheduler_backfill_last_cycle", "bf_cycle_last"),
    ("slurm_scheduler_backfill_mean_cycle", "bf_cycle_mean"),
    ("slurm_scheduler_backfill_depth_mean", "bf_depth_mean"),
    (
        "slurm_scheduler_backfilled_jobs_since_start_total",
        "bf_backfilled_jobs",
    ),
    (
        "slurm_scheduler_backfilled_jobs_since_cycle_total",
        "bf_last_backfilled_jobs",
    ),
    (
        "slurm_scheduler_backfilled_heterogeneous_total",
        "bf_backfilled_het_jobs",
    ),
];

/// What SckyzO adds.
const SCKYZO: &Names = &[
    ("slurm_scheduler_jobs_submitted", "jobs_submitted"),
    ("slurm_scheduler_jobs_started", "jobs_started"),
    ("slurm_scheduler_jobs_completed", "jobs_completed"),
    ("slurm_scheduler_jobs_canceled", "jobs_canceled"),
    ("slurm_scheduler_jobs_failed", "jobs_failed"),
];

const RIVOSINC: &Names = &[
    ("slurm_daemon_thread_count", "server_thread_count"),
    ("slurm_dbd_agent_queue_size", "dbd_agent_queue_size"),
    ("slurm_backfill_job_count", "bf_backfilled_jobs"),
    ("slurm_backfill_cycle_count", "bf_cycle_counter"),
    ("slurm_backfill_cycle_counter", "bf_cycle_counter"),
    ("slurm_backfill_last_depth", "bf_last_depth"),
    ("slurm_backfill_last_depth_try_sched", "bf_last_depth_try"),
];

const SOPERATOR: &Names = &[(
    "slurm_controller_server_thread_count",
    "server_thread_count",
)];

/// Slinky. Names after `slurm_scheduler_` and `slurm_bfscheduler_`.
const SLINKY: &Names = &[
    ("cycle_depth_total", "schedule_cycle_depth"),
    ("cycle_last_seconds", "schedule_cycle_last"),
    ("cycle_max_seconds", "schedule_cycle_max"),
    ("cycle_mean_seconds", "schedule_cycle_mean"),
    ("cycle_depth_mean_total", "schedule_cycle_mean_depth"),
    ("cycle_perminute_total", "schedule_cycle_per_minute"),
    ("cycle_sum_seconds_total", "schedule_cycle_sum"),
    ("cycle_total", "schedule_cycle_total"),
    ("queue_total", "schedule_queue_length"),
    (
        "defaultqueuedepth_total",
        "schedule_exit.default_queue_depth",
    ),
    ("endjobqueue_total", "schedule_exit.end_job_queue"),
    ("licenses_total", "schedule_exit.licenses"),
    ("maxjobstart_total", "schedule_exit.max_job_start"),
    ("maxrpc_total", "schedule_exit.max_rpc_cnt"),
    ("maxschedtime_total", "schedule_exit.max_sched_time"),
    ("jobs_stats_timestamp", "job_states_ts"),
    ("jobs_canceled_total", "jobs_canceled"),
    ("jobs_completed_total", "jobs_completed"),
    ("jobs_failed_total", "jobs_failed"),
    ("jobs_pending_total", "jobs_pending"),
    ("jobs_running_total", "jobs_running"),
    ("jobs_started_total", "jobs_started"),
    ("jobs_submitted_total", "jobs_submitted"),
    ("agent_total", "agent_count"),
    ("agent_queue_total", "agent_queue_size"),
    ("agent_thread_total", "agent_thread_count"),
    ("thread_total", "server_thread_count"),
    ("dbdagentqueue_total", "dbd_agent_queue_size"),
];

const SLINKY_BACKFILL: &Names = &[
    ("active_bool", "bf_active"),
    ("backfilledhetjobs_total", "bf_backfilled_het_jobs"),
    ("backfilledjobs_total", "bf_backfilled_jobs"),
    ("cycle_total", "bf_cycle_counter"),
    ("cycle_seconds", "bf_cycle_last"),
    ("cycle_max_seconds", "bf_cycle_max"),
    ("cycle_mean_seconds", "bf_cycle_mean"),
    ("cycle_sum_seconds", "bf_cycle_sum"),
    ("depth_mean_total", "bf_depth_mean"),
    ("depth_try_total", "bf_depth_mean_try"),
    ("depth_sum_total", "bf_depth_sum"),
    ("depth_trysum_total", "bf_depth_try_sum"),
    ("lastbackfilledjobs_total", "bf_last_backfilled_jobs"),
    ("lastdepth_total", "bf_last_depth"),
    ("lastdepthtry_total", "bf_last_depth_try"),
    ("queue_total", "bf_queue_len"),
    ("queue_mean_total", "bf_queue_len_mean"),
    ("queue_sum_total", "bf_queue_len_sum"),
    ("table_total", "bf_table_size"),
    ("tablemean_total", "bf_table_size_mean"),
    ("tablesum_total", "bf_table_size_sum"),
    ("lastcycle_timestamp", "bf_when_last_cycle"),
    ("maxjobstart_total", "bf_exit.bf_max_job_start"),
    ("maxjobtest_total", "bf_exit.bf_max_job_test"),
    ("maxtime_total", "bf_exit.bf_max_time"),
    ("nodespace_total", "bf_exit.bf_node_space_size"),
    ("endjobqueue_total", "bf_exit.end_job_queue"),
    ("statechanged_total", "bf_exit.state_changed"),
];

/// slurmctld's page `scheduler`.
pub fn native(inputs: &Inputs, page: &mut Exposition) -> usize {
    figures(inputs, page, "", NATIVE);
    0
}

/// vpenso's figures.
pub fn vpenso(inputs: &Inputs, page: &mut Exposition) {
    figures(inputs, page, "", VPENSO);
}

/// SckyzO's figures and calls.
pub fn sckyzo(inputs: &Inputs, page: &mut Exposition) {
    figures(inputs, page, "", VPENSO);
    figures(inputs, page, "", SCKYZO);
    for (list, label, name) in [
        (
            &inputs.scheduler.calls_by_type,
            "operation",
            "slurm_rpc_stats",
        ),
        (
            &inputs.scheduler.calls_by_user,
            "user",
            "slurm_user_rpc_stats",
        ),
    ] {
        calls(page, name, list, label, Kind::Gauge, |calls| {
            Some(float(calls.count))
        });
        let average = format!("{name}_avg_time");
        calls(page, &average, list, label, Kind::Gauge, |calls| {
            Some(float(calls.average_micros))
        });
        let total = format!("{name}_total_time");
        calls(page, &total, list, label, Kind::Gauge, |calls| {
            Some(float(calls.total_micros))
        });
    }
}

/// rivosinc's figures and calls. As in the original, a number of 0 is left out.
pub fn rivosinc(inputs: &Inputs, page: &mut Exposition) {
    figures(inputs, page, "", RIVOSINC);
    let positive = |number: u64| (number > 0).then(|| float(number));
    let scheduler = &inputs.scheduler;
    let (by_type, by_user) = (&scheduler.calls_by_type, &scheduler.calls_by_user);
    calls(
        page,
        "slurm_rpc_user_count",
        by_user,
        "user",
        Kind::Gauge,
        |calls| positive(calls.count),
    );
    calls(
        page,
        "slurm_rpc_user_total_time",
        by_user,
        "user",
        Kind::Gauge,
        |calls| positive(calls.total_micros),
    );
    for (name, value) in [
        (
            "slurm_rpc_msg_type_count",
            (|calls| calls.count) as fn(&Calls) -> u64,
        ),
        ("slurm_rpc_msg_type_avg_time", |calls| calls.average_micros),
        ("slurm_rpc_msg_type_total_time", |calls| calls.total_micros),
    ] {
        calls(page, name, by_type, "type", Kind::Gauge, |calls| {
            positive(value(calls))
        });
    }
}

/// Slinky's figures.
pub fn slinky(inputs: &Inputs, page: &mut Exposition) {
    figures(inputs, page, "slurm_scheduler_", SLINKY);
    figures(inputs, page, "slurm_bfscheduler_", SLINKY_BACKFILL);
}

/// soperator's figures and calls, in seconds. Ids of users are not on the bus.
pub fn soperator(inputs: &Inputs, page: &mut Exposition) {
    const SECONDS: f64 = 1e6;
    figures(inputs, page, "", SOPERATOR);
    let scheduler = &inputs.scheduler;
    for (list, label, prefix) in [
        (&scheduler.calls_by_type, "message_type", "rpc"),
        (&scheduler.calls_by_user, "user", "rpc_user"),
    ] {
        let name = format!("slurm_controller_{prefix}_calls_total");
        calls(page, &name, list, label, Kind::Counter, |calls| {
            Some(float(calls.count))
        });
        let name = format!("slurm_controller_{prefix}_duration_seconds_total");
        calls(page, &name, list, label, Kind::Counter, |calls| {
            Some(float(calls.total_micros) / SECONDS)
        });
    }
}

fn figures(inputs: &Inputs, page: &mut Exposition, prefix: &str, names: &Names) {
    for (name, figure) in names {
        if let Some(value) = inputs.scheduler.figure(figure) {
            let name = format!("{prefix}{name}");
            let help = format!("{figure} of slurmctld's statistics");
            // Slinky's are gauges whatever their names say.
            let kind = match prefix.is_empty() && name.ends_with("_total") {
                true => Kind::Counter,
                false => Kind::Gauge,
            };
            page.metric(&name, kind, &help);
            let value = u64::try_from(value).unwrap_or_default();
            page.sample(&name, &[], float(value));
        }
    }
}

fn calls(
    page: &mut Exposition,
    name: &str,
    list: &[Calls],
    label: &str,
    kind: Kind,
    value: impl Fn(&Calls) -> Option<f64>,
) {
    page.metric(name, kind, "Remote procedure calls to slurmctld");
    for calls in list {
        if let Some(value) = value(calls) {
            page.sample(name, &[(label, &calls.name)], value);
        }
    }
}
