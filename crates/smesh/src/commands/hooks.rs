//! `smesh hooks`: what to write into slurm.conf, keeping the site's own programs.

mod plan;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use slurm_client::Slurm;
use tokio_util::sync::CancellationToken;

use crate::cli::{self, Global, HookFiles};
use crate::error::Error;
use crate::settings::{self, HOOK_CONFIG};
use crate::show;
use crate::slurm_conf::SlurmConf;

pub use plan::{Plan, plan};

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
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan for this machine.
///
/// # Errors
/// If neither slurmctld nor a slurm.conf tells what is set now.
pub async fn plan_here(global: &Global, files: &HookFiles) -> Result<(SlurmConf, Plan), Error> {
    let conf = current(global, files.slurm_conf.as_deref()).await?;
    let program = files.program.clone().unwrap_or_else(hook_program);
    let config = match &files.hook_config {
        Some(path) => path.clone(),
        None => settings::load(global, CancellationToken::new()).map_or_else(
            |_| PathBuf::from(mesh_hook::config::DEFAULT_PATH),
            |context| context.mesh.data_dir.join(HOOK_CONFIG),
        ),
    };
    let plan = plan(&conf, &program, &config, &files.dir, |path| {
        fs::read_to_string(path).ok()
    });
    Ok((conf, plan))
}

/// What is set now: as the controller has it, else as slurm.conf says.
async fn current(global: &Global, slurm_conf: Option<&Path>) -> Result<SlurmConf, Error> {
    let section: Option<slurm_client::Config> = settings::load(global, CancellationToken::new())
        .ok()
        .and_then(|context| context.section("slurm").ok());
    let mut config = section.unwrap_or_default();
    if slurm_conf.is_some() {
        config.conf = slurm_conf.map(Path::to_owned);
    }
    let path = SlurmConf::find(config.conf.as_deref())?;
    match Slurm::new(config).config().await {
        Ok(printed) => Ok(SlurmConf::from_controller(&path, &printed)),
        Err(error) => {
            anstream::eprintln!(
                "slurmctld does not answer ({}); reading {}",
                mesh_runtime::chain(&error),
                path.display()
            );
            SlurmConf::read(&path)
        }
    }
}

/// The mesh-hook beside this program, else where packages put it.
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
    show::line(show::bold(&format!("# {}", conf.path.display())))?;
    show::line(plan.lines())?;
    for hook in &plan.hooks {
        show::line(format!(
            "\n{}\n{}",
            show::bold(&format!("# {}", hook.script.display())),
            hook.text.trim_end()
        ))?;
    }
    for note in &plan.notes {
        show::line(format!("\n# note: {note}"))?;
    }
    show::line(
        "\n# `smesh hooks install DIR` writes the scripts; then: scontrol reconfigure (JobCompType needs a restart of slurmctld).",
    )
}

async fn install(global: &Global, files: HookFiles) -> Result<(), Error> {
    let (conf, plan) = plan_here(global, &files).await?;
    fs::create_dir_all(&files.dir).map_err(|source| Error::io("create", &files.dir, source))?;
    for hook in &plan.hooks {
        fs::write(&hook.script, &hook.text)
            .map_err(|source| Error::io("write", &hook.script, source))?;
        fs::set_permissions(&hook.script, Permissions::from_mode(0o755))
            .map_err(|source| Error::io("set the mode of", &hook.script, source))?;
    }
    show::line(format!(
        "wrote {} scripts; now write into {}:\n{}",
        plan.hooks.len(),
        conf.path.display(),
        plan.lines()
    ))?;
    for note in &plan.notes {
        show::line(format!("note: {note}"))?;
    }
    Ok(())
}
