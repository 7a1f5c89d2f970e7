//! Arguments of the commands about Slurm's hooks.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

/// `smesh hooks`
#[derive(Debug, Subcommand)]
pub enum Hooks {
    /// Print what to write into slurm.conf and elsewhere, and the scripts it names, keeping the site's own programs
    Print(HookFiles),
    /// Write the scripts into a folder
    Install(InstallHooks),
    /// Deliver now what hooks have spooled and Slurm's Lua plugins have written down
    Flush(FlushHooks),
    /// Ring as every installed hook would, and see it arrive
    #[command(after_help = "\
Nothing of the site's own is run, and nothing is submitted: each doorbell is marked as a probe, which is counted and not looked at.
Run it as root on the Slurm controller. Exit status: 0 every installed hook arrives; 1 one does not, or none is installed.")]
    Test(HookFiles),
}

/// `smesh hooks flush`
#[derive(Debug, Args)]
#[command(after_help = "\
Every call of a hook delivers what waits as well. With --watch it runs until it is stopped, for hosts where hooks are rarely called.
Exit status: 0 nothing waits any more; 1 something stays.")]
pub struct FlushHooks {
    /// The hooks' configuration [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// Go on doing it
    #[arg(long)]
    pub watch: bool,
    /// How often to look, with --watch
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub interval: Duration,
}

/// What hook scripts refer to.
#[derive(Debug, Default, Args)]
pub struct HookFiles {
    /// The mesh-hook program [default: beside smesh, else /usr/bin/mesh-hook]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Its configuration [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// slurm.conf to read if slurmctld does not answer [default: as Slurm finds it]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// Folder of the scripts
    #[arg(long, value_name = "DIR", default_value = "/etc/slurm-mesh/hooks")]
    pub dir: PathBuf,
}

/// `smesh hooks install`
#[derive(Debug, Args)]
pub struct InstallHooks {
    /// Folder to write into; SlurmUser must be able to read it
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The mesh-hook program [default: beside smesh, else /usr/bin/mesh-hook]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Its configuration [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// slurm.conf to read if slurmctld does not answer [default: as Slurm finds it]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
}
