//! Arguments of the commands about Slurm's hooks.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

/// `smesh hooks`
#[derive(Debug, Subcommand)]
pub enum Hooks {
    /// Print the lines for slurm.conf and other files, and the hook scripts; they keep the site's programs
    Print(HookFiles),
    /// Write the hook scripts to a folder
    Install(InstallHooks),
    /// Deliver doorbells spooled by hooks and by Slurm's Lua plugins
    Flush(FlushHooks),
    /// Send a probe through every installed hook, and check that it arrives
    #[command(after_help = "\
Runs none of the site's programs and submits no job. Each doorbell is marked as a probe, which is only counted.
Run it as root on the Slurm controller.

Exit status: 0 the probes of all installed hooks arrived; 1 one did not arrive, or no hook is installed.")]
    Test(HookFiles),
}

/// `smesh hooks flush`
#[derive(Debug, Args)]
#[command(after_help = "\
Each call of a hook delivers the spool, too. --watch is for hosts where hooks are rarely called; it runs until it is stopped.

Exit status: 0 the spool is empty; 1 some doorbells could not be delivered.")]
pub struct FlushHooks {
    /// Configuration file of the hooks [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// Keep running and deliver repeatedly
    #[arg(long)]
    pub watch: bool,
    /// Interval of --watch
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub interval: Duration,
}

/// Files that hook scripts refer to.
#[derive(Debug, Default, Args)]
pub struct HookFiles {
    /// Path of mesh-hook [default: next to smesh, else /usr/bin/mesh-hook]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Configuration file of the hooks [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// slurm.conf to read if slurmctld does not answer [default: Slurm's default]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// Folder of the hook scripts
    #[arg(long, value_name = "DIR", default_value = "/etc/slurm-mesh/hooks")]
    pub dir: PathBuf,
}

/// `smesh hooks install`
#[derive(Debug, Args)]
pub struct InstallHooks {
    /// Folder to write to; SlurmUser must be able to read it
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Path of mesh-hook [default: next to smesh, else /usr/bin/mesh-hook]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Configuration file of the hooks [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// slurm.conf to read if slurmctld does not answer [default: Slurm's default]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
}
