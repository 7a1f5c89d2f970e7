//! `smesh ledger checkpoint`, `key` and `export`: fetch the proofs of a ledger, to store them elsewhere.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;

use reqwest::Method;
use serde_json::Value;

use crate::cli::{Global, LedgerExport, LedgerResume};
use crate::client::Query;
use crate::error::Error;
use crate::{settings, show};

const KEYS: &str = "/v1/ledger/keys";

pub(super) async fn newest(global: &Global) -> Result<(), Error> {
    copy(
        global,
        "/v1/ledger/checkpoint",
        &Query::new(),
        std::io::stdout(),
        "standard output",
    )
    .await
}

pub(super) async fn keys(global: &Global) -> Result<(), Error> {
    let answer = settings::client(global)?.get(KEYS, &Query::new()).await?;
    if global.json {
        return show::line(answer);
    }
    for key in answer["keys"].as_array().into_iter().flatten() {
        show::line(vkey(key)?)?;
    }
    Ok(())
}

pub(super) async fn rotate(global: &Global) -> Result<(), Error> {
    let answer = settings::client(global)?.post(KEYS).await?;
    if global.json {
        return show::line(answer);
    }
    show::line(vkey(&answer["key"])?)
}

fn vkey(key: &Value) -> Result<&str, Error> {
    key["vkey"]
        .as_str()
        .ok_or_else(|| Error::Answer("a key without vkey".into()))
}

pub(super) async fn export(global: &Global, args: &LedgerExport) -> Result<(), Error> {
    let query = vec![("from", args.from.to_string())];
    let path = "/v1/ledger/export";
    let Some(file) = &args.output else {
        return copy(global, path, &query, std::io::stdout(), "standard output").await;
    };
    // Private and never overwritten: an export holds the data of all users, and an earlier file may be the only witness.
    let output = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(|source| Error::io("create", file, source))?;
    let name = file.to_string_lossy();
    copy(global, path, &query, &output, &name).await?;
    output
        .sync_all()
        .map_err(|source| Error::io("write", file, source))
}

pub(super) async fn resume(global: &Global, args: &LedgerResume) -> Result<(), Error> {
    let checkpoint = match &args.from_checkpoint {
        None => None,
        Some(file) => {
            let note = std::fs::read_to_string(file);
            Some(note.map_err(|source| Error::io("read checkpoint", file, source))?)
        }
    };
    let request = serde_json::json!({
        "checkpoint": checkpoint, "new_origin": args.new_origin, "reason": args.because,
    });
    let client = settings::client(global)?;
    let path = "/v1/ledger/resume";
    let answer = client
        .send_json(Method::POST, path, Some(&request), &[])
        .await?;
    if global.json {
        return show::line(answer);
    }
    let number = |name: &str| answer[name].as_u64().unwrap_or_default();
    let (origin, from, to) = (answer["origin"].as_str(), number("from"), number("to"));
    let origin = show::clean(origin.unwrap_or_default());
    show::line(match (&args.new_origin, to.saturating_sub(from)) {
        (Some(_), _) => format!("the ledger continues as {origin}, after its first {from} entries"),
        (None, 0) => format!("nothing is missing: {origin} has all {to} entries of the checkpoint"),
        (None, back) => {
            format!(
                "{back} entries restored; {origin} has {to} entries, as the checkpoint requires"
            )
        }
    })
}

async fn copy(
    global: &Global,
    path: &str,
    query: &Query,
    mut output: impl Write,
    name: &str,
) -> Result<(), Error> {
    let mut text = settings::client(global)?.download(path, query).await?;
    let failed = |source| Error::io("write", name, source);
    while let Some(part) = text.next().await? {
        output.write_all(&part).map_err(failed)?;
    }
    output.flush().map_err(failed)
}
