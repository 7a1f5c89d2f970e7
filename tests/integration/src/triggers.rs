//! What workflow-trigger needs to act for users of a cluster.

use std::path::Path;

use crate::{Cluster, Error, set_mode};

/// Its section of `mesh.toml`, with that folder of scripts. It acts for alice.
///
/// # Errors
/// If `trigger-submitter` is not among the programs.
pub fn trigger_keys(cluster: &Cluster, programs: &Path, scripts: &Path) -> Result<String, Error> {
    if !programs.join("trigger-submitter").is_file() {
        let problem = "no trigger-submitter beside smesh: cargo build -p slurm-submit";
        return Err(Error::Machine(problem.into()));
    }
    let config = cluster.path("trigger-submitter.toml");
    let text = format!(
        "users = [\"alice\"]\n[slurm]\nconf = {:?}\nbin_dir = {:?}\n",
        cluster.slurm_conf(),
        cluster.commands()
    );
    write_private(&config, &text)?;
    Ok(format!(
        "[workflow-trigger]\nconfirm_after = \"1s\"\nscripts = {scripts:?}\n[workflow-trigger.submitter]\nprogram_dir = {programs:?}\nprogram_config = {config:?}\n"
    ))
}

/// Writes a file that only root reads.
///
/// # Errors
/// If it cannot be written.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::io("write", path))?;
    set_mode(path, 0o600)
}
