//! Test ledgers and their exports.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use ledger_format::chain::{self, GENESIS, Hash};
use ledger_format::checkpoint::Checkpoint;
use ledger_format::export::{ExportLine, FORMAT, Header, HexHash};
use ledger_format::merkle::Frontier;
use ledger_format::note::PrivateKey;
use ledger_format::verify::{StoredEntry, StoredPayload};
use serde_json::Value;

const ORIGIN: &str = "example.org/ledger";

pub struct Ledger {
    entries: Vec<StoredEntry>,
}

fn key(seed: u8) -> PrivateKey {
    PrivateKey::new(ORIGIN, &[seed; 32]).unwrap()
}

impl Ledger {
    pub fn of(count: u64) -> Self {
        Self::forked_at(u64::MAX, count)
    }

    /// Creates a ledger with the same key whose history differs from an entry on.
    pub fn forked_at(fork: u64, count: u64) -> Self {
        let mut chain = GENESIS;
        let mut entries = Vec::new();
        for seq in 1..=count {
            // Some bodies are long, so that chunks contain different numbers of lines.
            let body = vec![u8::from(seq >= fork); (seq % 97 * seq % 31 * 40) as usize];
            let (id, subject) = (format!("id-{seq}"), "slurm.c.job.started.p.\"u\"");
            let entry = chain::Entry {
                cluster: "c",
                seq,
                id: &id,
                subject,
                body: &body,
            };
            let leaf = entry.leaf();
            chain = chain::chain_hash(&chain, &leaf);
            entries.push(StoredEntry {
                seq: seq as i64,
                id: id.clone().into_bytes(),
                leaf: leaf.to_vec(),
                chain: chain.to_vec(),
                payload: Some(StoredPayload {
                    cluster: "c".into(),
                    subject: subject.into(),
                    body,
                }),
            });
        }
        Self { entries }
    }

    pub fn vkey(&self) -> String {
        key(1).public().to_string()
    }

    pub fn other_vkey() -> String {
        key(2).public().to_string()
    }

    pub fn head(&self) -> Vec<u8> {
        self.entries.last().unwrap().chain.clone()
    }

    fn tree(&self, size: u64) -> Frontier {
        let mut tree = Frontier::default();
        for entry in &self.entries[..size as usize] {
            tree.push(entry.leaf.clone().try_into().unwrap());
        }
        tree
    }

    /// Returns the signed checkpoint of `size` entries.
    pub fn note(&self, size: u64) -> String {
        let checkpoint = Checkpoint {
            origin: ORIGIN.to_owned(),
            size,
            root: self.tree(size).root(),
        };
        checkpoint.sign(&[&key(1)]).unwrap()
    }

    /// Returns the lines of an export of a range of entries.
    pub fn export(&self, first: u64, last: u64) -> Vec<String> {
        let before = first - 1;
        let chain: Hash = match before.checked_sub(1) {
            Some(at) => self.entries[at as usize].chain.clone().try_into().unwrap(),
            None => GENESIS,
        };
        let header = Header {
            export: FORMAT.to_owned(),
            from: first,
            chain: HexHash(chain),
            edge: self
                .tree(before)
                .peaks()
                .iter()
                .copied()
                .map(HexHash)
                .collect(),
            checkpoint: self.note(last),
        };
        let entries = &self.entries[before as usize..last as usize];
        let lines = entries.iter().map(|entry| {
            let line = ExportLine::of(entry.clone()).unwrap();
            serde_json::to_string(&line).unwrap()
        });
        let header = serde_json::to_string(&header).unwrap();
        [header].into_iter().chain(lines).collect()
    }
}

/// Returns the lines with a changed body in one entry.
pub fn with_another_body(lines: &[String], seq: usize) -> Vec<String> {
    let mut lines = lines.to_vec();
    let mut line: Value = serde_json::from_str(&lines[seq]).unwrap();
    line["body"] = "AAECAw==".into();
    lines[seq] = line.to_string();
    lines
}

/// Returns the lines without one entry.
pub fn without(lines: &[String], seq: usize) -> Vec<String> {
    let mut lines = lines.to_vec();
    lines.remove(seq);
    lines
}

/// Returns the lines with one that is not valid JSON.
pub fn garbled(lines: &[String], seq: usize) -> Vec<String> {
    let mut lines = lines.to_vec();
    lines[seq].truncate(20);
    lines
}

pub fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
