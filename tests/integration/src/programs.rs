//! Where the project's programs are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use tokio::sync::OnceCell;

use crate::{Error, Service};

/// The programs under test.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `smesh`
    pub smesh: PathBuf,
    /// `mesh-hook`
    pub hook: PathBuf,
    /// `nats-server`
    pub nats: PathBuf,
}

/// Folders whose sources the programs are built from.
const SOURCES: &[&str] = &["crates", "services", "hooks"];

impl Programs {
    /// The programs of the build that this process is of; built first if they are missing or older than their sources.
    /// `MESH_BIN_DIR` names another folder that has them.
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

    /// The folder with the services as programs of their own, built first if they are missing or older than their sources: `make test` has
    /// built them, `cargo test -p integration` alone has not.
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
                build_unless_current(&folder, &Service::ALL).map(|()| folder)
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

/// The project's folder.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// `target/debug` of this process, which is there itself or in `deps`.
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

/// Builds programs, each called as its package, unless all are there and newer than what they are built from. What `cargo test` has built is not
/// built again: for some packages alone, features of what they depend on are others.
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
    // What cargo sets for its programs would make it build anew what asks for that: ring, and all that is above it.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    for package in packages {
        command.args(["--package", package]);
    }
    if folder.ends_with("release") {
        command.arg("--release");
    }
    let output = command.output().map_err(Error::io("run", "cargo"))?;
    if output.status.success() {
        Ok(())
    } else {
        let what = format!("cargo build of {}", packages.join(", "));
        Err(Error::command(what, &output))
    }
}

/// When the newest source below a folder was written.
fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries
        .filter_map(|entry| {
            let path = entry.path();
            if path.is_dir() {
                // What tests read does not go into the programs.
                (entry.file_name() != "tests").then(|| newest(&path))?
            } else {
                entry.metadata().ok()?.modified().ok()
            }
        })
        .max()
}

/// `NATS_SERVER_BIN`, else what `scripts/nats-server` finds or fetches.
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
