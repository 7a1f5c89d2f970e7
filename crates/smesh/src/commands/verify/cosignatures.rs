//! Cosignatures of witnesses under the newest checkpoint.

use ledger::Store;
use ledger_format::cosignature::{WitnessKey, cosigned};

use super::location;
use crate::cli::{self, Global};
use crate::client::Query;
use crate::error::Error;
use crate::settings;

/// Why the newest checkpoint lacks the required cosignatures. `None` if it has them.
pub(super) async fn missing(
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
