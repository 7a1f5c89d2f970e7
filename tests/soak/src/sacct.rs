//! The first oracle: accounting's records, read by separate code.

use std::collections::{BTreeMap, BTreeSet};

use super::testbed::Testbed;
use integration::Error;

/// A row of `sacct -D`, except steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The array's id for tasks, the component's own for heterogeneous jobs.
    pub(super) job: u32,
    /// Number of the task, if it is one.
    pub(super) task: Option<u32>,
    /// True for tasks of an array that never became jobs.
    pub(super) is_remainder: bool,
    pub(super) user: String,
    /// State without the text after its first word.
    pub(super) state: String,
    pub(super) submit: i64,
    pub(super) start: Option<i64>,
    pub(super) end: Option<i64>,
    /// Empty if it never had nodes.
    pub(super) nodes: String,
    /// Exit code and signal; `None` if accounting lost the end.
    pub(super) exit: Option<(u32, u32)>,
    /// Seconds it ran, without suspensions.
    pub(super) elapsed: u64,
    /// CPU time of its steps in milliseconds.
    pub(super) cpu_millis: u64,
    /// The original line, for display.
    pub(super) line: String,
}

const COLUMNS: &str =
    "JobID,JobIDRaw,User,State,Submit,Start,End,NodeList,ExitCode,ElapsedRaw,TotalCPU";

impl Row {
    /// Parses a line. `None` if it is not a row.
    pub(super) fn read(line: &str) -> Option<Self> {
        let columns: Vec<&str> = line.split('|').collect();
        let [
            id,
            raw,
            user,
            state,
            submit,
            start,
            end,
            nodes,
            exit,
            elapsed,
            cpu,
        ] = columns[..]
        else {
            return None;
        };
        let (job, task, is_remainder) = match id.split_once('_') {
            Some((job, task)) if task.starts_with('[') => (job.parse().ok()?, None, true),
            Some((job, task)) => (job.parse().ok()?, Some(task.parse().ok()?), false),
            None => (raw.parse().ok()?, None, false),
        };
        let (code, signal) = exit.split_once(':')?;
        Some(Self {
            job,
            task,
            is_remainder,
            user: user.to_owned(),
            state: state.split(' ').next()?.to_owned(),
            submit: submit.parse().ok()?,
            start: start.parse().ok(),
            end: end.parse().ok(),
            nodes: match nodes {
                "None assigned" => String::new(),
                nodes => nodes.to_owned(),
            },
            exit: Some((code.parse().ok()?, signal.parse().ok()?)),
            elapsed: elapsed.parse().ok()?,
            cpu_millis: cpu_millis(cpu)?,
            line: line.to_owned(),
        })
    }

    /// True if it had nodes. A start time alone is not sufficient, but usage of its steps is: for a job cancelled in the second of its
    /// start, accounting may have its batch step, but no start and no nodes (seen on 22.05).
    pub(super) fn ran(&self) -> bool {
        !self.nodes.is_empty() || self.cpu_millis > 0
    }

    /// The event word of its end. `None` while it has not ended, and for a row closed by a resize.
    pub(super) fn end_kind(&self) -> Option<&'static str> {
        Some(match self.state.as_str() {
            "COMPLETED" => "completed",
            "FAILED" => "failed",
            "CANCELLED" => "cancelled",
            "TIMEOUT" => "timeout",
            "OUT_OF_MEMORY" => "out_of_memory",
            "NODE_FAIL" => "node_fail",
            "PREEMPTED" => "preempted",
            "REQUEUED" => "requeued",
            "BOOT_FAIL" => "boot_fail",
            "DEADLINE" => "deadline",
            // A component of a heterogeneous job that got nodes and had to release them. Its row stays in this state (seen on 22.05 to
            // 26.05).
            "PENDING" if self.end.is_some() && self.ran() => "requeued",
            _ => return None,
        })
    }
}

/// `1-02:03:04`, `02:03:04`, `03:04.567`
fn cpu_millis(text: &str) -> Option<u64> {
    let (days, rest) = text.split_once('-').unwrap_or(("0", text));
    let (clock, millis) = rest.split_once('.').unwrap_or((rest, "0"));
    let clock = clock.split(':').try_fold(0, |sum: u64, part| {
        part.parse::<u64>().ok().map(|part| sum * 60 + part)
    })?;
    let seconds = days.parse::<u64>().ok()? * 86_400 + clock;
    Some(seconds * 1_000 + millis.parse::<u64>().ok()?)
}

/// All rows of accounting for this cluster, queried by time window and by the ids of these jobs. A window does not include jobs that
/// could never run.
pub(super) async fn rows(testbed: &Testbed, jobs: &BTreeSet<u32>) -> Result<Vec<Row>, Error> {
    let mut found = BTreeMap::new();
    let window = ["-S", "now-1days"].map(str::to_owned).to_vec();
    let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    let by_id = jobs
        .chunks(200)
        .map(|ids| vec!["-j".to_owned(), ids.join(",")]);
    for choice in std::iter::once(window).chain(by_id) {
        let fixed = [
            "env",
            // sacct's times have no zone by default.
            "SLURM_TIME_FORMAT=%s",
            "sacct",
            "-a",
            "-D",
            "-n",
            "-P",
            "-o",
            COLUMNS,
        ];
        let command: Vec<&str> = fixed
            .into_iter()
            .chain(choice.iter().map(String::as_str))
            .collect();
        let text = testbed.ask("root", &command).await?;
        // A run's CPU time is the sum over its steps, and 0 with -X. So steps are requested and filtered out here.
        let is_step = |line: &&str| line.split('|').next().is_some_and(|id| id.contains('.'));
        for line in text.lines().filter(|line| !is_step(line)) {
            let row =
                Row::read(line).ok_or_else(|| Error::Machine(format!("sacct printed {line:?}")))?;
            found.insert(key(line), row);
        }
    }
    Ok(found.into_values().collect())
}

/// Both ids and the submit time, which identify a row in accounting. The line of a run whose end is lost changes every second.
fn key(line: &str) -> Vec<String> {
    let columns = line.split('|').enumerate();
    let selected = columns.filter(|(at, _)| [0, 1, 4].contains(at));
    selected.map(|(_, column)| column.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_grows_is_one() {
        let at = |elapsed| format!("9|9|bob|RUNNING|100|101|Unknown|n1|0:0|{elapsed}|00:00:00");
        assert_eq!(key(&at(943)), key(&at(944)));
        let second_row = "9|9|bob|RUNNING|200|201|Unknown|n1|0:0|1|00:00:00";
        assert_ne!(key(&at(943)), key(second_row));
    }

    #[test]
    fn cpu_time_is_read() {
        assert_eq!(cpu_millis("03:04.567"), Some(184_567));
        assert_eq!(cpu_millis("1-02:03:04"), Some(93_784_000));
        assert_eq!(cpu_millis(""), None);
    }

    #[test]
    fn rows_of_every_kind_are_read() {
        let row = |line| Row::read(line).unwrap();
        let task = row("7_3|9|alice|FAILED|100|110|120|n[1-2]|3:0|10|00:01.250");
        assert_eq!((task.job, task.task, task.exit), (7, Some(3), Some((3, 0))));
        assert_eq!((task.elapsed, task.cpu_millis), (10, 1_250));
        assert!(task.ran());
        let het = row("13+1|14|bob|CANCELLED by 20002|100|None|120|None assigned|0:0|0|00:00:00");
        assert_eq!((het.job, het.end_kind()), (14, Some("cancelled")));
        assert!(!het.ran());
        let lost = row("7|7|bob|CANCELLED|100|None|100|None assigned|0:15|0|00:00.001");
        assert!(lost.ran() && lost.start.is_none());
        let rest =
            row("7_[4-9%2]|7|alice|PENDING|100|Unknown|Unknown|None assigned|0:0|0|00:00:00");
        assert!(rest.is_remainder);
        assert_eq!((rest.end_kind(), rest.end), (None, None));
        let back = row("13+0|13|bob|PENDING|100|110|110|n4|0:0|0|00:00:00");
        assert_eq!(back.end_kind(), Some("requeued"));
        assert_eq!(Row::read("sacct: error"), None);
    }
}
