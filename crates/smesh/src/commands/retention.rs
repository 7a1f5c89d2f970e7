//! `smesh ledger retain` and `archives`: moves old entries out of the ledger's database.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use indicatif::{ProgressBar, ProgressStyle};
use ledger::adapters::KeyFile;
use ledger::checkpointer::Checkpointer;
use ledger::domain::archive::StoredArchive;
use ledger::retention::{RetentionProgress, RetentionRequest};
use ledger::{LedgerService, Location, Retention, Store};
use mesh_events::catalogue::MESH_CHECKPOINTS;
use mesh_runtime::{Service as _, TimeBound};
use serde_json::{Value, json};
use tokio::sync::watch::Sender;
use tokio_util::sync::CancellationToken;

use crate::cli::{Global, LedgerRetain};
use crate::error::Error;
use crate::{known_ledgers, reader, settings, show};

pub(super) async fn retain(global: &Global, args: LedgerRetain) -> Result<(), Error> {
    let before = before(args.before)?;
    let context = settings::load(global, CancellationToken::new())?;
    let config: ledger::Config = context.section("ledger")?;
    let eraser = config.eraser().map_err(failed)?;
    let location = match eraser {
        Some(location) => location,
        None => config.database(&context.mesh.data_dir).map_err(failed)?,
    };
    let store = Store::connect(&location, None, 1).map_err(failed)?;
    let key = KeyFile::new(config.checkpoint.key_file(&context.mesh.data_dir));
    let retention = Retention::new(store.clone(), &location, key.clone());
    let folder = args
        .archive_dir
        .unwrap_or_else(|| config.retention.archive_dir(&context.mesh.data_dir));
    let plan = retention.plan(before).await.map_err(failed)?;
    if args.dry_run {
        let (from, to) = (plan.archived_to + 1, plan.to);
        if global.json {
            return show::line(
                json!({ "dry_run": true, "archived_to": plan.archived_to, "to": to }),
            );
        }
        return show::line(match to < from {
            true => "no signed entries are that old".to_owned(),
            false if args.erase => {
                format!("the content of entries {from} to {to} would be erased")
            }
            false => format!(
                "entries {from} to {to} would be archived in {}",
                folder.display()
            ),
        });
    }
    let bus = reader::connect_as(&context, LedgerService::NAME).await;
    let bus = bus.map_err(|why| {
        Error::Failed(format!(
            "the ledger is not compared with its checkpoints on {MESH_CHECKPOINTS}, so nothing is archived or erased: {why}"
        ))
    })?;
    let (cluster, config) = (&context.mesh.cluster, config.checkpoint);
    let published = Checkpointer::new(store, bus.clone(), key, &config.origin(cluster), cluster);
    let retention = retention.compared_by(published);
    let request = RetentionRequest {
        before,
        folder: (!args.erase).then_some(folder),
        made_by: user(),
    };
    let progress = Sender::new(RetentionProgress::default());
    let bar = ProgressBar::new(plan.to.saturating_sub(plan.archived_to)).with_style(style());
    let show_progress = async {
        loop {
            let RetentionProgress {
                written, checked, ..
            } = *progress.borrow();
            // Every entry is written, verified and then dropped.
            bar.set_message(format!("written to {written}, verified to {checked}"));
            bar.set_position(progress.borrow().dropped);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let done = tokio::select! {
        done = retention.run(&request, &progress) => done,
        () = show_progress => return Ok(()),
    };
    bar.finish_and_clear();
    retention.close().await;
    bus.close().await;
    let done = done.map_err(failed)?;
    if global.json {
        let archives: Vec<Value> = done.archives.iter().map(as_json).collect();
        return show::line(json!({ "archives": archives, "payloads_dropped": done.dropped }));
    }
    for archive in &done.archives {
        let what = match &archive.file {
            Some(file) => format!("archived in {}", file.path),
            None => "erased".to_owned(),
        };
        show::line(format!(
            "entries {} to {}: {what}",
            archive.first_seq, archive.last_seq
        ))?;
    }
    show::line(format!("{} payloads removed from {location}", done.dropped))
}

pub(super) async fn list(global: &Global) -> Result<(), Error> {
    // What was taken out of the database of a ledger, which its API shows.
    known_ledgers::guard(settings::client(global)?.unguarded()).await?;
    let context = settings::load(global, CancellationToken::new())?;
    let config: ledger::Config = context.section("ledger")?;
    let location: Location = match config.reader().map_err(failed)? {
        Some(reader) => reader,
        None => config.database(&context.mesh.data_dir).map_err(failed)?,
    };
    let store = Store::connect(&location, None, 1).map_err(failed)?;
    let archives = store.archives(0).await.map_err(failed)?;
    store.close().await;
    if global.json {
        let archives: Vec<Value> = archives.iter().map(as_json).collect();
        return show::line(json!({ "archives": archives }));
    }
    let title = ["ENTRIES", "MADE", "BY", "FILE", "SHA-256"].map(str::to_owned);
    let mut rows = vec![title.to_vec()];
    for archive in &archives {
        let (path, sha256) = match &archive.file {
            Some(file) => (file.path.clone(), hex::encode(&file.sha256)),
            None => ("erased".to_owned(), String::new()),
        };
        let by = match archive.made_by.as_str() {
            "" => "policy",
            user => user,
        };
        let entries = format!("{}-{}", archive.first_seq, archive.last_seq);
        rows.push(vec![
            entries,
            time(archive.made_at),
            by.to_owned(),
            path,
            sha256,
        ]);
    }
    show::line(show::table(&rows))
}

fn as_json(archive: &StoredArchive) -> Value {
    let file = archive.file.as_ref();
    json!({
        "first_seq": archive.first_seq,
        "last_seq": archive.last_seq,
        "path": file.map(|file| &file.path),
        "sha256": file.map(|file| hex::encode(&file.sha256)),
        "bytes": file.map(|file| file.bytes),
        "signed_by": archive.signed_by,
        "made_at": time(archive.made_at),
        "made_by": archive.made_by,
        "note": archive.note,
    })
}

fn time(micros: i64) -> String {
    DateTime::from_timestamp_micros(micros)
        .map(|time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
        .unwrap_or_default()
}

fn before(bound: TimeBound) -> Result<DateTime<Utc>, Error> {
    let now = Utc::now();
    let time = bound.resolve(&now);
    if time >= now {
        let text = String::from(bound);
        return Err(Error::Usage(format!("--before {text}: not in the past")));
    }
    Ok(time)
}

fn user() -> String {
    uzers::get_current_username()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn failed(error: ledger::Error) -> Error {
    Error::Failed(mesh_runtime::error_chain(&error))
}

/// Shown on a terminal only, as indicatif does by default.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {pos}/{len} removed, {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
