//! `smesh ledger checkpoint`, `key` and `export`: what proves a ledger, fetched to be kept elsewhere.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;

use serde_json::Value;

use crate::cli::{Global, LedgerExport};
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
    // It holds what belongs to everybody, and an earlier one may be the only witness.
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
