//! Advice on how to fix findings.

use slurm_client::Error;

/// Advice if Slurm does not answer, for CLI and REST.
pub(super) const fn slurm(error: &Error) -> &'static str {
    match error {
        Error::NotInstalled { .. } => "install slurm-client, or set [slurm] bin_dir",
        Error::ConfigMissing { .. } => {
            "set [slurm] conf to this cluster's slurm.conf, or SLURM_CONF"
        }
        Error::MungeDown { .. } => "start munged; AuthInfo in slurm.conf sets its socket",
        Error::ControllerDown { .. } => "start slurmctld; see its log",
        Error::AccountingDown { .. } => {
            "start slurmdbd; if it has a separate munge socket, set it in AccountingStoragePass, too"
        }
        Error::TimedOut { .. } => {
            "see `sdiag` for the load of Slurm; [slurm] command_timeout is the time limit"
        }
        Error::TokenFile { .. } => {
            "write a token (scontrol token username=… lifespan=…) to the file [slurm] token_file"
        }
        Error::RestDown { .. } => "start slurmrestd, or set [slurm] rest_url",
        Error::Denied { .. } => {
            "write a new token to [slurm] token_file, for the user [slurm] rest_user; a Unix socket needs none"
        }
        Error::NotServed { .. } => {
            "start slurmrestd with a plugin of that version (-s, -d), or set source = \"cli\" in [slurm]"
        }
        Error::NotOverRest { .. } => {
            "set source = \"cli\" in [slurm], on a host with Slurm's commands"
        }
        _ => {
            "run the same command by hand, and report a bug with the output of `smesh inspect` for its answer"
        }
    }
}

/// Advice for a condition that keeps a service from being ready.
pub(super) fn not_ready(condition: &str) -> &'static str {
    match condition {
        "ledger.checkpoints" => {
            "nothing is signed until it is fixed: `smesh verify` reports what was changed; after a restore from a backup see `smesh ledger resume --help`"
        }
        _ => "it keeps retrying; see its log",
    }
}
