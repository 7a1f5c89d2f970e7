//! `smesh verify`: recomputes chain and tree of the ledger, and compares them with signed checkpoints.

mod published;

use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use ledger::adapters::KeyFile;
use ledger::domain::checkpoint::Checkpoint;
use ledger::domain::export::ExportVerifier;
use ledger::domain::keys;
use ledger::domain::note::PublicKey;
use ledger::{
    Class, Fault, FirstFault, Location, Store, TrustAnchors, UnverifiedLedger, VerifiedLedger,
    VerifyError, VerifyProgress, VerifyReport,
};
use ledger_format::cosignature::{WitnessKey, cosigned};
use ledger_format::file::{self, FileError};
use tokio_util::sync::CancellationToken;

use crate::cli::{self, Global};
use crate::client::Query;
use crate::error::Error;
use crate::{settings, show};

/// The only class that an export can prove.
const ENTRIES_ONLY: &str = "entries, chain and checkpoint";

pub(super) async fn run(global: &Global, args: cli::Verify) -> Result<ExitCode, Error> {
    let result = verify(global, &args).await;
    let uncosigned = match (&result, args.cosignatures) {
        (Ok(Ok(_)), Some(required)) => uncosigned(global, &args, required).await,
        _ => Ok(None),
    };
    if global.json
        && let Some(error) = result.as_ref().err().or(uncosigned.as_ref().err())
    {
        // A JSON client gets an answer in any case, here with nothing proven.
        show::line(
            serde_json::json!({ "verified": false, "error": mesh_runtime::error_chain(error) }),
        )?;
    }
    let (result, uncosigned) = (result?, uncosigned?);
    if let Some(reason) = uncosigned {
        show::line(match global.json {
            true => serde_json::json!({ "verified": false, "reason": reason }).to_string(),
            false => format!("the entries fit together, but only {reason}"),
        })?;
        return Ok(ExitCode::FAILURE);
    }
    report(global, &args, result)
}

/// Why the newest checkpoint lacks the required cosignatures. `None` if it has them.
async fn uncosigned(
    global: &Global,
    args: &cli::Verify,
    required: usize,
) -> Result<Option<String>, Error> {
    let witnesses = witnesses(args)?;
    let given = match newest_note(global, args).await? {
        Some(note) => cosigned(&note, &witnesses).map(|by| by.len()),
        None => Ok(0),
    };
    Ok(match given {
        Ok(given) if given >= required => None,
        Ok(given) => Some(format!(
            "{given} of {required} required witnesses cosigned the newest checkpoint"
        )),
        Err(error) => Some(format!(
            "the newest checkpoint has a bad cosignature: {error}"
        )),
    })
}

/// Witness keys from the command line.
fn witnesses(args: &cli::Verify) -> Result<Vec<WitnessKey>, Error> {
    let mut witnesses: Vec<WitnessKey> = Vec::new();
    for witness in &args.witness {
        let text = std::fs::read_to_string(witness).unwrap_or_else(|_| witness.clone());
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let key = line.parse();
            witnesses.push(key.map_err(|error| {
                Error::Usage(format!(
                    "--witness {witness}: neither a file of public keys of witnesses nor one: {error}"
                ))
            })?);
        }
    }
    Ok(witnesses)
}

/// The newest checkpoint of the ledger, if it has one.
async fn newest_note(global: &Global, args: &cli::Verify) -> Result<Option<String>, Error> {
    let failed = |error: ledger::Error| Error::Failed(mesh_runtime::error_chain(&error));
    if args.remote {
        let mut text = Vec::new();
        let client = settings::client(global)?;
        let mut answer = client
            .download("/v1/ledger/checkpoint", &Query::new())
            .await?;
        while let Some(part) = answer.next().await? {
            text.extend_from_slice(&part);
        }
        return Ok(Some(String::from_utf8_lossy(&text).into_owned()));
    }
    let location = location(global, args.database.as_deref())?;
    let store = Store::connect(&location, None, 1).map_err(failed)?;
    let newest = store.last_checkpoint().await;
    store.close().await;
    Ok(newest.map_err(failed)?.map(|newest| newest.note))
}

/// Location of the database to verify.
fn location(global: &Global, file: Option<&Path>) -> Result<Location, Error> {
    if let Some(path) = file {
        return Ok(Location::Sqlite(path.to_owned()));
    }
    let context = settings::load(global, CancellationToken::new())?;
    let config: ledger::Config = context.section("ledger")?;
    let failed = |error: ledger::Error| Error::Failed(mesh_runtime::error_chain(&error));
    match config.reader().map_err(failed)? {
        Some(reader) => Ok(reader),
        None => config.database(&context.mesh.data_dir).map_err(failed),
    }
}

async fn verify(global: &Global, args: &cli::Verify) -> Result<Result<VerifyReport, Lie>, Error> {
    let trust = trust(args)?;
    let bar = ProgressBar::new(0).with_style(bar_style());
    let result = if args.remote {
        remote(global, &trust, &bar).await
    } else if let Some(path) = &args.export {
        export(path, &trust, &bar)
    } else {
        database(global, args, trust, &bar).await
    };
    bar.finish_and_clear();
    result
}

/// A contradiction that verification found.
struct Lie {
    /// Class of the comparison that failed.
    class: &'static str,
    /// Sequence of the entry, if the fault is in one.
    seq: Option<i64>,
    reason: String,
}

impl Lie {
    /// `None` if the error is not a contradiction, for example a read error.
    fn of(error: &VerifyError) -> Option<Self> {
        let class = error.class()?;
        Some(match error {
            VerifyError::Invalid(bad) => Self {
                class,
                seq: Some(bad.seq),
                reason: bad.what.to_string(),
            },
            other => Self {
                class,
                seq: None,
                reason: other.to_string(),
            },
        })
    }
}

impl From<FirstFault> for Lie {
    fn from(bad: FirstFault) -> Self {
        Self {
            class: ENTRIES_ONLY,
            seq: Some(bad.seq),
            reason: bad.what.to_string(),
        }
    }
}

/// The report of an export, which proves only entries, chain and checkpoint.
fn only_entries(verified: VerifiedLedger) -> VerifyReport {
    VerifyReport {
        verified,
        classes: vec![Class {
            name: ENTRIES_ONLY,
            unchecked: None,
        }],
    }
}

async fn database(
    global: &Global,
    args: &cli::Verify,
    mut trust: TrustAnchors,
    bar: &ProgressBar,
) -> Result<Result<VerifyReport, Lie>, Error> {
    let failed = |error: ledger::Error| Error::Failed(mesh_runtime::error_chain(&error));
    let (location, writable, configured) = match &args.database {
        Some(path) => {
            let location = Location::Sqlite(path.clone());
            (location.clone(), location, None)
        }
        None => {
            let context = settings::load(global, CancellationToken::new())?;
            let config: ledger::Config = context.section("ledger")?;
            // Anyone who can write to the database may delete checkpoints from it, but not the last one signed on this host.
            let key = KeyFile::new(config.checkpoint.key_file(&context.mesh.data_dir));
            if let Some(note) = key.last_note().map_err(failed)? {
                let last = Checkpoint::unverified(&note).map_err(|error| {
                    let (file, error) = (key.path().display(), mesh_runtime::error_chain(&error));
                    Error::Failed(format!("{file}.last: {error}"))
                })?;
                trust.newest = Some(last);
            }
            let database = config.database(&context.mesh.data_dir).map_err(failed)?;
            let reader = config.reader().map_err(failed)?;
            let origin = config.checkpoint.origin(&context.mesh.cluster);
            (
                reader.unwrap_or_else(|| database.clone()),
                database,
                Some((context, origin)),
            )
        }
    };
    let unread = |error: VerifyError| {
        let why = mesh_runtime::error_chain(&error);
        Error::Failed(format!("verify {location}: {why}"))
    };
    let lie_or = |error: VerifyError| match Lie::of(&error) {
        Some(lie) => Ok(Err(lie)),
        None => Err(unread(error)),
    };
    let ledger = UnverifiedLedger::open(&location).map_err(unread)?;
    let progress = |progress: VerifyProgress| {
        bar.set_length(progress.of);
        bar.set_position(progress.verified);
    };
    let mut result = ledger.verify_everything(&trust, progress).await;
    if args.repair
        && matches!(&result, Err(VerifyError::Invalid(bad)) if bad.what == Fault::SubtreeDiffers)
    {
        repair_subtrees(&writable).await?;
        if !global.json {
            show::line("stored subtrees were not those of the entries: they were rebuilt")?;
        }
        result = ledger.verify_everything(&trust, progress).await;
    }
    let mut report = match result {
        Ok(report) => report,
        Err(error) => return lie_or(error),
    };
    if let Some((context, configured)) = &configured {
        let store = Store::connect(&location, None, 1).map_err(failed)?;
        let keys = store.checkpoint_keys().await;
        store.close().await;
        // A ledger that continues under another origin lacks some checkpoints of the former one. The report says so.
        let origin = keys::origin(&keys.map_err(failed)?, configured);
        if let Err(error) = published::compare(context, &origin, &ledger, &mut report).await {
            return lie_or(error);
        }
    }
    ledger.close().await;
    Ok(Ok(report))
}

/// Needs write access, which verifying does not use.
async fn repair_subtrees(location: &Location) -> Result<(), Error> {
    let failed = |error: ledger::Error| Error::Failed(mesh_runtime::error_chain(&error));
    let store = Store::connect(location, None, 1).map_err(failed)?;
    let repaired = ledger::checkpointer::repair_subtrees(&store).await;
    store.close().await;
    repaired.map_err(failed)
}

fn export(
    path: &Path,
    trust: &TrustAnchors,
    bar: &ProgressBar,
) -> Result<Result<VerifyReport, Lie>, Error> {
    let io = |source| Error::io("read", path, source);
    let mut lines = if path == Path::new("-") {
        file::ExportReader::new(BufReader::new(std::io::stdin()))
    } else {
        file::ExportReader::open(path)
    }
    .map_err(io)?;
    let options = file::VerifyOptions {
        keys: &trust.keys,
        trusted: &trust.checkpoints,
        threads: file::available_threads(),
        progress: &mut |_, verified, of| {
            bar.set_length(of);
            bar.set_position(verified);
        },
    };
    match file::verify(&mut lines, options) {
        Ok(export) => Ok(Ok(only_entries(export.verified))),
        Err(FileError::Invalid(bad)) => Ok(Err(bad.into())),
        Err(FileError::Read(source)) => Err(io(source)),
        Err(error) => Err(unprovable(&error)),
    }
}

/// The error for a file that is not an export, or that no trusted key has signed.
fn unprovable(error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Failed(format!(
        "verify export: {}",
        mesh_runtime::error_chain(error)
    ))
}

async fn remote(
    global: &Global,
    trust: &TrustAnchors,
    bar: &ProgressBar,
) -> Result<Result<VerifyReport, Lie>, Error> {
    let client = settings::client(global)?;
    let mut text = client.download("/v1/ledger/export", &Query::new()).await?;
    let mut lines = Lines::new(trust, bar);
    let mut rest = Vec::new();
    while let Some(part) = text.next().await? {
        rest.extend_from_slice(&part);
        let mut begin = 0;
        while let Some(end) = rest[begin..].iter().position(|byte| *byte == b'\n') {
            if let Err(bad) = lines.take(&rest[begin..=begin + end])? {
                return Ok(Err(bad.into()));
            }
            begin += end + 1;
        }
        rest.drain(..begin);
    }
    lines.finish()
}

/// Reads an export line by line.
struct Lines<'a> {
    trust: &'a TrustAnchors,
    bar: &'a ProgressBar,
    verifier: Option<ExportVerifier>,
}

impl<'a> Lines<'a> {
    const fn new(trust: &'a TrustAnchors, bar: &'a ProgressBar) -> Self {
        Self {
            trust,
            bar,
            verifier: None,
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<Result<(), FirstFault>, Error> {
        if let Some(verifier) = &mut self.verifier {
            let taken = verifier.next(line);
            self.bar.set_position(verifier.last().unsigned_abs());
            return Ok(taken);
        }
        let verifier = ExportVerifier::new(line, &self.trust.keys, &self.trust.checkpoints);
        let verifier = verifier.map_err(|error| unprovable(&error))?;
        self.bar.set_length(verifier.checkpoint().size);
        self.verifier = Some(verifier);
        Ok(Ok(()))
    }

    fn finish(self) -> Result<Result<VerifyReport, Lie>, Error> {
        match self.verifier {
            Some(verifier) => Ok(verifier.finish().map(only_entries).map_err(Lie::from)),
            None => Err(Error::Failed("verify export: it is empty".into())),
        }
    }
}

/// Keys and checkpoints from the command line.
fn trust(args: &cli::Verify) -> Result<TrustAnchors, Error> {
    let mut keys: Vec<PublicKey> = Vec::new();
    for key in &args.key {
        let text = match std::fs::read_to_string(key) {
            Ok(text) => text,
            Err(_) => key.clone(),
        };
        keys.extend(PublicKey::parse_all(&text).map_err(|error| {
            Error::Usage(format!(
                "--key {key}: neither a file of public keys nor one: {error}"
            ))
        })?);
    }
    let mut checkpoints = Vec::new();
    for path in &args.checkpoint {
        let note = std::fs::read_to_string(path)
            .map_err(|source| Error::io("read checkpoint", path, source))?;
        // Without a key, the checkpoint is trusted because the user stored it.
        let checkpoint = match keys.as_slice() {
            [] => Checkpoint::unverified(&note),
            keys => Checkpoint::open(&note, keys).map(|(checkpoint, _)| checkpoint),
        };
        checkpoints.push(checkpoint.map_err(|error| {
            Error::Failed(format!(
                "--checkpoint {}: {}",
                path.display(),
                mesh_runtime::error_chain(&error)
            ))
        })?);
    }
    Ok(TrustAnchors {
        keys,
        checkpoints,
        archives: args.archive.clone(),
        ..TrustAnchors::default()
    })
}

fn report(
    global: &Global,
    args: &cli::Verify,
    result: Result<VerifyReport, Lie>,
) -> Result<ExitCode, Error> {
    let (result, classes) = match result {
        Ok(report) => (Ok(report.verified), report.classes),
        Err(lie) => (Err(lie), Vec::new()),
    };
    match result {
        Ok(verified) if verified.signed == 0 && verified.count > 0 && !args.key.is_empty() => {
            let reason = "no checkpoint is signed by a key that was given";
            if global.json {
                show::line(
                    serde_json::json!({ "verified": false, "entries": verified.count, "reason": reason }),
                )?;
            } else {
                show::line(format!("the entries fit together, but {reason}"))?;
            }
            Ok(ExitCode::FAILURE)
        }
        Ok(verified) => {
            let head = hex::encode(verified.head);
            if global.json {
                show::line(serde_json::json!({
                    "verified": true, "entries": verified.count, "head": head,
                    "signed": verified.signed, "archived": verified.archived, "unaudited_archives": verified.unaudited,
                    "checked": classes.iter().filter(|class| class.unchecked.is_none()).map(|class| class.name).collect::<Vec<_>>(),
                    "unchecked": classes.iter().filter_map(|class| Some((class.name, class.unchecked.as_ref()?))).collect::<std::collections::BTreeMap<_, _>>(),
                }))?;
            } else {
                let signed = match (verified.signed, args.key.is_empty()) {
                    (0, _) => "no checkpoint is signed yet".to_owned(),
                    (signed, false) => format!("signed up to {signed}"),
                    (signed, true) => {
                        format!("signed up to {signed} by keys that it names itself")
                    }
                };
                show::line(format!(
                    "{} entries are as they were written, {signed}; head {head}",
                    verified.count
                ))?;
                let unsigned = verified.count.saturating_sub(verified.signed);
                if verified.signed > 0 && unsigned > 0 {
                    show::line(format!(
                        "no signature covers the last {unsigned} of them yet. If that stays so, the ledger does not sign, or checkpoints were removed"
                    ))?;
                }
                if verified.archived > 0 {
                    show::line(format!(
                        "{} of them have only their hashes here: their content is archived or erased (smesh ledger archives)",
                        verified.archived
                    ))?;
                }
                if verified.unaudited > 0 {
                    show::line(format!(
                        "{} archives are not in the audit yet; a running ledger adds them within seconds",
                        verified.unaudited
                    ))?;
                }
            }
            if !global.json {
                for class in &classes {
                    show::line(match &class.unchecked {
                        None => format!("  {}: checked", class.name),
                        Some(why) => format!("  {}: not checked: {why}", class.name),
                    })?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(Lie { class, seq, reason }) => {
            if global.json {
                let mut answer =
                    serde_json::json!({ "verified": false, "class": class, "reason": reason });
                if let Some(seq) = seq {
                    answer["first_bad_sequence"] = seq.into();
                }
                show::line(answer)?;
            } else {
                show::line(match seq {
                    Some(seq) => {
                        format!(
                            "the ledger was changed: the first bad entry is sequence {seq}: {reason}"
                        )
                    }
                    None => format!("the ledger was changed: {reason}"),
                })?;
                show::line(format!(
                    "  {class}: does not match; what follows it was not checked"
                ))?;
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Shown on a terminal only, as indicatif does by default.
fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {percent}% {pos}/{len} entries, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
