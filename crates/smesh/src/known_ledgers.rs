//! The newest checkpoint seen of each ledger, comparable to `known_hosts`. A ledger that contradicts its earlier state is refused.
//!
//! Stored for each ledger: the trusted keys and the checkpoint's note; and for each API address, which ledger is there. A ledger is
//! its oldest key, whose text begins with its origin. So it is the same ledger under another address, and another one under a known
//! address is refused. The first contact is trusted, unless a ledger of this origin is known. A later checkpoint must be signed by a
//! trusted key, or by a key that those handed over to. It must be proven to continue the stored one. [`published`] compares with the
//! checkpoints on NATS.

mod file;
pub mod published;

use std::time::Duration;

use ledger::domain::checkpoint::{Checkpoint, CheckpointError};
use ledger::domain::note::{NoteError, PublicKey};
use ledger_format::merkle::verify_consistency;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::{Query, UnguardedClient};
use crate::error::Error;

pub use file::{KnownLedgers, KnownLedgersFile};

/// Environment variable with the path of the file, instead of the user's state directory.
pub const FILE_VARIABLE: &str = "SMESH_KNOWN_LEDGERS";
const CHECKPOINTS: &str = "/v1/ledger/checkpoints";
/// How often a ledger is asked again that shows an older checkpoint than was seen.
const LAG_RETRIES: u32 = 5;
const LAG_INTERVAL: Duration = Duration::from_secs(1);

/// Stored state of the ledger at an address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KnownLedger {
    /// Its public keys, oldest first.
    pub keys: Vec<String>,
    /// Newest checkpoint seen.
    pub checkpoint: String,
}

/// Present state of a ledger, compared with the stored one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerComparison {
    /// The ledger has no checkpoint and never had one.
    Nothing,
    /// It continues the stored state, if there is one.
    Known(KnownLedger),
    /// It contradicts the stored state.
    Contradiction {
        /// The contradiction, as text.
        reason: String,
        /// Stored state.
        known: KnownLedger,
        /// The ledger's present note. Empty if it has none.
        latest: String,
    },
}

fn size_of(note: &str) -> u64 {
    Checkpoint::unverified(note).map_or(0, |checkpoint| checkpoint.size)
}

/// Compares a ledger with its stored state, and stores the new state if it is a continuation.
///
/// # Errors
/// If the ledger or the file cannot be read.
pub async fn check_latest(
    client: &UnguardedClient,
    file: &KnownLedgers,
) -> Result<LedgerComparison, Error> {
    let address = client.address().to_string();
    for _ in 0..LAG_RETRIES {
        // Read before the ledger is queried, because another process may store a newer state meanwhile.
        let known = file.read()?;
        let seen = look(client, &known, &address).await?;
        if !matches!(&seen, LedgerComparison::Contradiction { known, latest, .. } if is_behind(known, latest))
        {
            return noted(file, &address, seen);
        }
        tokio::time::sleep(LAG_INTERVAL).await;
    }
    let seen = look(client, &file.read()?, &address).await?;
    noted(file, &address, seen)
}

/// True for an older checkpoint of the same ledger: the database of this address may be a replica that is behind.
fn is_behind(known: &KnownLedger, latest: &str) -> bool {
    let keys = parsed(&known.keys);
    let opened = Checkpoint::open(latest, &keys);
    opened.is_ok_and(|(checkpoint, _)| checkpoint.size < size_of(&known.checkpoint))
}

fn noted(
    file: &KnownLedgers,
    address: &str,
    seen: LedgerComparison,
) -> Result<LedgerComparison, Error> {
    if let LedgerComparison::Known(known) = &seen {
        file.store(address, known, false)?;
    }
    Ok(seen)
}

/// Compares the ledger at an address once.
async fn look(
    client: &UnguardedClient,
    known: &KnownLedgersFile,
    address: &str,
) -> Result<LedgerComparison, Error> {
    Ok(match (known.at(address), newest(client).await?) {
        (None, None) => LedgerComparison::Nothing,
        (Some(known), None) => LedgerComparison::Contradiction {
            reason: "it no longer has a checkpoint".to_owned(),
            known: known.clone(),
            latest: String::new(),
        },
        (Some(known), Some(latest)) => compare(client, known.clone(), latest).await?,
        (None, Some(latest)) => {
            let origin = Checkpoint::unverified(&latest).map(|checkpoint| checkpoint.origin);
            let mut refused = None;
            for known in known.of_origin(&origin.unwrap_or_default()) {
                match compare(client, known.clone(), latest.clone()).await? {
                    LedgerComparison::Contradiction { .. } if refused.is_some() => {}
                    seen @ LedgerComparison::Contradiction { .. } => refused = Some(seen),
                    seen => return Ok(seen),
                }
            }
            match refused {
                Some(refused) => refused,
                None => first_contact(client, &latest).await?,
            }
        }
    })
}

/// Present state of the ledger, without a comparison.
///
/// # Errors
/// If it cannot be read, or does not match its own keys.
pub async fn latest_unchecked(client: &UnguardedClient) -> Result<LedgerComparison, Error> {
    match newest(client).await? {
        None => Ok(LedgerComparison::Nothing),
        Some(latest) => first_contact(client, &latest).await,
    }
}

async fn newest(client: &UnguardedClient) -> Result<Option<String>, Error> {
    let mut text = Vec::new();
    let mut answer = match client
        .download("/v1/ledger/checkpoint", &Query::new())
        .await
    {
        Ok(answer) => answer,
        Err(Error::Refused { status: 404, .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    while let Some(part) = answer.next().await? {
        text.extend_from_slice(&part);
    }
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

async fn keys_of(client: &UnguardedClient) -> Result<Vec<String>, Error> {
    let answer = client.get("/v1/ledger/keys", &Query::new()).await?;
    let keys = answer["keys"].as_array().into_iter().flatten();
    let vkeys = keys.filter_map(|key| Some(key["vkey"].as_str()?.to_owned()));
    Ok(vkeys.collect())
}

async fn first_contact(client: &UnguardedClient, latest: &str) -> Result<LedgerComparison, Error> {
    let mut keys = keys_of(client).await?;
    let offered = parsed(&keys);
    let (checkpoint, _) = Checkpoint::open(latest, &offered)
        .map_err(|error| Error::Failed(format!("the ledger's checkpoint: {error}")))?;
    // Keys of another origin would stand for another ledger.
    keys.retain(|key| {
        let key: Result<PublicKey, _> = key.parse();
        key.is_ok_and(|key| key.name() == checkpoint.origin)
    });
    Ok(LedgerComparison::Known(KnownLedger {
        keys,
        checkpoint: latest.to_owned(),
    }))
}

fn parsed(keys: &[String]) -> Vec<PublicKey> {
    keys.iter().filter_map(|key| key.parse().ok()).collect()
}

async fn compare(
    client: &UnguardedClient,
    mut known: KnownLedger,
    latest: String,
) -> Result<LedgerComparison, Error> {
    let contradiction = |reason: String, known: KnownLedger, latest: String| {
        Ok(LedgerComparison::Contradiction {
            reason,
            known,
            latest,
        })
    };
    let before = Checkpoint::unverified(&known.checkpoint)
        .map_err(|error| Error::Failed(format!("stored checkpoint of the ledger: {error}")))?;
    let checkpoint = match open(client, &mut known, &before, &latest).await? {
        Ok(checkpoint) => checkpoint,
        Err(reason) => return contradiction(reason, known, latest),
    };
    if checkpoint.origin != before.origin {
        let reason = format!("it is {} now, it was {}", checkpoint.origin, before.origin);
        return contradiction(reason, known, latest);
    }
    match continues(client, &before, &checkpoint).await? {
        Ok(()) => {
            known.checkpoint = latest;
            Ok(LedgerComparison::Known(known))
        }
        Err(reason) => contradiction(reason, known, latest),
    }
}

/// Opens a checkpoint with the known keys, and with the keys they handed over to.
async fn open(
    client: &UnguardedClient,
    known: &mut KnownLedger,
    before: &Checkpoint,
    latest: &str,
) -> Result<Result<Checkpoint, String>, Error> {
    match Checkpoint::open(latest, &parsed(&known.keys)) {
        Ok((checkpoint, _)) => return Ok(Ok(checkpoint)),
        Err(CheckpointError::Note(NoteError::Untrusted(_))) => {}
        Err(error) => return Ok(Err(error.to_string())),
    }
    let (mut from, offered) = (before.size, keys_of(client).await?);
    loop {
        let query = vec![("from", from.to_string()), ("limit", "1000".to_owned())];
        let answer = client.get(CHECKPOINTS, &query).await?;
        let page = answer["checkpoints"].as_array().cloned();
        let page = page.unwrap_or_default();
        for note in page.iter().filter_map(|one| one["note"].as_str()) {
            adopt(known, &offered, note);
        }
        let last = page.last().and_then(|last| last["size"].as_u64());
        match last {
            Some(last) if page.len() == 1000 && last > from => from = last,
            _ => break,
        }
    }
    let keys = parsed(&known.keys);
    let opened = Checkpoint::open(latest, &keys);
    Ok(opened
        .map(|(checkpoint, _)| checkpoint)
        .map_err(|error| format!("{error}, and there is no hand-over from a known key")))
}

/// Trusts a new key if it signed a checkpoint together with a trusted key.
fn adopt(known: &mut KnownLedger, offered: &[String], note: &str) {
    let trusted = parsed(&known.keys);
    let Ok((checkpoint, _)) = Checkpoint::open(note, &trusted) else {
        return;
    };
    let signed = parsed(offered);
    let Ok((_, by)) = Checkpoint::open(note, &signed) else {
        return;
    };
    for key in by.into_iter().filter(|key| key.name() == checkpoint.origin) {
        let key = key.to_string();
        if !known.keys.contains(&key) {
            known.keys.push(key);
        }
    }
}

/// Checks the proof that one checkpoint continues another. Returns the contradiction if not.
async fn continues(
    client: &UnguardedClient,
    before: &Checkpoint,
    now: &Checkpoint,
) -> Result<Result<(), String>, Error> {
    if now.size < before.size {
        return Ok(Err(format!(
            "its newest checkpoint counts {} entries, an earlier one counts {}",
            now.size, before.size
        )));
    }
    if now.size == before.size {
        let other = || {
            format!(
                "its root of {} entries differs from the earlier one",
                now.size
            )
        };
        return Ok((now.root == before.root).then_some(()).ok_or_else(other));
    }
    let query = vec![
        ("from", before.size.to_string()),
        ("to", now.size.to_string()),
    ];
    let unproven = format!(
        "it does not prove that its {} entries start with the {} of the earlier checkpoint",
        now.size, before.size
    );
    let proof = match client.get("/v1/ledger/proof/consistency", &query).await {
        Ok(proof) => proof,
        Err(Error::Refused {
            status: 400 | 404 | 500,
            detail,
            ..
        }) => return Ok(Err(format!("{unproven}: {detail}"))),
        Err(error) => return Err(error),
    };
    let path: Option<Vec<[u8; 32]>> = proof["path"].as_array().and_then(|path| {
        let hash = |hash: &Value| hex::decode(hash.as_str()?).ok()?.try_into().ok();
        path.iter().map(hash).collect()
    });
    let proven = path.is_some_and(|path| {
        verify_consistency(before.size, &before.root, now.size, &now.root, &path)
    });
    Ok(proven.then_some(()).ok_or(unproven))
}

/// Refuses a ledger that contradicts its earlier state, or does not show its checkpoint although it has shown one before. If it cannot be
/// reached, the following request reports why. Without a home directory nothing is stored or refused.
/// [`Client`](crate::client::Client) calls it before its first request to the ledger.
///
/// # Errors
/// [`Error::Failed`] in case of a contradiction, [`Error::Refused`] if a known ledger shows no checkpoint.
pub async fn guard(client: UnguardedClient) -> Result<(), Error> {
    let Some(file) = KnownLedgers::of_user() else {
        return Ok(());
    };
    match check_latest(&client, &file).await {
        Ok(LedgerComparison::Contradiction { reason, known, .. }) => {
            Err(refusal(&client, &file, &reason, &known))
        }
        Ok(LedgerComparison::Nothing | LedgerComparison::Known(_))
        | Err(Error::Unreachable { .. }) => Ok(()),
        Err(Error::Refused {
            status,
            detail,
            retry_after,
        }) => {
            let address = client.address().to_string();
            match file.read()?.at(&address) {
                // There is nothing to compare with.
                None => Ok(()),
                Some(_) => Err(Error::Refused {
                    status,
                    detail: format!(
                        "the ledger at {address} cannot be compared with its earlier checkpoint: {detail}"
                    ),
                    retry_after,
                }),
            }
        }
        // Such as a home directory that is read-only.
        Err(error @ Error::Io { .. }) => {
            anstream::eprintln!(
                "the ledger is not compared with earlier checkpoints: {}",
                mesh_runtime::error_chain(&error)
            );
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The error text for a contradiction.
pub fn refusal(
    client: &UnguardedClient,
    file: &KnownLedgers,
    reason: &str,
    known: &KnownLedger,
) -> Error {
    refusal_of("an earlier checkpoint", client, file, reason, known)
}

fn refusal_of(
    contradicted: &str,
    client: &UnguardedClient,
    file: &KnownLedgers,
    reason: &str,
    known: &KnownLedger,
) -> Error {
    let address = client.address();
    let origin = Checkpoint::unverified(&known.checkpoint).map(|one| one.origin);
    Error::Failed(format!(
        "the ledger at {address} contradicts {contradicted} of {}: {reason}. Entries were changed or removed, an old backup was restored, or it is another ledger; do not rely on its answers. The checkpoints that were seen are in {}. If its administrators explain it, `smesh ledger accept ORIGIN` trusts the current checkpoint",
        origin.unwrap_or_default(),
        file.path().display(),
    ))
}
