//! Errors of queries to Slurm.

use std::{io, path::PathBuf, time::Duration};

/// Why a query has no usable response. Texts of Slurm are truncated to a few hundred characters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command is not installed.
    #[error("run {command}: not found; {hint}")]
    NotInstalled {
        /// The command.
        command: &'static str,
        /// What to do.
        hint: String,
    },
    /// The configured slurm.conf does not exist. Checked first, since the commands would retry for a minute.
    #[error("read slurm.conf: {} cannot be opened; set conf in [slurm] or SLURM_CONF", path.display())]
    ConfigMissing {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The command could not be started, or its output could not be read.
    #[error("run {command}")]
    Io {
        /// The command.
        command: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// It took too long and was killed.
    #[error("{command} did not answer within {after:?} and was stopped")]
    TimedOut {
        /// The command.
        command: &'static str,
        /// The limit.
        after: Duration,
    },
    /// slurmctld cannot be reached or is on standby.
    #[error("{command}: slurmctld does not answer ({message}); check that it runs: scontrol ping")]
    ControllerDown {
        /// The command.
        command: &'static str,
        /// Slurm's message.
        message: String,
    },
    /// munge cannot be reached or refuses.
    #[error(
        "{command}: munge does not work ({message}); check that munged runs: munge -n | unmunge"
    )]
    MungeDown {
        /// The command.
        command: &'static str,
        /// Slurm's message.
        message: String,
    },
    /// slurmdbd cannot be reached, or the cluster has none.
    #[error(
        "{command}: accounting does not answer ({message}); check that slurmdbd runs: sacctmgr ping"
    )]
    AccountingDown {
        /// The command.
        command: &'static str,
        /// Slurm's message.
        message: String,
    },
    /// The file with the token for slurmrestd cannot be read, or holds none.
    #[error("read token_file {}: {problem}; `scontrol token` creates one", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// slurmrestd cannot be reached.
    #[error(
        "{command}: slurmrestd at {url} does not answer ({problem}); check that it runs, and rest_url in [slurm]"
    )]
    RestDown {
        /// The request.
        command: &'static str,
        /// Its address.
        url: String,
        /// Cause.
        problem: String,
    },
    /// slurmrestd or the daemon behind it refuses the user or the token: HTTP 401, 403, 511, or 500 with such a message (22.05).
    #[error(
        "{command}: slurmrestd refused the request with HTTP {status} ({message}); check that token_file in [slurm] has not expired, rest_user, and slurmrestd's authentication"
    )]
    Denied {
        /// The request.
        command: &'static str,
        /// HTTP status.
        status: u16,
        /// Slurm's message.
        message: String,
    },
    /// HTTP 200 with errors in the document: its other contents prove nothing.
    #[error("{command}: slurmrestd reported errors: {message}")]
    Reported {
        /// The request.
        command: &'static str,
        /// Slurm's message.
        message: String,
    },
    /// slurmrestd serves no version of its API that supports this query.
    #[error(
        "{command}: slurmrestd serves only {served}, {needed} is required: start it with that plugin (-s, -d)"
    )]
    NotServed {
        /// The request.
        command: &'static str,
        /// Versions that it serves.
        served: String,
        /// Versions that would suffice.
        needed: &'static str,
    },
    /// slurmrestd has no such query.
    #[error(
        "slurmrestd has no request for {question}: set source = \"cli\" in [slurm], on a host with Slurm's commands"
    )]
    NotOverRest {
        /// The query.
        question: &'static str,
    },
    /// The response is older than one received before the request: from a proxy's cache, or another controller.
    #[error(
        "{command}: the answer is of {this}, older than the previous one of {newest}; retrying later"
    )]
    Stale {
        /// The request.
        command: &'static str,
        /// The controller's time of this response.
        this: i64,
        /// The newest time seen.
        newest: i64,
    },
    /// Any other failure that Slurm reports.
    #[error("{command} failed with status {status}: {message}")]
    Failed {
        /// The command.
        command: &'static str,
        /// Exit status, -1 if a signal ended it; HTTP status of a request.
        status: i32,
        /// Slurm's message.
        message: String,
    },
    /// The response does not have the command's format.
    #[error("read answer of {command}: {problem} in {excerpt:?}")]
    Malformed {
        /// The command.
        command: &'static str,
        /// What is wrong with it.
        problem: &'static str,
        /// The offending text.
        excerpt: String,
    },
    /// The response is larger than any that is read.
    #[error("{command}: the answer is too large")]
    TooLarge {
        /// The command.
        command: &'static str,
    },
    /// The response is empty or truncated although the command reports success: it proves nothing.
    #[error("inconclusive answer of {command}: {problem}")]
    Suspicious {
        /// The command.
        command: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Error {
    /// Label for metrics, from a small closed set.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NotInstalled { .. } => "not_installed",
            Self::ConfigMissing { .. } => "config_missing",
            Self::Io { .. } => "io",
            Self::TimedOut { .. } => "timed_out",
            Self::ControllerDown { .. } => "controller_down",
            Self::MungeDown { .. } => "munge_down",
            Self::AccountingDown { .. } => "accounting_down",
            Self::TokenFile { .. } => "token_file",
            Self::RestDown { .. } => "rest_down",
            Self::Denied { .. } => "denied",
            Self::Reported { .. } => "reported",
            Self::NotServed { .. } => "not_served",
            Self::NotOverRest { .. } => "not_over_rest",
            Self::Stale { .. } => "stale",
            Self::Failed { .. } => "failed",
            Self::Malformed { .. } => "malformed",
            Self::TooLarge { .. } => "too_large",
            Self::Suspicious { .. } => "suspicious",
        }
    }

    /// Whether a request for less may succeed.
    pub const fn is_too_much(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::TooLarge { .. })
    }

    /// True if a retry may succeed without a change of configuration.
    pub const fn is_transient(&self) -> bool {
        !matches!(
            self,
            Self::NotInstalled { .. }
                | Self::ConfigMissing { .. }
                | Self::TokenFile { .. }
                | Self::NotOverRest { .. }
        )
    }

    /// Classifies a failed command's stderr.
    pub(crate) fn from_stderr(command: &'static str, status: i32, stderr: &str) -> Self {
        let accounting = matches!(command, "sacct" | "sacctmgr");
        Self::from_output(command, status, stderr, accounting)
    }

    /// Classifies Slurm's message; `accounting` is true if slurmdbd was queried.
    pub(crate) fn from_output(
        command: &'static str,
        status: i32,
        stderr: &str,
        accounting: bool,
    ) -> Self {
        let message = excerpt(stderr.trim());
        let lower = stderr.to_ascii_lowercase();
        let contains_any = |texts: &[&str]| texts.iter().any(|text| lower.contains(text));
        // Munge first: a broken munge also ends in "unable to contact".
        if contains_any(&[
            "munge",
            "protocol authentication error",
            "authentication plugin",
            "auth_g_create",
            "invalid authentication credential",
        ]) {
            Self::MungeDown { command, message }
        } else if accounting
            && contains_any(&[
                "slurmdbd",
                "database",
                "persistent connection",
                "accounting storage is disabled",
                "persistinit",
                "supported accounting_storage plugin",
                "connection refused",
                "connection reset by peer",
            ])
        {
            Self::AccountingDown { command, message }
        } else if contains_any(&[
            "unable to contact slurm controller",
            "unable to establish control machine address",
            "socket timed out",
            "connection refused",
            // slurmctld was killed during the request (26.05).
            "connection reset by peer",
            "connection failure",
            "zero bytes were transmitted",
            "in standby mode",
            "resolve_ctls_from_dns_srv",
            "unexpected message received",
            "network is unreachable",
            "no route to host",
        ]) {
            Self::ControllerDown { command, message }
        } else {
            Self::Failed {
                command,
                status,
                message,
            }
        }
    }
}

/// The first few hundred characters of Slurm's text.
pub(crate) fn excerpt(text: &str) -> String {
    const LIMIT: usize = 400;
    let mut short: String = text.chars().take(LIMIT).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_error_texts_are_classified() {
        let kind = |command, text| Error::from_stderr(command, 1, text).kind();
        assert_eq!(
            kind(
                "squeue",
                "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
            ),
            "controller_down"
        );
        assert_eq!(
            kind(
                "squeue",
                "squeue: error: slurm_send_node_msg: [socket:[18200601]] slurm_bufs_sendto(msg_type=REQUEST_JOB_INFO) failed: Connection reset by peer\nslurm_load_jobs error: Connection reset by peer"
            ),
            "controller_down"
        );
        assert_eq!(
            kind(
                "squeue",
                "squeue: error: If munged is up, restart with --num-threads=10\nsqueue: error: Munge encode failed: Failed to access \"/run/munge\""
            ),
            "munge_down"
        );
        assert_eq!(
            kind(
                "sacct",
                "sacct: error: Problem talking to the database: Connection refused"
            ),
            "accounting_down"
        );
        for text in [
            "sacctmgr: error: Sending PersistInit msg: Connection refused",
            "sacctmgr: error: Sending PersistInit msg: Unable to connect to database",
            "You are not running a supported accounting_storage plugin\nOnly 'accounting_storage/slurmdbd' is supported.",
        ] {
            assert_eq!(kind("sacctmgr", text), "accounting_down", "{text}");
        }
        assert_eq!(
            kind("squeue", "slurm_load_jobs error: Invalid job id specified"),
            "failed"
        );
    }
}
