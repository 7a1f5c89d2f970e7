//! The rows of `sacct -X -P` with the tasks that an array was submitted with.

use std::collections::{BTreeMap, BTreeSet};

use slurm_types::{JobId, JobRef, TaskSet, UnixTime};

use super::{Separator, delimited};
use crate::drift::Unread;
use crate::record::ArraySubmission;

/// Requested columns. Every one exists on 22.05 and on 26.05 (`sacct -e`); the first never contains a newline.
pub(crate) const SUBMITTED_FIELDS: [&str; 3] = ["JobID", "Submit", "SubmitLine"];

/// Options of sbatch without a value, or with one that requires `=` (`sbatch --help` of 22.05 to 26.05).
const OPTIONS_WITHOUT_VALUE: [&str; 27] = [
    "--contiguous",
    "--disable-stdout-job-summary",
    "--exclusive",
    "--get-user-env",
    "--help",
    "--hold",
    "--ignore-pbs",
    "--no-kill",
    "--no-requeue",
    "--nice",
    "--overcommit",
    "--oversubscribe",
    "--parsable",
    "--propagate",
    "--quiet",
    "--reboot",
    "--requeue",
    "--spread-job",
    "--test-only",
    "--use-min-nodes",
    "--verbose",
    "--wait",
    "-H",
    "-O",
    "-Q",
    "-W",
    "-s",
];

/// Contents of the rows of one array.
#[derive(Default)]
struct Rows {
    jobs: BTreeSet<u32>,
    rest: BTreeSet<u32>,
    ordered: Option<TaskSet>,
}

/// The arrays, by id and submit time, and the rows that could not be parsed; `None` if the output does not have these columns.
pub(crate) fn submitted(
    output: &str,
    separator: &Separator,
) -> Option<(Vec<ArraySubmission>, Unread)> {
    let (mut arrays, mut unread) = (BTreeMap::<(JobId, i64), Rows>::new(), Unread::default());
    for row in delimited(output, separator, SUBMITTED_FIELDS.len())? {
        let [id, submit, line] = row[..] else {
            continue;
        };
        let (Ok(job), Some(submit)) = (id.parse(), UnixTime::parse(submit)) else {
            unread.note(&row.join("|"));
            continue;
        };
        let id = match &job {
            JobRef::ArrayTask { array, .. } | JobRef::ArrayTasks { array, .. } => *array,
            JobRef::Job(_) | JobRef::HetComponent { .. } => continue,
        };
        let known = arrays
            .entry((id, submit.as_secs()))
            .or_insert_with(|| Rows {
                ordered: ordered(line),
                ..Rows::default()
            });
        match job {
            JobRef::ArrayTask { task, .. } => drop(known.jobs.insert(task)),
            JobRef::ArrayTasks { tasks, .. } => known.rest.extend(tasks.iter()),
            JobRef::Job(_) | JobRef::HetComponent { .. } => {}
        }
    }
    let arrays = arrays
        .into_iter()
        .map(|((array, submit), rows)| ArraySubmission {
            array,
            submit: UnixTime::from_secs(submit),
            jobs: TaskSet::new(rows.jobs),
            rest: TaskSet::new(rows.rest),
            ordered: rows.ordered,
        });
    Some((arrays.collect(), unread))
}

/// The tasks of `--array` in a command line. Words are not quoted there, so only options before any possible free text count.
fn ordered(line: &str) -> Option<TaskSet> {
    let mut arguments = line.split_ascii_whitespace();
    if !arguments.next()?.ends_with("sbatch") {
        return None;
    }
    while let Some(argument) = arguments.next() {
        let value = match argument {
            "-a" | "--array" => arguments.next(),
            "--" | "--wrap" => None,
            _ if argument.starts_with("--wrap=") => None,
            _ if argument.starts_with("--array=") => argument.strip_prefix("--array="),
            _ if argument.starts_with("--")
                && (argument.contains('=') || OPTIONS_WITHOUT_VALUE.contains(&argument)) =>
            {
                continue;
            }
            _ if OPTIONS_WITHOUT_VALUE.contains(&argument) => continue,
            _ if argument.starts_with("-a") => argument.strip_prefix("-a"),
            // `-n4`; in `-n 4` the value is the next word.
            _ if argument.starts_with('-') && !argument.starts_with("--") && argument.len() > 2 => {
                continue;
            }
            _ if argument.starts_with('-') => {
                arguments.next().filter(|value| !value.starts_with('-'))?;
                continue;
            }
            _ => None,
        };
        return value?.parse().ok().filter(|set: &TaskSet| !set.truncated);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_a_command_is_accepted_where_unambiguous() {
        for (line, expected) in [
            ("sbatch --parsable --array=0-3 --wrap true", Some("0-3")),
            ("sbatch -n 4 -N2 -H -a 1,5-7%2 job.sh", Some("1,5-7")),
            (
                "/usr/bin/sbatch --hold --mem=10 --array 0-9:3 job.sh",
                Some("0,3,6,9"),
            ),
            ("sbatch -a0-1 job.sh", Some("0-1")),
            ("sbatch job.sh --array=0-3", None),
            ("sbatch --wrap srun x --array=0-3", None),
            ("sbatch --comment=two words --array=0-3 job.sh", None),
            ("sbatch --comment two --array=0-3 job.sh", Some("0-3")),
            ("sbatch --job-name --array=0-3 job.sh", None),
            ("srun --array=0-3 job.sh", None),
            ("", None),
        ] {
            let found = ordered(line).map(|set| TaskSet::new(set.iter()).to_string());
            assert_eq!(found.as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn rows_of_one_array_are_put_together() {
        let separator = Separator::random();
        let line = "sbatch --array=0-5%1 job.sh";
        let rows = [
            ["7_0", "2026-11-25T01:22:07", line],
            ["7_1", "2026-11-25T01:22:07", line],
            ["7_[3-4%1]", "2026-11-25T01:22:07", line],
            ["7_1", "2026-11-25T01:23:07", line],
            ["8", "2026-11-25T01:22:07", "sbatch job.sh"],
            ["?", "2026-11-25T01:22:07", ""],
        ];
        let text: String = rows.iter().map(|row| separator.join(row) + "\n").collect();
        let (arrays, unread) = submitted(&text, &separator).unwrap();
        let printed: Vec<_> = arrays
            .iter()
            .map(|array| {
                let ordered = array.ordered.as_ref().unwrap();
                [&array.jobs, &array.rest, ordered].map(|set| TaskSet::new(set.iter()).to_string())
            })
            .collect();
        assert_eq!(printed, [["0-1", "3-4", "0-5"], ["1", "", "0-5"]]);
        assert_eq!(unread.count, 1);
    }
}
