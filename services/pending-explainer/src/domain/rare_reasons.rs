//! Sentences for reasons that are rare on pending jobs: end states, special hardware, Slurm's internal errors, obsolete platforms.

use super::pending_job::PendingJob;
use super::reason_text::{ReasonText, nodes, time_limit, with_advice};

/// Sentences for a reason. `None` if it is not one of these.
pub fn reason_text(reason: &str, waiting: &PendingJob<'_>) -> Option<ReasonText> {
    let job = waiting.job;
    match reason {
        "NvidiaImexChannels" => with_advice(
            "All channels for multi-node NVLink jobs (NVIDIA IMEX) are in use.",
            "It starts when such a job ends; an administrator can raise the number of channels.",
        ),
        "MpiPortsBusy" => with_advice(
            "Not enough MPI ports are free on the nodes (MpiParams=ports).",
            "It starts when other jobs on those nodes end; an administrator can widen the range.",
        ),
        "BurstBufferResources" => with_advice(
            "There is no room for it in the burst buffer yet.",
            "It starts when room is given back. Asking for less may help.",
        ),
        "BurstBufferStageIn" => with_advice(
            "Its data is being copied into the burst buffer.",
            "Nothing to do: it starts when the copy is done.",
        ),
        "BurstBufferOperation" => with_advice(
            "An operation of the burst buffer failed, so it is held.",
            "An administrator has to look at the burst buffer before it is released.",
        ),
        "FedJobLock" => with_advice(
            "The clusters of the federation are agreeing on which of them runs it.",
            "Nothing to do. If it takes minutes, its cluster of origin may be out of reach.",
        ),
        "SystemFailure" => with_advice(
            "Slurm met a failure of its own, of a file system or of the network.",
            "An administrator should read the log of slurmctld; the job is usually held until then.",
        ),
        "FrontEndDown" => with_advice(
            "No front-end node is up.",
            "An administrator has to bring one back.",
        ),
        "PowerNotAvail" => with_advice(
            "The power limit of the site leaves no room for it.",
            "It starts when other jobs end and power is free again.",
        ),
        "PowerReserved" => with_advice(
            "The power it needs is kept for a power reservation.",
            "It starts when that reservation ends.",
        ),
        "BlockMaxError" => with_advice(
            "A hardware block of a BlueGene machine has too many errors.",
            "An administrator has to clear them.",
        ),
        "BlockFreeAction" => with_advice(
            "A hardware block of a BlueGene machine is being freed.",
            "Nothing to do: it starts when the block is free.",
        ),
        "NodeDown" => {
            let node = if job.failed_node.is_empty() {
                "a node it ran on".to_owned()
            } else {
                format!("node {}", nodes(&job.failed_node))
            };
            with_advice(
                format!("It ended because {node} failed."),
                "Submit it again; with --requeue Slurm does that by itself.",
            )
        }
        "JobLaunchFailure" => with_advice(
            "It could not be launched: its script, credentials or a file system failed.",
            "Check the path of the script and the working directory. If it is held, release it when they are right.",
        ),
        "NonZeroExitCode" => with_advice(
            "Its script ended with an exit code other than 0.",
            "Look at the end of its output.",
        ),
        "RaisedSignal" => with_advice(
            "Its script was ended by a signal.",
            "Look at the end of its output for what it was doing.",
        ),
        "TimeLimit" => with_advice(
            format!(
                "It was stopped at its time limit ({}), its budget, or the end of its reservation.",
                time_limit(job.time_limit_minutes)
            ),
            "Request more time, or let it save its state and resume from it.",
        ),
        "InactiveLimit" => with_advice(
            "It was stopped because its salloc or srun was inactive for too long (InactiveLimit).",
            "Keep the terminal that started it alive, or use sbatch.",
        ),
        "OutOfMemory" => with_advice(
            "It was stopped because it used more memory than it asked for.",
            "Ask for more memory (--mem), or make it use less.",
        ),
        "DeadLine" => with_advice(
            "It can no longer finish before its --deadline, so Slurm cancelled it.",
            "Submit it again with a later deadline or a shorter time limit.",
        ),
        _ => None,
    }
}
