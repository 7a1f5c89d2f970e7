//! `smesh backup` and `smesh restore`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ledger::VerifyReport;
use mesh_runtime::{Context, apply_process_limits};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::backup::archive::extract;
use crate::backup::create::{BackupTarget, create};
use crate::backup::restore::RestorePlan;
use crate::backup::{Selection, verify};
use crate::cli::{Backup, BackupCommand, Global, Restore};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn backup(global: &Global, args: Backup) -> Result<ExitCode, Error> {
    // Copies of the databases hold the jobs of all users.
    apply_process_limits();
    if let Some(BackupCommand::Verify { file }) = args.command {
        return verify_file(global, &file).await;
    }
    let target = args.target.unwrap_or_default();
    let target = match target.as_os_str().to_string_lossy().as_ref() {
        "-" if std::io::stdout().is_terminal() => {
            return Err(Error::Usage(
                "a backup is not for a terminal: redirect standard output, or name a folder".into(),
            ));
        }
        "-" => BackupTarget::Stdout,
        url if url.contains("://") => {
            return Err(Error::Usage(format!(
                "{url} is not a folder; for object stores: smesh backup - | aws s3 cp - {url}"
            )));
        }
        _ => BackupTarget::Folder(target),
    };
    let context = settings::load(global, CancellationToken::new())?;
    let selection = Selection::new(args.databases, args.streams);
    let bar = progress();
    let created = Box::pin(create(&context, &target, selection, args.secrets, &bar)).await;
    let (path, manifest) = created?;
    // Standard output is the backup itself.
    let Some(path) = path else {
        return Ok(ExitCode::SUCCESS);
    };
    let bytes: u64 = manifest.parts.iter().map(|part| part.bytes).sum();
    if global.json {
        show::line(json!({ "file": path, "bytes": bytes, "manifest": manifest }))?;
    } else {
        let took = manifest.ended_at - manifest.started_at;
        show::line(format!(
            "{}: {} parts, {bytes} bytes, in {} ms\nnext: smesh backup verify {0}",
            path.display(),
            manifest.parts.len(),
            took.num_milliseconds(),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn verify_file(global: &Global, file: &Path) -> Result<ExitCode, Error> {
    let folder =
        tempfile::tempdir().map_err(|source| Error::io("create a folder in", "TMPDIR", source))?;
    let bar = progress();
    let extracted = extract(file, folder.path(), |bytes| bar.inc(bytes))?;
    let verified = Box::pin(verify::databases(&extracted)).await?;
    bar.finish_and_clear();
    let manifest = extracted.manifest;
    let ledger = verified.ledger.as_ref();
    if global.json {
        show::line(json!({
            "verified": true,
            "ledger_entries": ledger.map(entries),
            "ledger_unchecked": ledger.map(unchecked),
            "checksum_only": verified.checksum_only,
            "manifest": manifest,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    show::line(format!(
        "cluster {}, {} by version {}: {} parts have their checksums",
        manifest.cluster,
        manifest.started_at,
        manifest.version,
        manifest.parts.len()
    ))?;
    if let Some(report) = ledger {
        show::line(format!(
            "the ledger's {} entries fit chain, tree and checkpoints",
            entries(report)
        ))?;
        show_unchecked(report)?;
    }
    for part in &verified.checksum_only {
        show::line(format!("only the checksum of {part}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn restore(global: &Global, args: Restore) -> Result<ExitCode, Error> {
    apply_process_limits();
    let mut context = settings::load(global, CancellationToken::new())?;
    if let Some(folder) = &args.into {
        context.mesh.data_dir = new_folder(folder)?;
        context.mesh.api.socket = PathBuf::new();
    }
    let checkpoint = args.checkpoint.as_ref().map(|path| {
        std::fs::read_to_string(path).map_err(|source| Error::io("read", path, source))
    });
    let checkpoint = checkpoint.transpose()?;
    let beside = context.mesh.data_dir.parent().unwrap_or(Path::new("/"));
    let folder = tempfile::tempdir_in(beside)
        .map_err(|source| Error::io("create a folder in", beside, source))?;
    let bar = progress();
    let extracted = extract(&args.file, folder.path(), |bytes| bar.inc(bytes))?;
    bar.reset();
    let selection = Selection::new(args.databases, args.streams);
    let plan = RestorePlan::new(&context, &extracted, selection, checkpoint)?;
    if !global.json {
        for line in plan.lines() {
            show::line(line)?;
        }
    }
    if !args.yes && !confirmed("Restore?")? {
        return Err(Error::Usage(
            "nothing was done; --yes does it without asking".into(),
        ));
    }
    let resumes = plan.newer_checkpoint()?;
    let verified = Box::pin(plan.run(&bar)).await?;
    report(global, &context, verified.as_ref(), resumes)
}

fn report(
    global: &Global,
    context: &Context,
    verified: Option<&VerifyReport>,
    resumes: bool,
) -> Result<ExitCode, Error> {
    let data_dir = &context.mesh.data_dir;
    if global.json {
        show::line(
            json!({ "data_dir": data_dir, "ledger_entries": verified.map(entries), "ledger_unchecked": verified.map(unchecked), "must_resume": resumes }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(report) = verified {
        show::line(format!(
            "restored; the ledger's {} entries fit chain, tree and checkpoints",
            entries(report)
        ))?;
        show_unchecked(report)?;
    }
    show::line(format!(
        "next: set data_dir = {:?} in [mesh], if it is another one, start the services, and run `smesh doctor`",
        data_dir.display().to_string()
    ))?;
    if resumes {
        show::line(
            "then `smesh ledger resume`: the ledger signed entries that the backup does not have",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

const fn entries(report: &VerifyReport) -> u64 {
    report.verified.count
}

/// Why each class of the ledger's data was not compared.
fn unchecked(report: &VerifyReport) -> BTreeMap<&'static str, &str> {
    let classes = report.classes.iter();
    classes
        .filter_map(|class| Some((class.name, class.unchecked.as_deref()?)))
        .collect()
}

fn show_unchecked(report: &VerifyReport) -> Result<(), Error> {
    unchecked(report)
        .into_iter()
        .try_for_each(|(name, why)| show::line(format!("  {name}: not checked: {why}")))
}

/// A folder that does not exist, or is empty.
fn new_folder(folder: &Path) -> Result<PathBuf, Error> {
    let folder = std::path::absolute(folder).map_err(|source| Error::io("find", folder, source))?;
    let is_empty = match std::fs::read_dir(&folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(source) => return Err(Error::io("read", &folder, source)),
    };
    match is_empty {
        true => Ok(folder),
        false => Err(Error::Failed(format!(
            "{} is not empty; nothing is overwritten",
            folder.display()
        ))),
    }
}

/// Asks on a terminal. Without one the answer is no.
pub(super) fn confirmed(question: &str) -> Result<bool, Error> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    show::line(format!("{question} Type yes:"))?;
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|source| Error::io("read", "standard input", source))?;
    Ok(answer.trim() == "yes")
}

/// Shown on a terminal only, on standard error.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {pos}/{len} {wide_msg} {elapsed}")
        .expect("a valid template");
    let bar = ProgressBar::new(0).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
