//! Evidence carried by a doorbell. Of all hooks, only `jobcomp/script` knows the final state of a run and its submit time, so only its
//! environment counts as a record. The other hooks only name the job to read.

use mesh_events::RunKey;
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::proto::mesh::job::v1::{ArrayInfo, HetInfo, Job};
use slurm_client::{CompletionRecord, ReadEvidenceError};
use slurm_types::{JobBaseState, JobFlag, JobId, ReasonClass, TimeLimit, UnixTime};

use super::observation::{EntityKind, Observation, Owner, Record, Returned};
use super::payload;

/// Decoded content of a doorbell.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Slurm's id of the job to read.
    pub job_id: u32,
    /// Name of the hook.
    pub hook: String,
    /// End of a run, if the hook reports one.
    pub end: Option<Box<Observation>>,
}

/// Why a doorbell cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EvidenceError {
    /// It names no job.
    #[error("doorbell of {hook} has no job id; set SLURM_JOB_ID or JOBID")]
    NoJob {
        /// Name of the hook.
        hook: String,
    },
    /// It comes from another cluster.
    #[error(
        "doorbell of {hook} is from cluster {found:?}, expected {expected:?}; give each cluster its own mesh.cluster"
    )]
    OtherCluster {
        /// Name of the hook.
        hook: String,
        /// Cluster of the doorbell.
        found: String,
        /// Cluster of this ingest.
        expected: String,
    },
    /// Its jobcomp record is unreadable.
    #[error("doorbell of {hook} cannot be read")]
    Unreadable {
        /// Name of the hook.
        hook: String,
        /// Cause.
        #[source]
        source: ReadEvidenceError,
    },
}

impl Evidence {
    /// Decodes a doorbell.
    ///
    /// # Errors
    /// If it names no job or another cluster, or if its jobcomp record cannot be read.
    pub fn read(cluster: &str, doorbell: &Doorbell) -> Result<Self, EvidenceError> {
        let hook = doorbell.hook.clone();
        if doorbell.cluster != cluster {
            return Err(EvidenceError::OtherCluster {
                hook,
                found: doorbell.cluster.clone(),
                expected: cluster.to_owned(),
            });
        }
        let job_id = JobId::new(doorbell.job_id)
            .ok_or_else(|| EvidenceError::NoJob { hook: hook.clone() })?
            .get();
        let mut end = None;
        if is_jobcomp(&hook) {
            let record = CompletionRecord::from_env(&doorbell.environment).map_err(|source| {
                EvidenceError::Unreadable {
                    hook: hook.clone(),
                    source,
                }
            })?;
            end = ended_run(cluster, job_id, &record).map(Box::new);
        }
        Ok(Self { job_id, hook, end })
    }
}

impl Observation {
    /// Completes the controller's record with the end that jobcomp reports.
    pub fn completed_by(mut self, evidence: &Self, nodes_agree: bool) -> Self {
        self.base = evidence.base;
        self.requeued = evidence.requeued;
        self.ended_by_hook = true;
        self.end = evidence.end.or(self.end);
        if evidence.allocated {
            // The controller's record has no nodes once all of them are free, and a later start after a requeue.
            self.allocated = true;
            self.nodes_at_end = nodes_agree;
            self.start = evidence.start.or(self.start);
        }
        payload::complete(&mut self.job, evidence, nodes_agree);
        self
    }
}

/// Whether a hook is `jobcomp/script`, in any spelling.
fn is_jobcomp(hook: &str) -> bool {
    hook.eq_ignore_ascii_case("jobcomp") || hook.eq_ignore_ascii_case("jobcompscript")
}

/// The end of a run as slurmctld passes it to `jobcomp/script`; `None` if the record has none. jobcomp is also called for a resize.
fn ended_run(cluster: &str, raw_id: u32, record: &CompletionRecord) -> Option<Observation> {
    let requeued = record.requeued();
    let base = record
        .state
        .base
        .filter(|base| base.finished() && !requeued);
    let revoked = record.state.has(JobFlag::Revoked);
    if base.is_none() && !requeued && !revoked {
        return None;
    }
    let submit = record.submit?;
    let array = record.array_job_id.map(JobId::get);
    let allocated = record.was_allocated();
    // As in `RunIdentity::of`: a record with the array's own id and without nodes is the remainder of the array.
    let is_remainder = array == Some(raw_id) && !allocated;
    let task = array.and(record.array_task_id).filter(|_| !is_remainder);
    let run = RunKey {
        cluster: cluster.to_owned(),
        job_id: array.unwrap_or(raw_id),
        task_id: task,
        submit_time: submit.as_secs(),
        attempt: 0,
    };
    let start = record.start.filter(|_| allocated);
    let job = Job {
        job_id: raw_id,
        run: run.entity_key(),
        array: array.map(|job_id| ArrayInfo {
            job_id,
            task_id: task,
            ..ArrayInfo::default()
        }),
        het: record
            .het_job_id
            .zip(record.het_job_offset)
            .map(|(leader, offset)| HetInfo {
                job_id: leader.get(),
                offset,
            }),
        name: record.name.clone(),
        partition: record.partition.clone(),
        qos: record.qos.clone(),
        reservation: record.reservation.clone(),
        state: base.unwrap_or(JobBaseState::Pending).name().to_owned(),
        submit_time: payload::time(record.submit),
        eligible_time: payload::time(record.eligible),
        start_time: payload::time(start),
        end_time: payload::time(record.end),
        time_limit_minutes: record.time_limit.and_then(TimeLimit::minutes),
        nodes: record.nodes.clone(),
        node_count: record.node_count.unwrap_or_default(),
        exit_code: record.exit_code.map(payload::exit_code),
        derived_exit_code: record.derived_exit_code.map(payload::exit_code),
        dependency: record.dependency.clone(),
        features: record.constraints.clone(),
        work_dir: record.work_dir.clone(),
        std_out: record.stdout.clone(),
        std_err: record.stderr.clone(),
        group: record.group.clone(),
        ..Job::default()
    };
    let job = Job {
        display_id: payload::display_id(&job),
        ..job
    };
    Some(Observation {
        run,
        raw_id,
        entity: match (array, task) {
            (None, _) => EntityKind::Job,
            (Some(_), Some(_)) => EntityKind::Task,
            (Some(_), None) => EntityKind::Array,
        },
        tasks: None,
        record: Record::JobComp,
        base,
        completing: false,
        configuring: false,
        revoked,
        requeued,
        allocated,
        nodes_at_end: allocated,
        ended_by_hook: true,
        end_is_inferred: false,
        own_end: None,
        exit_code: record.exit_code,
        start: start.map(UnixTime::as_secs),
        end: record.end.map(UnixTime::as_secs),
        suspend_time: None,
        pre_suspend: None,
        resizes: Vec::new(),
        parts: Vec::new(),
        restarts: None,
        returned: Returned::No,
        held: false,
        class: ReasonClass::NotEvaluated,
        cancelled_by: None,
        owner: Owner {
            user: record.user.clone(),
            uid: record.uid,
            account: record.account.clone(),
        },
        job,
    })
}
