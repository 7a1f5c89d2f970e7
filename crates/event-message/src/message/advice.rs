//! Causes of ended jobs, and advice.

use mesh_events::EventType;
use mesh_events::proto::mesh::job::v1::Job;

use super::Text;
use crate::text;

/// Why a run ended, for a heading. Contains no text from outside, only numbers.
pub fn cause(kind: EventType, job: &Job) -> String {
    match kind {
        EventType::JobFailed => match &job.exit_code {
            Some(exit) if exit.signal != 0 => format!("ended by signal {}", signal(exit.signal)),
            Some(exit) if exit.code != 0 => format!("exit code {}", exit.code),
            _ => "could not be run".to_owned(),
        },
        EventType::JobTimeout => "time limit reached".to_owned(),
        EventType::JobOutOfMemory => "out of memory".to_owned(),
        EventType::JobNodeFail => "a node failed".to_owned(),
        EventType::JobBootFail => "its nodes could not boot".to_owned(),
        EventType::JobDeadline => "deadline missed".to_owned(),
        EventType::JobPreempted => "preempted by another job".to_owned(),
        EventType::JobCancelled => "cancelled".to_owned(),
        EventType::JobRequeued => "requeued".to_owned(),
        EventType::JobRevoked => "ran on another cluster".to_owned(),
        _ => String::new(),
    }
}

/// Advice on what to try next. Empty if there is none.
pub fn next(kind: EventType, job: &Job) -> Text {
    match kind {
        EventType::JobFailed => failed(job),
        EventType::JobTimeout => {
            let limit = job
                .time_limit_minutes
                .map(|minutes| text::span(i64::from(minutes) * 60));
            let had = limit
                .map(|limit| format!(" (it had {limit})"))
                .unwrap_or_default();
            Text::marked(&format!(
                "Ask for more time with `--time`{had}, or let the job write checkpoints and go on from the last one."
            ))
        }
        EventType::JobOutOfMemory => {
            let had = memory(&job.req_tres).map_or(Text::new(), |memory| {
                Text::from(" (it had ")
                    .code(text::cut(memory, 80))
                    .plain(")")
            });
            let used = job.usage.as_ref().filter(|usage| usage.max_rss_kib > 0);
            let used = used
                .map(|usage| format!(" Its largest task used {} MiB.", usage.max_rss_kib / 1024));
            Text::marked("Ask for more memory with `--mem` or `--mem-per-cpu`")
                .and(had)
                .plain(", or keep less in memory at once.")
                .plain(used.unwrap_or_default())
        }
        EventType::JobNodeFail | EventType::JobBootFail => {
            let node = if job.failed_node.is_empty() {
                &job.nodes
            } else {
                &job.failed_node
            };
            Text::marked("Not the job's fault: submit it again, or use `--requeue` so that Slurm does. For operators: ")
                .code(format!("scontrol show node {}", text::cut(node, 80)))
                .plain(".")
        }
        EventType::JobDeadline => {
            Text::marked("Submit it with a later `--deadline` or a shorter `--time`.")
        }
        EventType::JobPreempted if !job.requeueable => Text::marked(
            "Submit it again, or use `--requeue` so that Slurm does; checkpoints keep what was computed.",
        ),
        EventType::JobPreempted => {
            Text::from("It goes back to the queue if its partition or QOS requeues preempted jobs.")
        }
        _ => Text::new(),
    }
}

/// Shells report 127 for a command that was not found, and 126 for one that cannot be executed (POSIX, Shell Command
/// Language §2.8.2).
fn failed(job: &Job) -> Text {
    let log = if job.std_err.is_empty() {
        &job.std_out
    } else {
        &job.std_err
    };
    let log = if log.is_empty() {
        Text::new()
    } else {
        Text::from(" The end of ")
            .code(text::cut(log, 300))
            .plain(" says more.")
    };
    let hint = match &job.exit_code {
        Some(exit) if exit.signal == 9 => {
            "Something killed it; often that is memory: try more `--mem`."
        }
        Some(exit) if exit.signal == 11 || exit.signal == 7 => {
            "The program crashed on a memory access: run it with a debugger or keep a core file."
        }
        Some(exit) if exit.signal == 6 => {
            "The program stopped itself (abort): its last output tells why."
        }
        Some(exit) if exit.code == 127 => {
            "A command was not found: check paths and `module load` lines."
        }
        Some(exit) if exit.code == 126 => {
            "A file could not be executed: check its permissions and its first line."
        }
        Some(exit) if exit.code > 128 && exit.code < 160 => {
            "A process of the script was killed by a signal."
        }
        Some(exit) if exit.code != 0 || exit.signal != 0 => {
            "The script ended with an error of its own."
        }
        _ => {
            return Text::from("Slurm could not start it: check the working directory ")
                .code(text::cut(&job.work_dir, 300))
                .plain(".")
                .and(log);
        }
    };
    Text::marked(hint).and(log)
}

fn memory(tres: &str) -> Option<&str> {
    tres.split(',').find(|part| part.starts_with("mem="))
}

/// Names of common signals, by their Linux numbers.
fn signal(number: u32) -> String {
    let name = match number {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        10 => "USR1",
        11 => "SEGV",
        12 => "USR2",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        24 => "XCPU",
        25 => "XFSZ",
        _ => return number.to_string(),
    };
    format!("{number} ({name})")
}
