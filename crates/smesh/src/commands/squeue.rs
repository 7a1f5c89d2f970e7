//! `smesh squeue`: squeue's answers from the list of jobs that ingest reads once for everybody.
//!
//! Whatever it does not know for certain, it leaves to the real program, with unchanged arguments: other options, formats and variables of
//! squeue, a list that is old, jobs that are not in it or that the caller may not see, and a mesh that does not answer.

mod arguments;
mod format;
mod long_format;
mod select;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::cli::Global;
use crate::client::{Query, segment};
use crate::error::Error;
use crate::settings;

/// Age from which a list is not used.
const MAX_AGE_SECS: i64 = 30;
/// Age that is named on a terminal.
const OLD_SECS: i64 = 15;
/// Longest time that the mesh may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Prefixes of variables that change what squeue prints.
const VARIABLES: [&str; 5] = [
    "SQUEUE_",
    "SLURM_CLUSTERS",
    "SLURM_TIME_FORMAT",
    "SLURM_BITSTR_LEN",
    "SLURM_CONF_SERVER",
];

/// Variable of the squeue that this program was replaced by.
const REPLACED: &str = "SMESH_SQUEUE_REPLACED";

/// All jobs that the caller may see, as squeue prints them.
#[derive(Debug, Default, Deserialize)]
struct Listing {
    age_seconds: i64,
    is_complete: bool,
    users: Vec<String>,
    letters: String,
    titles: Vec<String>,
    jobs: Vec<Vec<String>>,
}

impl Listing {
    fn position(&self, letter: char) -> Option<usize> {
        self.letters.chars().position(|other| other == letter)
    }

    fn column<'a>(&self, job: &'a [String], letter: char) -> &'a str {
        let at = self.position(letter);
        at.and_then(|at| job.get(at)).map_or("", String::as_str)
    }
}

/// Answers like squeue, or runs it.
///
/// # Errors
/// If there is no squeue to run, or standard output is closed.
pub async fn run(global: &Global, arguments: &[OsString]) -> Result<ExitCode, Error> {
    let Some(text) = answer(global, arguments).await else {
        return Err(run_squeue(global, arguments));
    };
    let mut output = std::io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .map_err(|source| Error::io("write", "standard output", source))?;
    Ok(ExitCode::SUCCESS)
}

/// The answer, if it is certain.
async fn answer(global: &Global, arguments: &[OsString]) -> Option<String> {
    let is_changed = |(name, _): (OsString, OsString)| {
        let name = name.to_string_lossy().into_owned();
        VARIABLES.iter().any(|prefix| name.starts_with(prefix))
    };
    if std::env::vars_os().any(is_changed) {
        return None;
    }
    let arguments: Option<Vec<&str>> = arguments.iter().map(|text| text.to_str()).collect();
    let asked = arguments::parse(&arguments?)?;
    let cluster = settings::cluster(global).ok()?;
    if asked
        .cluster
        .as_ref()
        .is_some_and(|asked| *asked != cluster)
    {
        return None;
    }
    let client = settings::client(global).ok()?;
    let path = format!("/v1/queue/{}/listing", segment(&cluster));
    let mut query = Query::new();
    if let Some(users) = &asked.users {
        query.push(("user", users.join(",")));
    }
    let found = tokio::time::timeout(TIMEOUT, client.get(&path, &query)).await;
    let listing: Listing = serde_json::from_value(found.ok()?.ok()?).ok()?;
    if !(0..=MAX_AGE_SECS).contains(&listing.age_seconds) {
        return None;
    }
    let jobs = select::jobs(&listing, &asked)?;
    let mut text = format::print(&listing, &asked, &jobs)?;
    if asked.cluster.is_some() {
        text.insert_str(0, &format!("CLUSTER: {cluster}\n"));
    }
    if listing.age_seconds > OLD_SECS && std::io::stderr().is_terminal() {
        anstream::eprintln!("as of {} s ago", listing.age_seconds);
    }
    Some(text)
}

/// Replaces this process by squeue. Returns only if that fails.
fn run_squeue(global: &Global, arguments: &[OsString]) -> Error {
    let Some(program) = squeue(global) else {
        return Error::Failed("no squeue in slurm.bin_dir or PATH".to_owned());
    };
    let mut command = std::process::Command::new(&program);
    let error = command.args(arguments).env(REPLACED, "1").exec();
    Error::io("run", program, error)
}

/// The real program. Scripts in PATH are left out: a script named squeue in front of it is what called this one. One in `slurm.bin_dir`
/// may be the site's own; if it calls this program again, it is left out, too.
fn squeue(global: &Global) -> Option<PathBuf> {
    let context = settings::load(global, CancellationToken::new()).ok();
    let section = context.and_then(|context| context.section::<slurm_client::Config>("slurm").ok());
    let configured = section.and_then(|slurm| slurm.bin_dir);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let was_replaced = std::env::var_os(REPLACED).is_some();
    let folders = configured.into_iter().map(|folder| (folder, !was_replaced));
    let folders = folders.chain(std::env::split_paths(&path).map(|folder| (folder, false)));
    let mut programs =
        folders.map(|(folder, may_be_script)| (folder.join("squeue"), may_be_script));
    let found = programs.find(|(program, may_be_script)| {
        let mut start = [0; 2];
        let read = std::fs::File::open(program)
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
        read.is_ok() && (*may_be_script || start != *b"#!")
    });
    found.map(|(program, _)| program)
}
