//! What a command's output says about whether its work was done.

use slurm_client::{CommandOutput, Error};
use slurm_types::JobId;

use crate::SubmitError;

/// No connection was made, as libslurm says it: the request was not sent.
const CONNECTION_TEXTS: [&str; 4] = [
    "unable to contact slurm controller (connect failure)",
    "unable to establish control machine address",
    "unable to establish controller machine",
    "in standby mode",
];
/// No credential, no request; or the controller refused the credential, of which munge makes one for each request.
const CREDENTIAL_TEXTS: [&str; 5] = [
    "munge",
    "protocol authentication error",
    "authentication plugin",
    "auth_g_create",
    "invalid authentication credential",
];
/// The request was sent and its answer was lost.
const LOST_ANSWER_TEXTS: [&str; 9] = [
    "socket timed out",
    "connection reset",
    "connection failure",
    "zero bytes were transmitted",
    "send failure",
    "receive failure",
    "unexpected message received",
    "broken pipe",
    "connection timed out",
];
/// The controller refuses at present.
const BUSY_TEXTS: [&str; 5] = [
    // QOSMaxSubmitJobPerUserLimit, AssocMaxSubmitJobLimit, …
    "maxsubmitjob",
    "temporarily unable",
    // 2007, 2020, 2103
    "try again",
    "system submissions disabled",
    "prologslurmctld is still running",
];
/// "Duplicate job id".
pub(crate) const DUPLICATE_JOB_ID: u32 = 2011;
/// "Invalid job id specified".
pub(crate) const INVALID_JOB_ID: u32 = 2017;
/// "Job/step already completing or completed".
pub(crate) const ALREADY_DONE: u32 = 2021;
/// Error numbers by their texts, as 22.05's `slurm_strerror` gives them: those that somebody can do something about.
const NUMBERS: [(&str, u32); 17] = [
    ("invalid partition name specified", 2000),
    ("no partition specified or system default partition", 2001),
    ("access/permission denied", 2002),
    ("user's group not permitted to use this partition", 2003),
    ("node count specification invalid", 2006),
    ("duplicate job id", DUPLICATE_JOB_ID),
    ("requested node configuration is not available", 2014),
    ("invalid job id specified", INVALID_JOB_ID),
    ("job/step already completing or completed", ALREADY_DONE),
    ("job is pending execution", 2024),
    ("job dependency problem", 2038),
    ("invalid account or account/partition combination", 2045),
    ("job violates accounting/qos policy", 2050),
    ("requested time limit is invalid", 2051),
    ("requested reservation is invalid", 2053),
    ("invalid qos specification", 2066),
    ("invalid job array specification", 2081),
];

/// The id that `sbatch --parsable` printed, or why there is none.
pub(crate) fn submitted(result: Result<CommandOutput, Error>) -> Result<JobId, SubmitError> {
    let output = result.map_err(|error| not_run(&error))?;
    if output.status != 0 {
        return Err(failed(&output));
    }
    // With a cluster name it is `ID;NAME`.
    let id = output.stdout.trim().split(';').next().unwrap_or_default();
    id.parse().map_err(|_| {
        let stdout: String = output.stdout.chars().take(200).collect();
        SubmitError::unknown(format!("sbatch printed no job id: {stdout:?}"))
    })
}

/// Whether a command did its work.
pub(crate) fn done(result: Result<CommandOutput, Error>) -> Result<(), SubmitError> {
    let output = result.map_err(|error| not_run(&error))?;
    // scancel reports some errors with status 0.
    let silent = output.status == 0 && !output.stderr.contains("error:");
    if silent { Ok(()) } else { Err(failed(&output)) }
}

/// `trigger-submitter` without an answer of its own.
pub(crate) fn no_answer(error: &Error) -> SubmitError {
    match error {
        Error::NotInstalled { command, .. } => SubmitError::transient(format!(
            "run {command}: not found; install the package slurm-mesh-trigger, or name its folder in workflow-trigger.submitter.program_dir"
        )),
        error => not_run(error),
    }
}

/// A command without a status of its own.
pub(crate) fn not_run(error: &Error) -> SubmitError {
    let words = chain(error);
    match error {
        Error::NotInstalled { .. } | Error::ConfigMissing { .. } | Error::TokenFile { .. } => {
            SubmitError::transient(words)
        }
        Error::NotServed { .. } => SubmitError::refused(words),
        _ => SubmitError::unknown(words),
    }
}

/// A query changes nothing: without an answer nothing is known.
pub(crate) fn unanswered(error: &Error) -> SubmitError {
    SubmitError::unknown(chain(error))
}

fn chain(error: &Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts.join(": ")
}

fn failed(output: &CommandOutput) -> SubmitError {
    match output.status < 0 {
        true => SubmitError::unknown(output.stderr.trim()),
        false => words(output.stderr.trim(), None),
    }
}

/// Classifies Slurm's words; `errno` is its number, if the source has one.
pub(crate) fn words(text: &str, errno: Option<u32>) -> SubmitError {
    let words: String = text.chars().take(1_000).collect();
    let lower = text.to_ascii_lowercase();
    let contains_any = |texts: &[&str]| texts.iter().any(|text| lower.contains(text));
    // The order matters: a lost answer outweighs everything else.
    if contains_any(&LOST_ANSWER_TEXTS) {
        return SubmitError::unknown(words);
    }
    if contains_any(&CONNECTION_TEXTS)
        || contains_any(&CREDENTIAL_TEXTS)
        || contains_any(&BUSY_TEXTS)
    {
        return SubmitError::transient(words);
    }
    let by_text = |(text, number): &(&str, u32)| lower.contains(text).then_some(*number);
    let errno = errno.or_else(|| NUMBERS.iter().find_map(by_text));
    SubmitError::Refused { words, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: i32, stdout: &str, stderr: &str, expected: &str) {
        let output = CommandOutput {
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
            status,
        };
        let result = submitted(Ok(output));
        let found = result.map_or_else(|error| error.kind(), |_| "submitted");
        assert_eq!(found, expected, "{stdout:?} {stderr:?}");
    }

    #[test]
    fn only_what_slurm_says_for_certain_is_refused_or_not_done() {
        check(0, "123\n", "", "submitted");
        check(0, "123;cluster\n", "sbatch: info", "submitted");
        check(
            0,
            "",
            "sbatch: Job 5 to start at 2026-11-26T10:00:00 a node",
            "unknown",
        );
        check(-1, "", "", "unknown");
        let failed = |words: &str| format!("sbatch: error: Batch job submission failed: {words}\n");
        for (words, kind) in [
            ("Invalid partition name specified", "refused"),
            (
                "Invalid account or account/partition combination specified",
                "refused",
            ),
            ("Socket timed out on send/recv operation", "unknown"),
            ("Zero Bytes were transmitted or received", "unknown"),
            (
                "Unable to contact slurm controller (connect failure)",
                "transient",
            ),
            (
                "Unable to contact slurm controller (receive failure)",
                "unknown",
            ),
            ("Protocol authentication error", "transient"),
        ] {
            check(1, "", &failed(words), kind);
        }
        let policy = failed(
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        );
        check(1, "", &policy, "refused");
        let limit = format!("sbatch: error: QOSMaxSubmitJobPerUserLimit\n{policy}");
        check(1, "", &limit, "transient");
        // A first try may have arrived.
        let twice = format!(
            "sbatch: error: Socket timed out on send/recv operation\n{}",
            failed("Unable to contact slurm controller (connect failure)")
        );
        check(1, "", &twice, "unknown");
    }

    #[test]
    fn a_missing_trigger_submitter_is_named_with_its_package() {
        let error = Error::NotInstalled {
            command: "trigger-submitter",
            hint: String::new(),
        };
        let SubmitError::Transient { words } = no_answer(&error) else {
            panic!("it may be installed later");
        };
        assert!(words.contains("slurm-mesh-trigger"), "{words}");
    }

    #[test]
    fn refusals_have_slurms_number() {
        let output = CommandOutput {
            stdout: String::new(),
            stderr: "scontrol: error: Invalid job id specified".to_owned(),
            status: 1,
        };
        let Err(SubmitError::Refused { errno, .. }) = done(Ok(output)) else {
            panic!("not refused");
        };
        assert_eq!(errno, Some(INVALID_JOB_ID));
    }
}
