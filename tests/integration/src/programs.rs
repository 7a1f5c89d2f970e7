//! Finds or builds the project's programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use tokio::sync::OnceCell;

use crate::Error;

/// The programs under test.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Path of `smesh`.
    pub smesh: PathBuf,
    /// Path of `mesh-hook`.
    pub hook: PathBuf,
    /// Path of `nats-server`.
    pub nats: PathBuf,
}

/// Source folders of the programs.
const SOURCES: &[&str] = &["crates", "services", "hooks"];

impl Programs {
    /// All services, in no particular order.
    pub const SERVICES: [&str; 6] = [
        "ingest",
        "node-watcher",
        "cost-engine",
        "ledger",
        "webhook-dispatcher",
        "pending-explainer",
    ];

    /// Services that are off in `smesh up` unless configured.
    pub const OPTIONAL_SERVICES: [&str; 2] = ["workflow-trigger", "exporter"];

    /// The programs of this process's build. Built if they are missing or older than their sources. `MESH_BIN_DIR` names another
    /// folder with them.
    ///
    /// # Errors
    /// If they cannot be built, or there is no nats-server.
    pub fn find() -> Result<Self, Error> {
        static FOUND: OnceLock<Result<Programs, String>> = OnceLock::new();
        FOUND
            .get_or_init(|| Self::locate().map_err(|error| error.chain()))
            .clone()
            .map_err(Error::Machine)
    }

    /// The folder with the services as separate programs, built if they are missing or older than their sources. `make test` builds
    /// them, `cargo test -p integration` alone does not.
    ///
    /// # Errors
    /// If they cannot be built.
    pub async fn services() -> Result<&'static Path, Error> {
        static FOLDER: OnceCell<PathBuf> = OnceCell::const_new();
        let folder = FOLDER.get_or_try_init(async || {
            let folder = match std::env::var_os("MESH_BIN_DIR") {
                Some(folder) => return Ok(folder.into()),
                None => build_folder()?,
            };
            let built = tokio::task::spawn_blocking(move || {
                let packages = [&Self::SERVICES[..], &Self::OPTIONAL_SERVICES].concat();
                build_unless_current(&folder, &packages).map(|()| folder)
            });
            let failed = |error| Error::Machine(format!("build the services: {error}"));
            built.await.map_err(failed)?
        });
        folder.await.map(PathBuf::as_path)
    }

    fn locate() -> Result<Self, Error> {
        let nats = nats_server()?;
        if let Some(folder) = std::env::var_os("MESH_BIN_DIR").map(PathBuf::from) {
            return Ok(Self {
                smesh: folder.join("smesh"),
                hook: folder.join("mesh-hook"),
                nats,
            });
        }
        let folder = build_folder()?;
        let (smesh, hook) = (folder.join("smesh"), folder.join("mesh-hook"));
        build_unless_current(&folder, &["smesh", "mesh-hook"])?;
        Ok(Self { smesh, hook, nats })
    }
}

/// Root folder of the project.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// `target/debug` of this process, whose program is there or in `deps`.
fn build_folder() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(Error::io("find", "this program"))?;
    let folder = own.parent().unwrap_or(Path::new("."));
    let folder = if folder.ends_with("deps") {
        folder.parent().unwrap_or(folder)
    } else {
        folder
    };
    Ok(folder.to_owned())
}

/// Builds programs, each with the name of its package, unless all exist and are newer than their sources. Programs built by `cargo
/// test` are reused.
fn build_unless_current(folder: &Path, packages: &[&str]) -> Result<(), Error> {
    let newest = SOURCES
        .iter()
        .map(|name| newest(&root().join(name)))
        .max()
        .flatten();
    let is_current = |program: &&str| {
        let built = folder.join(program).metadata();
        let built = built.and_then(|file| file.modified()).ok();
        built.is_some() && built >= newest
    };
    match packages.iter().all(is_current) {
        true => Ok(()),
        false => build(folder, packages),
    }
}

fn build(folder: &Path, packages: &[&str]) -> Result<(), Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet"]).current_dir(root());
    // Variables that cargo sets for its programs would cause a rebuild of ring and everything that depends on it.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    if folder.ends_with("release") {
        command.arg("--release");
        command.args(packages.iter().flat_map(|package| ["--package", package]));
    } else {
        // As the Makefile builds: other targets would select other features of dependencies, and all be built again.
        command.args(["--workspace", "--bins", "--examples"]);
    }
    let output = command.output().map_err(Error::io("run", "cargo"))?;
    if output.status.success() {
        Ok(())
    } else {
        let description = format!("cargo build of {}", packages.join(", "));
        Err(Error::command(description, &output))
    }
}

/// Modification time of the newest source below a folder.
fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries
        .filter_map(|entry| {
            let path = entry.path();
            if path.is_dir() {
                // Test data is not part of the programs.
                (entry.file_name() != "tests").then(|| newest(&path))?
            } else {
                entry.metadata().ok()?.modified().ok()
            }
        })
        .max()
}

/// `NATS_SERVER_BIN`, else the program that `scripts/nats-server` finds or downloads.
fn nats_server() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("NATS_SERVER_BIN") {
        return Ok(path.into());
    }
    let script = root().join("scripts/nats-server");
    let output = Command::new(&script)
        .current_dir(root())
        .output()
        .map_err(Error::io("run", &script))?;
    if !output.status.success() {
        return Err(Error::command(
            "scripts/nats-server (run `make setup`, or set NATS_SERVER_BIN)",
            &output,
        ));
    }
    Ok(root().join(String::from_utf8_lossy(&output.stdout).trim()))
}
