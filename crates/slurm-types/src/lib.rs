//! Slurm's vocabulary as types: job and node states, ids, resources, host lists, exit codes and reasons.
//!
//! Pure: no IO, no async, no clock. Every parser here accepts the text of Slurm 22.05 to 26.05 and survives any other. Unknown parts are
//! stored as they are; nothing is guessed. `slurm-client` obtains the text.

pub mod data;
mod exit_code;
mod hostlist;
mod job_id;
mod job_state;
mod lifecycle;
pub mod no_val;
mod node_reason;
mod node_state;
pub mod reasons;
mod submit_key;
mod task_set;
mod time;
mod tres;

pub use exit_code::{ExitCode, ParseExitCodeError};
pub use hostlist::{HostList, HostListError, MAX_HOSTS};
pub use job_id::{JobId, JobRef, ParseJobRefError};
pub use job_state::{JobBaseState, JobFlag, JobFlags, JobState};
pub use lifecycle::{Lifecycle, ProvisioningStage};
pub use node_reason::NodeReason;
pub use node_state::{NodeBaseState, NodeFlag, NodeFlags, NodeState};
pub use reasons::{Actor, Reason, ReasonClass};
pub use submit_key::{ParseKeyError, SubmitKey};
pub use task_set::{MAX_TASK, ParseTaskSetError, TaskSet};
pub use time::{TimeLimit, UnixTime, parse_duration_secs};
pub use tres::{ParseTresError, Tres, parse_mem_mib};
