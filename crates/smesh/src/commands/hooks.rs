//! `smesh hooks`: prints what to add to slurm.conf and other files while keeping the site's own programs, delivers the backlog, and
//! tests the hooks.

mod flush;
mod kinds;
mod plan;
mod probe;
mod shell;

use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use slurm_client::{Slurm, Source};
use tokio_util::sync::CancellationToken;

use crate::cli::{self, Global, HookFiles};
use crate::error::Error;
use crate::settings::{self, HOOK_CONFIG};
use crate::show;
use crate::slurm_conf::SlurmConf;

use kinds::HookHosts;
pub use plan::InstallPlan;
use plan::{Hook, PlanInputs};

/// Bytes read of a file. Our scripts are short, and the path may also name a large program.
const SCRIPT_BYTES: u64 = 64 << 10;
/// Time limit for strigger.
const STRIGGER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn run(global: &Global, args: cli::Hooks) -> Result<ExitCode, Error> {
    match args {
        cli::Hooks::Print(files) => print(global, files).await?,
        cli::Hooks::Install(args) => {
            let dir = std::path::absolute(&args.folder)
                .map_err(|source| Error::io("find", &args.folder, source))?;
            let files = HookFiles {
                program: args.program,
                hook_config: args.hook_config,
                slurm_conf: args.slurm_conf,
                dir,
            };
            install(global, files).await?;
        }
        cli::Hooks::Flush(args) => return flush::run(global, args).await,
        cli::Hooks::Test(files) => return probe::run(global, files).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Path of the hooks' configuration.
fn hook_config(global: &Global, named: Option<&Path>) -> PathBuf {
    named.map_or_else(
        || {
            settings::load(global, CancellationToken::new()).map_or_else(
                |_| PathBuf::from(mesh_hook::config::DEFAULT_PATH),
                |context| context.mesh.data_dir.join(HOOK_CONFIG),
            )
        },
        Path::to_owned,
    )
}

/// Makes the plan for this machine.
///
/// # Errors
/// If neither slurmctld nor a slurm.conf provides the current settings.
pub async fn plan_here(
    global: &Global,
    files: &HookFiles,
) -> Result<(SlurmConf, InstallPlan), Error> {
    let slurm = slurm_config(global, files.slurm_conf.as_deref());
    let (conf, controller) = current(&slurm).await?;
    let program = files.program.clone().unwrap_or_else(hook_program);
    let config = hook_config(global, files.hook_config.as_deref());
    let lines = mesh_hook::Config::load(&config)
        .ok()
        .and_then(|config| config.lines)
        .unwrap_or_else(|| PathBuf::from(mesh_hook::lines::DEFAULT_FOLDER));
    let triggers = if controller {
        triggers(&slurm, &conf.path).await
    } else {
        String::new()
    };
    let plan = PlanInputs {
        conf: &conf,
        program: &program,
        config: &config,
        dir: &files.dir,
        lines: &lines,
        triggers: &triggers,
        read: &|path| {
            let mut text = Vec::new();
            let file = fs::File::open(path).ok()?;
            file.take(SCRIPT_BYTES).read_to_end(&mut text).ok()?;
            Some(String::from_utf8_lossy(&text).into_owned())
        },
    }
    .plan();
    Ok((conf, plan))
}

/// The triggers that are set. Empty if they cannot be read.
async fn triggers(slurm: &slurm_client::Config, slurm_conf: &Path) -> String {
    let bin_dir = slurm.bin_dir.as_deref().unwrap_or(Path::new(""));
    let mut command = tokio::process::Command::new(bin_dir.join("strigger"));
    command.arg("--get").env("SLURM_CONF", slurm_conf);
    let output = mesh_runtime::program::output(&mut command, STRIGGER_TIMEOUT).await;
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Configuration of the Slurm client on this host.
fn slurm_config(global: &Global, slurm_conf: Option<&Path>) -> slurm_client::Config {
    let section: Option<slurm_client::Config> = settings::load(global, CancellationToken::new())
        .ok()
        .and_then(|context| context.section("slurm").ok());
    let mut config = section.unwrap_or_default();
    if slurm_conf.is_some() {
        config.conf = slurm_conf.map(Path::to_owned);
    }
    config
}

/// The current settings, from the controller or else from slurm.conf, and whether the controller answered.
async fn current(slurm: &slurm_client::Config) -> Result<(SlurmConf, bool), Error> {
    let path = SlurmConf::find(slurm.conf.as_deref())?;
    // slurmrestd does not report hooks in most versions. Missing parameters would look as if they were not set.
    if slurm.source == Source::Rest {
        return Ok((SlurmConf::read(&path)?, false));
    }
    match Slurm::new(slurm.clone()).config().await {
        Ok(printed) => Ok((SlurmConf::from_controller(&path, &printed), true)),
        Err(error) => {
            anstream::eprintln!(
                "slurmctld does not answer ({}); reading {}",
                mesh_runtime::error_chain(&error),
                path.display()
            );
            Ok((SlurmConf::read(&path)?, false))
        }
    }
}

/// The mesh-hook next to this program, else at the path where packages install it.
fn hook_program() -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.join("mesh-hook")));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from("/usr/bin/mesh-hook"))
}

async fn print(global: &Global, files: HookFiles) -> Result<(), Error> {
    let (conf, plan) = plan_here(global, &files).await?;
    if global.json {
        return show::line(plan.to_json());
    }
    show::line(show::bold(&format!(
        "# {} and these scripts on every SlurmctldHost{}",
        conf.path.display(),
        of(&plan)
    )))?;
    show::line(plan.lines())?;
    for hook in plan.hooks.iter().filter(|hook| hook.recommended) {
        show::line(format!(
            "\n{}\n{}",
            show::bold(&format!("# {}", hook.script.display())),
            hook.text.trim_end()
        ))?;
    }
    show::line(show::bold(
        "\n# These three report all events. The following ones make some events faster, or report logins.",
    ))?;
    for hook in plan.hooks.iter().filter(|hook| !hook.recommended) {
        show::line(optional(hook))?;
    }
    for note in &plan.notes {
        show::line(format!("\n# note: {note}"))?;
    }
    show::line(
        "\n# First run `smesh hooks install DIR` on every host listed here: Slurm drains a node whose Prolog or Epilog is missing.\n\
         # Then add the lines and run `scontrol reconfigure` (JobCompType and the Lua plugins require a restart of slurmctld).\n\
         # `smesh hooks test` checks the result; see docs/guide/hooks.md.",
    )
}

/// HookHosts of slurmctld, in parentheses.
fn of(plan: &InstallPlan) -> String {
    if plan.controllers.is_empty() {
        String::new()
    } else {
        format!(" ({})", plan.controllers.join(", "))
    }
}

/// Lines for an optional hook, as few as possible.
fn optional(hook: &Hook) -> String {
    let lines: String = hook.lines.iter().map(|line| format!("\n{line}")).collect();
    let runs = hook
        .text
        .lines()
        .find(|line| line.starts_with("exec "))
        .filter(|_| hook.hosts != HookHosts::Logins || !hook.lines.is_empty());
    let script = runs.map(|line| format!("\n#   {}: {line}", hook.script.display()));
    format!(
        "\n# {}: {}; {}, on {}{}{lines}",
        hook.name,
        hook.about,
        hook.into,
        hook.hosts.name(),
        script.unwrap_or_default()
    )
}

async fn install(global: &Global, files: HookFiles) -> Result<(), Error> {
    let (conf, plan) = plan_here(global, &files).await?;
    fs::create_dir_all(&files.dir).map_err(|source| Error::io("create", &files.dir, source))?;
    for hook in &plan.hooks {
        write(&hook.script, &hook.text, 0o755)?;
    }
    // For the Lua plugins the script is the module. The plugins themselves are written next to it, for sites without their own.
    if let Some(module) = plan.hooks.iter().find(|hook| hook.name == "JobSubmit") {
        for file in mesh_hook::lua::FILES {
            let path = files.dir.join(file.name);
            if path == module.script {
                fs::set_permissions(&path, Permissions::from_mode(0o644))
                    .map_err(|source| Error::io("set the mode of", &path, source))?;
            } else {
                // Only the module names the folder of the lines.
                write(&path, &file.text(&files.dir, Path::new("")), 0o644)?;
            }
        }
    }
    if global.json {
        return show::line(plan.to_json());
    }
    show::line(format!(
        "wrote {} hooks; now add to {}:\n{}",
        plan.hooks.len(),
        conf.path.display(),
        plan.lines()
    ))?;
    for note in &plan.notes {
        show::line(format!("note: {note}"))?;
    }
    show::line("`smesh hooks print` shows further hooks, `smesh hooks test` checks them")
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::io("write", path, source))?;
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|source| Error::io("set the mode of", path, source))
}
