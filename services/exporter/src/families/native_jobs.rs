//! Jobs in slurmctld's words. What counts in which metric is as in slurmctld 26.05: a pending array counts its tasks, all else counts records.

use slurm_types::{JobBaseState, JobFlag};

use crate::domain::jobs::JobGroup;

/// Names after `jobs_`, with their help. In the order of [`JobNumbers`].
pub const NAMES: [(&str, &str); 29] = [
    ("bootfail", "Jobs in state BOOT_FAIL"),
    ("cancelled", "Jobs in state CANCELLED"),
    ("completed", "Jobs in state COMPLETED"),
    ("completing", "Jobs with flag COMPLETING"),
    ("configuring", "Jobs with flag CONFIGURING"),
    ("cpus_alloc", "CPUs allocated to jobs"),
    ("deadline", "Jobs in state DEADLINE"),
    ("expediting", "Jobs with flag EXPEDITING"),
    ("failed", "Jobs in state FAILED"),
    ("fed_requeued", "Jobs with flag REQUEUE_FED"),
    ("finished", "Jobs that ended"),
    ("gpus_alloc", "GPUs allocated to jobs"),
    ("hold", "Pending jobs that are held"),
    ("memory_alloc", "MiB of memory allocated to jobs"),
    ("node_failed", "Jobs in state NODE_FAIL"),
    ("nodes_alloc", "Nodes allocated to jobs"),
    ("outofmemory", "Jobs in state OUT_OF_MEMORY"),
    ("pending", "Jobs in state PENDING"),
    ("powerup_node", "Jobs with flag POWER_UP_NODE"),
    ("preempted", "Jobs in state PREEMPTED"),
    ("requeued", "Jobs with flag REQUEUED"),
    ("resizing", "Jobs with flag RESIZING"),
    ("revoked", "Jobs with flag REVOKED"),
    ("running", "Jobs in state RUNNING"),
    ("signaling", "Jobs with flag SIGNALING"),
    ("stageout", "Jobs with flag STAGE_OUT"),
    ("started", "Jobs that have started"),
    ("suspended", "Jobs in state SUSPENDED"),
    ("timeout", "Jobs in state TIMEOUT"),
];

const CPUS_ALLOC: &str = "cpus_alloc";
const GPUS_ALLOC: &str = "gpus_alloc";
const MEMORY_ALLOC: &str = "memory_alloc";
const NODES_ALLOC: &str = "nodes_alloc";

/// Numbers of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobNumbers {
    numbers: [u64; NAMES.len()],
    /// Records.
    pub records: u64,
    /// Jobs and array tasks.
    pub tasks: u64,
    /// Records that did not end.
    pub live: u64,
    /// Nodes of the largest pending record.
    pub max_nodes: u32,
    /// The same without held ones.
    pub max_nodes_not_held: u32,
    /// Pending records: the remaining tasks of an array are one.
    pub pending_records: u64,
    /// Pending records that are held.
    pub held_records: u64,
    /// Waiting for a partition's node limit.
    pub waits_for_node_limit: u64,
}

impl JobNumbers {
    /// The numbers with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let named = NAMES.iter().zip(self.numbers);
        named.map(|((name, help), number)| (*name, *help, number))
    }

    /// The number of this name. 0 if there is none.
    pub fn of(&self, name: &str) -> u64 {
        let found = self.iter().find(|(known, ..)| *known == name);
        found.map_or(0, |(.., number)| number)
    }

    /// Adds the jobs of a cell.
    pub fn add(&mut self, cell: &JobGroup) {
        let counted = &cell.counted;
        let (records, tasks) = (counted.jobs, counted.tasks);
        self.records += records;
        self.tasks += tasks;
        let base = cell.state.base;
        let is_completing = cell.state.has(JobFlag::Completing);
        let has_ended = base.is_some_and(JobBaseState::finished);
        if !has_ended || is_completing {
            self.live += records;
        }
        if has_ended {
            self.count("finished", records);
        }
        if base.is_some_and(|base| base != JobBaseState::Pending) {
            self.count("started", records);
        }
        if let Some(base) = base {
            self.count_base(base, cell);
        }
        for (flag, name) in [
            (JobFlag::Completing, "completing"),
            (JobFlag::Configuring, "configuring"),
            (JobFlag::Expediting, "expediting"),
            (JobFlag::RequeueFed, "fed_requeued"),
            (JobFlag::PowerUpNode, "powerup_node"),
            (JobFlag::Requeued, "requeued"),
            (JobFlag::Resizing, "resizing"),
            (JobFlag::Revoked, "revoked"),
            (JobFlag::Signaling, "signaling"),
            (JobFlag::StageOut, "stageout"),
        ] {
            if cell.state.has(flag) {
                self.count(name, records);
            }
        }
    }

    fn count_base(&mut self, base: JobBaseState, cell: &JobGroup) {
        let (records, tasks) = (cell.counted.jobs, cell.counted.tasks);
        let name = match base {
            JobBaseState::Pending => {
                self.max_nodes = self.max_nodes.max(cell.counted.max_nodes);
                self.pending_records += records;
                if cell.is_held() {
                    self.held_records += records;
                    self.count("hold", tasks);
                } else {
                    self.max_nodes_not_held = self.max_nodes_not_held.max(cell.counted.max_nodes);
                }
                if cell.counted.reason == "PartitionNodeLimit" {
                    self.waits_for_node_limit += records;
                }
                return self.count("pending", tasks);
            }
            JobBaseState::Running | JobBaseState::Suspended => {
                self.count(CPUS_ALLOC, cell.counted.cpus);
                self.count(NODES_ALLOC, cell.counted.nodes);
                match base {
                    JobBaseState::Running => "running",
                    _ => "suspended",
                }
            }
            JobBaseState::Completed => "completed",
            JobBaseState::Cancelled => "cancelled",
            JobBaseState::Failed => "failed",
            JobBaseState::Timeout => "timeout",
            JobBaseState::NodeFail => "node_failed",
            JobBaseState::Preempted => "preempted",
            JobBaseState::BootFail => "bootfail",
            JobBaseState::Deadline => "deadline",
            JobBaseState::OutOfMemory => "outofmemory",
        };
        self.count(name, records);
    }

    /// Adds what running jobs hold beyond CPUs and nodes. Memory is in MiB, as in slurmctld 26.05, whose help says bytes.
    pub fn hold(&mut self, gpus: u64, memory_mib: u64) {
        self.count(GPUS_ALLOC, gpus);
        self.count(MEMORY_ALLOC, memory_mib);
    }

    /// Adds the numbers of others.
    pub fn add_all(&mut self, other: &Self) {
        for (number, more) in self.numbers.iter_mut().zip(other.numbers) {
            *number += more;
        }
        self.records += other.records;
        self.tasks += other.tasks;
        self.live += other.live;
        self.pending_records += other.pending_records;
        self.held_records += other.held_records;
        self.max_nodes = self.max_nodes.max(other.max_nodes);
        self.max_nodes_not_held = self.max_nodes_not_held.max(other.max_nodes_not_held);
        self.waits_for_node_limit += other.waits_for_node_limit;
    }

    fn count(&mut self, name: &str, number: u64) {
        if let Some(place) = NAMES.iter().position(|(known, _)| *known == name) {
            self.numbers[place] += number;
        }
    }
}
