//! Finds the nats-server program.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_bus::MIN_SERVER_VERSION;
use tokio::process::Command;

use crate::error::Error;

/// How long a program may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Tries `NATS_SERVER_BIN`, then the search path, then the folder of this program.
///
/// # Errors
/// If none is new enough. The text says what to do.
pub async fn find() -> Result<PathBuf, Error> {
    const ADVICE: &str = "install it, or set its path in NATS_SERVER_BIN (scripts/nats-server fetches it on Debian and prints the path); or set [mesh.nats] url to an existing server";
    let named = std::env::var_os("NATS_SERVER_BIN").map(PathBuf::from);
    let candidates: Vec<PathBuf> = match named {
        Some(path) => vec![path],
        None => searched(),
    };
    let mut old = None;
    for path in candidates {
        match version(&path).await {
            Some(version) if version >= MIN_SERVER_VERSION => return Ok(path),
            Some(version) => old = Some((path, version)),
            None => {}
        }
    }
    let (major, minor) = MIN_SERVER_VERSION;
    Err(Error::Failed(match old {
        Some((path, (a, b))) => format!(
            "{} is version {a}.{b}; nats-server {major}.{minor} or newer is required: {ADVICE}",
            path.display()
        ),
        None => format!("no nats-server found; {major}.{minor} or newer is required: {ADVICE}"),
    }))
}

/// Folders to search. Never the working directory or a relative folder, because root runs this in other users' folders.
fn searched() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = std::env::current_exe().ok();
    std::env::split_paths(&path)
        .chain(
            beside
                .iter()
                .filter_map(|exe| Some(exe.parent()?.to_owned())),
        )
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("nats-server"))
        .filter(|path| path.is_file())
        .collect()
}

/// Parses `nats-server: v2.15.1` as (2, 15). `None` if the program does not run.
async fn version(path: &Path) -> Option<(u32, u32)> {
    let mut command = Command::new(path);
    command.arg("--version");
    let output = mesh_runtime::program::output(&mut command, VERSION_TIMEOUT)
        .await
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.trim().rsplit('v').next()?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
