//! Witnesses are third parties who cosign a checkpoint after a proof that it is consistent with all
//! that they signed before (<https://c2sp.org/tlog-witness>).
//!
//! Cosignatures are part of the note. If some are required, a checkpoint without them is neither
//! stored nor published. They are requested again with the next one. If a witness has cosigned
//! another history, or more of it than the ledger has, nothing is signed, however many are required.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use ledger_format::chain::Hash;
use ledger_format::cosignature::{WitnessKey, cosigned};
use ledger_format::merkle::{Node, consistency};
use ledger_format::tile::tiles;
use reqwest::StatusCode;

use crate::adapters::Store;
use crate::error::Error;

/// Timeout of a request. A checkpoint does not wait longer for a witness.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests for one cosignature. The first may name a size of before a restart, and another replica may be cosigned between the first
/// two.
const MAX_REQUESTS: usize = 3;
/// Maximum size of a response, which is a few lines.
const MAX_RESPONSE_BYTES: usize = 16 << 10;

/// A ledger before a signature: its stored tree, and the subtrees not yet stored.
#[derive(Clone, Copy)]
pub struct Growth<'a> {
    /// The stored part of the ledger.
    pub store: &'a Store,
    /// Number of entries.
    pub size: u64,
    /// Subtrees to be stored with the checkpoint.
    pub subtrees: &'a [(Node, Hash)],
}

impl Growth<'_> {
    /// Proves that the ledger of a smaller size is a prefix of this one.
    async fn proof(self, from: u64) -> Result<Vec<Hash>, Error> {
        let unproven = || Error::Witness(format!("{from} is not a size within {}", self.size));
        let ranges = consistency(from, self.size).map_err(|_| unproven())?;
        let mut read = self.store.tiles(tiles(&ranges)).await?;
        for (node, hash) in self.subtrees {
            read.push(*node, *hash);
        }
        read.hashes(&ranges).ok_or_else(unproven)
    }
}

/// Why there is no cosignature.
enum Refusal {
    /// It may be there the next time.
    Failed(String),
    /// The witness has cosigned what this ledger does not have.
    Contradiction(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// A witness with its address and key.
#[derive(Clone, Debug)]
pub struct Witness {
    /// Base URL of `add-checkpoint`.
    pub url: url::Url,
    /// Public key of the witness.
    pub key: WitnessKey,
}

/// The witnesses of a ledger.
#[derive(Debug)]
pub struct Witnesses {
    http: reqwest::Client,
    all: Vec<Witness>,
    required: usize,
    /// Size that each witness signed last, by its name.
    sizes: Mutex<BTreeMap<String, u64>>,
}

impl Witnesses {
    /// Creates the witnesses of a ledger. `required` of them must cosign.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub fn new(all: Vec<Witness>, required: usize) -> Result<Self, Error> {
        let http = reqwest::Client::builder()
            .timeout(REQUEST_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| Error::Witness(mesh_runtime::error_chain(&error)))?;
        Ok(Self {
            http,
            all,
            required,
            sizes: Mutex::default(),
        })
    }

    /// Returns the note with all received cosignatures.
    ///
    /// # Errors
    /// [`Error::Witness`] if there are fewer than required, [`Error::Inconsistent`] if a witness
    /// has cosigned what this ledger does not have.
    pub async fn cosign(&self, note: &str, growth: Growth<'_>) -> Result<String, Error> {
        let size = growth.size;
        let mut asked = Vec::new();
        for witness in &self.all {
            asked.push(self.ask(witness, note, growth));
        }
        let (mut whole, mut failures) = (note.to_owned(), Vec::new());
        let mut given = 0;
        for (witness, answer) in self.all.iter().zip(join_all(asked).await) {
            match answer {
                Ok(lines) => {
                    whole.push_str(&lines);
                    given += 1;
                }
                Err(Refusal::Contradiction(why)) => {
                    let name = witness.key.name();
                    return Err(Error::Inconsistent(format!(
                        "witness {name} {why}: entries were removed or changed, or an old backup was restored; `smesh ledger resume` restores the entries that the bus still has"
                    )));
                }
                Err(Refusal::Failed(why)) => {
                    let name = witness.key.name();
                    tracing::warn!(
                        witness = name,
                        error = why,
                        size,
                        "cosignature request failed"
                    );
                    failures.push(format!("{name}: {why}"));
                }
            }
        }
        if given < self.required {
            return Err(Error::Witness(format!(
                "{given} of {} required cosignatures ({})",
                self.required,
                failures.join("; ")
            )));
        }
        Ok(whole)
    }

    async fn ask(
        &self,
        witness: &Witness,
        note: &str,
        growth: Growth<'_>,
    ) -> Result<String, Refusal> {
        let size = growth.size;
        let name = witness.key.name();
        let mut known = self.size_of(name);
        for _ in 0..MAX_REQUESTS {
            if known > size {
                let why = format!("has cosigned {known} entries, more than {size}");
                // Another replica may have signed more meanwhile.
                let head = growth.store.head().await;
                let entries = head.map_err(|error| mesh_runtime::error_chain(&error))?.seq;
                return Err(match entries < known {
                    true => Refusal::Contradiction(why),
                    false => Refusal::Failed(why),
                });
            }
            let proof = match known {
                0 => Vec::new(),
                known if known == size => Vec::new(),
                known => growth
                    .proof(known)
                    .await
                    .map_err(|error| mesh_runtime::error_chain(&error))?,
            };
            let proof: String = proof
                .iter()
                .map(|hash| STANDARD.encode(hash) + "\n")
                .collect();
            let body = format!("old {known}\n{proof}\n{note}");
            let (status, answer) = self.post(witness, body).await?;
            match status {
                StatusCode::OK => {
                    let lines = signature_lines(witness, note, &answer)?;
                    self.set_size(name, size);
                    return Ok(lines);
                }
                StatusCode::CONFLICT => {
                    let asked = known;
                    known = answer
                        .trim()
                        .parse()
                        .map_err(|_| "the response has no size".to_owned())?;
                    self.set_size(name, known);
                    // Asked for the very size that it has cosigned, it refuses another root.
                    if (asked, known) == (size, size) {
                        return Err(Refusal::Contradiction(format!(
                            "has cosigned another history of {known} entries"
                        )));
                    }
                }
                // The consistency proof does not hold.
                StatusCode::UNPROCESSABLE_ENTITY => {
                    return Err(Refusal::Contradiction(format!(
                        "has cosigned another history: {:.200}",
                        answer.trim()
                    )));
                }
                status => {
                    let why = format!("HTTP {status}: {:.200}", answer.trim());
                    return Err(Refusal::Failed(why));
                }
            }
        }
        Err(Refusal::Failed(format!(
            "it still reports {known} signed entries"
        )))
    }

    async fn post(&self, witness: &Witness, body: String) -> Result<(StatusCode, String), String> {
        let failed = |error: reqwest::Error| mesh_runtime::error_chain(&error);
        let base = witness.url.as_str().trim_end_matches('/');
        let request = self.http.post(format!("{base}/add-checkpoint")).body(body);
        let mut answer = request.send().await.map_err(failed)?;
        let mut text = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(failed)? {
            text.extend_from_slice(&part);
            if text.len() > MAX_RESPONSE_BYTES {
                return Err("its response is too long".to_owned());
            }
        }
        Ok((answer.status(), String::from_utf8_lossy(&text).into_owned()))
    }

    fn size_of(&self, name: &str) -> u64 {
        let sizes = self.sizes.lock();
        sizes.map_or(0, |sizes| sizes.get(name).copied().unwrap_or_default())
    }

    fn set_size(&self, name: &str, size: u64) {
        if let Ok(mut sizes) = self.sizes.lock() {
            sizes.insert(name.to_owned(), size);
        }
    }
}

/// Returns the signature lines of the witness in a response, if they are valid for the note.
fn signature_lines(witness: &Witness, note: &str, answer: &str) -> Result<String, String> {
    let own = |line: &&str| {
        let signer = line
            .strip_prefix("\u{2014} ")
            .and_then(|line| line.split_once(' '));
        signer.is_some_and(|(name, _)| name == witness.key.name())
    };
    let lines: String = answer
        .lines()
        .filter(own)
        .map(|line| format!("{line}\n"))
        .collect();
    let whole = format!("{note}{lines}");
    match cosigned(&whole, std::slice::from_ref(&witness.key)) {
        Ok(by) if !by.is_empty() => Ok(lines),
        Ok(_) => Err("its response has no cosignature by its key".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
