//! The test programs of the workspace, as cargo builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A test program.
pub struct Program {
    pub package: String,
    /// `it`, or the library's name.
    pub name: String,
    path: PathBuf,
    /// Folder in which cargo would run it.
    folder: PathBuf,
}

impl Program {
    /// The program of a package's `tests/it`, or else of its unit tests.
    pub fn find<'a>(programs: &'a [Self], package: &str, it: bool) -> Result<&'a Self> {
        let name = package.replace('-', "_");
        let name = if it { "it" } else { &name };
        let of = |program: &&Self| program.package == package && program.name == name;
        let found = programs.iter().find(of);
        found.with_context(|| format!("cargo built no {name} of {package}"))
    }

    /// Runs it in the folder and with the manifest folder that cargo would give it; those of this process are xtask's.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds the tests of these packages at once, of all packages if none is given. Building one package after the other would rebuild
/// many dependencies with other features.
pub fn build(root: &Path, packages: &[&str]) -> Result<Vec<Program>> {
    let mut command = cargo(root);
    command.args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    if packages.is_empty() {
        command.arg("--workspace");
    }
    for package in packages {
        command.args(["--package", package]);
    }
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()
        .context("run cargo test")?;
    ensure!(output.status.success(), "the tests do not compile");
    Ok(programs(&String::from_utf8_lossy(&output.stdout)))
}

/// Cargo without the variables that it sets for its programs: they would cause a rebuild of ring and everything that depends on it.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The programs in cargo's messages, one line of JSON each.
fn programs(messages: &str) -> Vec<Program> {
    let program = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        Some(Program {
            // The folder has the name of the package.
            package: folder.file_name()?.to_str()?.to_owned(),
            name: message["target"]["name"].as_str()?.to_owned(),
            path: message["executable"].as_str()?.into(),
            folder: folder.to_owned(),
        })
    };
    messages.lines().filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/x/crates/slurm-client/Cargo.toml","target":{"name":"slurm_client"},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/x/crates/slurm-client/Cargo.toml","target":{"name":"slurm_client"},"profile":{"test":true},"executable":"/x/lib-1"}
{"reason":"compiler-artifact","manifest_path":"/x/crates/slurm-client/Cargo.toml","target":{"name":"it"},"profile":{"test":true},"executable":"/x/it-2"}
{"reason":"compiler-artifact","manifest_path":"/x/crates/mesh-hook/Cargo.toml","target":{"name":"mesh-hook"},"profile":{"test":false},"executable":"/x/mesh-hook"}
{"reason":"build-finished","success":true}"#;
        let programs = programs(messages);
        let path =
            |it| Program::find(&programs, "slurm-client", it).map(|found| found.path.clone());
        assert_eq!(path(false).unwrap(), Path::new("/x/lib-1"));
        assert_eq!(path(true).unwrap(), Path::new("/x/it-2"));
        assert_eq!(programs.len(), 2, "a program that tests run is no test");
        assert!(Program::find(&programs, "ingest", true).is_err());
    }
}
