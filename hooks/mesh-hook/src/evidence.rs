//! Selects the variables that a doorbell carries. Pure.
//!
//! Only listed variables are sent. Slurm's daemons pass their whole environment to some hooks (seen on 22.05), and that may contain
//! anything.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

/// Longest value in a doorbell, in bytes.
const MAX_VALUE: usize = 4096;
/// Limit for the number of variables, and for the number of arguments.
const MAX_COUNT: usize = 256;
/// Limit for the total bytes of variables, and of arguments. A doorbell stays far below NATS's 1 MB limit.
const MAX_TOTAL: usize = 48 << 10;

/// Prefixes of Slurm's job variables (Prolog and Epilog Guide; MailProg in slurm.conf(5)).
const PREFIXES: &[&str] = &["SLURM_JOB_", "SLURM_ARRAY_", "SLURM_HET_"];

/// Slurm's other variables, by name.
const NAMES: &[&str] = &[
    "SLURMD_NODENAME",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOBID",
    "SLURM_NODELIST",
    "SLURM_RESTART_COUNT",
    "SLURM_SCRIPT_CONTEXT",
    "SLURM_UID",
];

/// A variable whose name contains one of these is never sent, even with an allowed prefix.
const SECRETS: &[&str] = &["JWT", "TOKEN", "SECRET", "PASSW", "KEY"];

/// Variables of jobcomp/script (Slurm 22.05, 24.11 and 26.05; `src/plugins/jobcomp/script`).
const JOBCOMP: &[&str] = &[
    "ACCOUNT",
    "ARRAYJOBID",
    "ARRAYTASKID",
    "BATCH",
    "CLUSTER",
    "CONSTRAINTS",
    "DB_FLAGS",
    "DEPENDENCY",
    "DERIVED_EC",
    "ELIGIBLE",
    "END",
    "EXITCODE",
    "GID",
    "GROUPNAME",
    "HETJOBID",
    "HETJOBOFFSET",
    "JOBID",
    "JOBNAME",
    "JOBSTATE",
    "LIMIT",
    "NODECNT",
    "NODES",
    "ORIGINAL_SLUID",
    "PARTITION",
    "PROCS",
    "QOS",
    "RESERVATION",
    "SLUID",
    "START",
    "STATEREASONPREV",
    "STDERR",
    "STDIN",
    "STDOUT",
    "SUBMIT",
    "UID",
    "USERNAME",
    "WORK_DIR",
];

/// Environment of the hook process.
pub type Environment = HashMap<OsString, OsString>;

/// Value of a variable as text.
pub fn variable(environment: &Environment, name: &str) -> Option<String> {
    environment.get(OsStr::new(name)).map(bounded)
}

/// The variables to send. Sorted by name, so that the limits always cut off the same ones.
pub fn carried(hook: &str, environment: &Environment) -> Vec<(String, String)> {
    let mut evidence: Vec<(String, String)> = environment
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?, value)))
        .filter(|(name, _)| is_evidence(hook, name))
        .map(|(name, value)| (name.to_owned(), bounded(value)))
        .collect();
    evidence.sort();
    within_limits(evidence, |(name, value)| name.len() + value.len())
}

/// The arguments to send.
pub fn arguments(arguments: &[OsString]) -> Vec<String> {
    within_limits(arguments.iter().map(bounded).collect(), String::len)
}

/// A value as text, truncated to 4 KiB.
pub fn bounded(value: impl AsRef<OsStr>) -> String {
    let mut text = value.as_ref().to_string_lossy().into_owned();
    if text.len() > MAX_VALUE {
        text.truncate(text.floor_char_boundary(MAX_VALUE));
    }
    text
}

fn is_evidence(hook: &str, name: &str) -> bool {
    if name.len() > 128 || SECRETS.iter().any(|part| name.contains(part)) {
        return false;
    }
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || NAMES.contains(&name)
        || (hook == "JobComp" && JOBCOMP.contains(&name))
}

fn within_limits<T>(items: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<T> {
    let mut total = 0;
    items
        .into_iter()
        .take(MAX_COUNT)
        .take_while(|item| {
            total += size(item);
            total <= MAX_TOTAL
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_variables_are_sent() {
        let environment: Environment = [
            ("SLURM_JOB_ID", "42"),
            ("SLURM_JWT", "secret"),
            ("SLURM_JOB_TOKEN", "secret"),
            ("SLURM_MY_OWN", "x"),
            ("PATH", "/bin"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("JOBSTATE", "COMPLETED"),
        ]
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
        let names = |hook: &str| {
            carried(hook, &environment)
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("PrologSlurmctld"), ["SLURM_JOB_ID"]);
        assert_eq!(names("JobComp"), ["JOBSTATE", "SLURM_JOB_ID"]);
    }
}
