//! What a doorbell says: which hook, which job, and Slurm's variables as evidence.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use uuid::Uuid;

/// Longest value that is carried, in bytes.
const MAX_VALUE: usize = 4096;
/// Most variables, and most arguments, that are carried.
const MAX_COUNT: usize = 256;
/// Most bytes of variables, and of arguments, that are carried together. A doorbell stays far below NATS's 1 MB limit.
const MAX_TOTAL: usize = 48 << 10;

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

/// The environment as the hook got it.
pub type Environment = HashMap<OsString, OsString>;

/// The hook that was called, if Slurm's environment tells.
pub fn hook_of(environment: &Environment) -> Option<&'static str> {
    let has = |name: &str| environment.contains_key(&OsString::from(name));
    // SLURM_SCRIPT_CONTEXT: slurm.conf(5), "PROLOG AND EPILOG SCRIPTS"; not set for the others.
    if let Some(context) = environment.get(&OsString::from("SLURM_SCRIPT_CONTEXT")) {
        return Some(match context.to_str()? {
            "prolog_slurmctld" => "PrologSlurmctld",
            "epilog_slurmctld" => "EpilogSlurmctld",
            "prolog_slurmd" => "Prolog",
            "epilog_slurmd" => "Epilog",
            "prolog_srun" => "SrunProlog",
            "epilog_srun" => "SrunEpilog",
            "prolog_task" => "TaskProlog",
            "epilog_task" => "TaskEpilog",
            _ => return None,
        });
    }
    if has("JOBID") && has("JOBSTATE") {
        Some("JobComp")
    } else if has("SLURM_JOB_MAIL_TYPE") {
        Some("MailProg")
    } else if has("SLURM_RESUME_FILE") {
        Some("ResumeProgram")
    } else {
        None
    }
}

/// A doorbell, with an id of its own.
pub fn doorbell(
    cluster: &str,
    hook: &str,
    host: &str,
    called_at: SystemTime,
    environment: &Environment,
    arguments: &[OsString],
) -> Doorbell {
    let mut evidence: Vec<(String, String)> = environment
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?, value)))
        .filter(|(name, _)| is_evidence(hook, name))
        .map(|(name, value)| (name.to_owned(), bounded(value)))
        .collect();
    // Sorted, so that what is dropped from an absurd environment does not depend on chance.
    evidence.sort();
    let job_id = ["SLURM_JOB_ID", "JOBID", "SLURM_JOBID"]
        .iter()
        .find_map(|name| {
            evidence
                .iter()
                .find(|(other, _)| other == name)?
                .1
                .parse()
                .ok()
        })
        .unwrap_or_default();
    Doorbell {
        id: Uuid::now_v7().to_string(),
        hook: bounded(&OsString::from(hook)).chars().take(64).collect(),
        cluster: cluster.to_owned(),
        host: host.to_owned(),
        called_at: Some(mesh_events::timestamp(DateTime::<Utc>::from(called_at))),
        job_id,
        environment: within_limits(evidence, |(name, value)| name.len() + value.len())
            .into_iter()
            .collect(),
        arguments: within_limits(arguments.iter().map(bounded).collect(), String::len),
        spooled: false,
        ..Doorbell::default()
    }
}

/// Slurm's own variables only. Not its secrets: a token of slurmrestd or of `scontrol token` may be in slurmctld's environment.
fn is_evidence(hook: &str, name: &str) -> bool {
    if name.len() > 128
        || ["JWT", "TOKEN", "SECRET", "PASSW"]
            .iter()
            .any(|word| name.contains(word))
    {
        return false;
    }
    name.starts_with("SLURM_") || (hook == "JobComp" && JOBCOMP.contains(&name))
}

/// A value as text of at most [`MAX_VALUE`] bytes.
fn bounded(value: &OsString) -> String {
    let mut text = value.to_string_lossy().into_owned();
    if text.len() > MAX_VALUE {
        text.truncate(text.floor_char_boundary(MAX_VALUE));
    }
    text
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
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs
            .iter()
            .map(|(name, value)| (OsString::from(*name), OsString::from(*value)))
            .collect()
    }

    fn ring(hook: &str, environment: &Environment) -> Doorbell {
        doorbell("c", hook, "h", SystemTime::UNIX_EPOCH, environment, &[])
    }

    #[test]
    fn the_hook_is_known_from_slurms_environment() {
        for (pairs, expected) in [
            (
                &[("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld")][..],
                Some("PrologSlurmctld"),
            ),
            (
                &[("SLURM_SCRIPT_CONTEXT", "epilog_slurmctld")],
                Some("EpilogSlurmctld"),
            ),
            (&[("SLURM_SCRIPT_CONTEXT", "prolog_slurmd")], Some("Prolog")),
            (
                &[("JOBID", "1"), ("JOBSTATE", "COMPLETED")],
                Some("JobComp"),
            ),
            (&[("JOBID", "1")], None),
            (&[("SLURM_SCRIPT_CONTEXT", "what_is_this")], None),
        ] {
            assert_eq!(hook_of(&environment(pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn only_slurms_variables_are_evidence() {
        let environment = environment(&[
            ("SLURM_JOB_ID", "42"),
            ("SLURM_JWT", "secret"),
            ("PATH", "/bin"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("JOBSTATE", "COMPLETED"),
        ]);
        let bell = ring("PrologSlurmctld", &environment);
        assert_eq!(bell.job_id, 42);
        assert_eq!(
            bell.environment.keys().collect::<Vec<_>>(),
            ["SLURM_JOB_ID"]
        );
        assert!(
            ring("JobComp", &environment)
                .environment
                .contains_key("JOBSTATE")
        );
    }

    #[test]
    fn the_job_of_jobcomp_is_found() {
        assert_eq!(
            ring(
                "JobComp",
                &environment(&[("JOBID", "7"), ("JOBSTATE", "TIMEOUT")])
            )
            .job_id,
            7
        );
    }

    proptest! {
        #[test]
        fn any_environment_makes_a_small_doorbell(values: Vec<Vec<u8>>, huge in 0usize..200_000, hook in "\\PC{0,80}") {
            let mut environment: Environment = values
                .into_iter()
                .enumerate()
                .map(|(n, value)| (format!("SLURM_X{n}").into(), OsString::from_vec(value)))
                .collect();
            environment.insert("SLURM_HUGE".into(), "ü".repeat(huge).into());
            environment.insert(OsString::from_vec(vec![b'S', 0xff]), "x".into());
            let arguments = vec![OsString::from("x".repeat(10_000)); 20];
            let bell = doorbell("c", &hook, "h", SystemTime::now(), &environment, &arguments);
            prop_assert!(bell.encoded_len() < 128 << 10);
        }
    }
}
