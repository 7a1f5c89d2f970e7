//! Advice on how to fix findings.

use slurm_client::Error;

/// Advice if Slurm does not answer, for CLI and REST.
pub(super) const fn slurm(error: &Error) -> &'static str {
    match error {
        Error::NotInstalled { .. } => "install slurm-client, or set [slurm] bin_dir",
        Error::ConfigMissing { .. } => {
            "set [slurm] conf to this cluster's slurm.conf, or SLURM_CONF"
        }
        Error::MungeDown { .. } => "start munged; AuthInfo of slurm.conf names its socket",
        Error::ControllerDown { .. } => "start slurmctld; its log says why it is down",
        Error::AccountingDown { .. } => {
            "start slurmdbd; with a munge socket of its own also AccountingStoragePass has to name it"
        }
        Error::TimedOut { .. } => {
            "`sdiag` shows what keeps Slurm busy; [slurm] command_timeout is how long it may take"
        }
        Error::TokenFile { .. } => {
            "make a token (scontrol token username=… lifespan=…) in the file that [slurm] token_file names"
        }
        Error::RestDown { .. } => "start slurmrestd, or set [slurm] rest_url",
        Error::Denied { .. } => {
            "make a new token in [slurm] token_file, for the user [slurm] rest_user names; over a unix socket none is needed"
        }
        Error::NotServed { .. } => {
            "start slurmrestd with a plugin of that version (-s, -d), or set source = \"cli\" in [slurm]"
        }
        Error::NotOverRest { .. } => "set source = \"cli\" in [slurm], where Slurm's commands are",
        _ => {
            "ask Slurm the same by hand; what `smesh inspect` says of the answer belongs into a bug report"
        }
    }
}

/// Advice for a condition that keeps a service from being ready.
pub(super) fn not_ready(condition: &str) -> &'static str {
    match condition {
        "ledger.checkpoints" => {
            "nothing is signed until it is mended: `smesh verify` says what was changed; after a backup was put back see `smesh ledger resume --help`"
        }
        _ => "it keeps trying; its log says more",
    }
}
