//! Ten thousand random acts of tampering with a ledger of twenty entries and three checkpoints, by
//! an attacker with full write access. The verifier must find each one at the first bad record.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use crate::chain;
use crate::checkpoint::Checkpoint;
use crate::export::{ExportLine, ExportVerifier, FORMAT, Header, HexHash};
use crate::fixture::ledger;
use crate::merkle::Frontier;
use crate::note::{PrivateKey, PublicKey};
use crate::verify::{
    ExpectedCheckpoint, FirstFault, StoredEntry, StoredHead, VerifiedLedger, Verifier,
};

const COUNT: usize = 20;
/// Sizes of the checkpoints. The last one covers all entries.
const SIGNED: [usize; 3] = [6, 13, COUNT];
const ORIGIN: &str = "example.org/ledger";

#[derive(Clone)]
struct Ledger {
    entries: Vec<StoredEntry>,
    head: StoredHead,
    marks: Vec<ExpectedCheckpoint>,
}

fn key(seed: u8) -> PrivateKey {
    PrivateKey::new(ORIGIN, &[seed; 32]).unwrap()
}

fn keys() -> Vec<PublicKey> {
    vec![key(1).public()]
}

impl Ledger {
    fn new() -> Self {
        let (entries, head) = ledger(COUNT as u8);
        let mut ledger = Self {
            entries,
            head,
            marks: Vec::new(),
        };
        ledger.marks = SIGNED
            .iter()
            .map(|size| ledger.signed_by(&key(1), *size))
            .collect();
        ledger
    }

    fn checkpoint(&self, size: usize) -> Checkpoint {
        let mut tree = Frontier::default();
        for entry in &self.entries[..size] {
            tree.push(entry.leaf.clone().try_into().unwrap());
        }
        Checkpoint {
            origin: ORIGIN.into(),
            size: size as u64,
            root: tree.root(),
        }
    }

    /// Returns the stored checkpoint of a size, signed by the key, in the form expected by the
    /// verifier.
    fn signed_by(&self, key: &PrivateKey, size: usize) -> ExpectedCheckpoint {
        let checkpoint = self.checkpoint(size);
        let note = checkpoint.sign(&[key]).unwrap();
        ExpectedCheckpoint::stored(size as i64, &checkpoint.root, &note, &keys())
    }

    /// Recomputes leaves and chain from an entry on, so that they are consistent.
    fn rewrite_from(&mut self, at: usize) {
        let mut before = match at {
            0 => chain::GENESIS,
            _ => self.entries[at - 1].chain.clone().try_into().unwrap(),
        };
        for (n, entry) in self.entries.iter_mut().enumerate().skip(at) {
            entry.seq = n as i64 + 1;
            let payload = entry.payload.as_ref().unwrap();
            let leaf = chain::Entry {
                cluster: str::from_utf8(&payload.cluster).unwrap(),
                seq: entry.seq.unsigned_abs(),
                id: str::from_utf8(&entry.id).unwrap(),
                subject: str::from_utf8(&payload.subject).unwrap(),
                body: &payload.body,
            }
            .leaf();
            before = chain::chain_hash(&before, &leaf);
            (entry.leaf, entry.chain) = (leaf.to_vec(), before.to_vec());
        }
        self.head = StoredHead {
            seq: self.entries.len() as i64,
            chain: before.to_vec(),
        };
    }

    fn verify(
        &self,
        trusted_checkpoint: Option<&Checkpoint>,
    ) -> Result<VerifiedLedger, FirstFault> {
        let mut verifier = Verifier::default();
        for mark in &self.marks {
            verifier.expect(mark.clone());
        }
        if let Some(trusted_checkpoint) = trusted_checkpoint {
            verifier.expect(ExpectedCheckpoint::trusted(trusted_checkpoint));
        }
        for entry in &self.entries {
            verifier.next(entry)?;
        }
        verifier.finish(&self.head)
    }
}

#[derive(Clone, Debug)]
enum Act {
    Flip(u8, Index, u8),
    Empty(u8),
    Delete,
    DeletePayload,
    Swap(Index),
    SwapBodies(Index),
    Insert,
    InsertAndShift,
    ShiftBack,
    CutOff,
    CutOffWithHead,
    MoveHead,
    Rewrite,
    RewriteAndForge,
    ForgeCheckpoint,
    /// By the owner of the key: only a trusted checkpoint reveals it.
    Fork,
    /// A changed line of an export.
    ExportLine(LineAct, Index),
}

#[derive(Clone, Copy, Debug)]
enum LineAct {
    Drop,
    Double,
    Swap,
    CutOff,
    Append,
    Garble,
}

fn acts() -> impl Strategy<Value = Act> {
    let lines = prop::sample::select(vec![
        LineAct::Drop,
        LineAct::Double,
        LineAct::Swap,
        LineAct::CutOff,
        LineAct::Append,
        LineAct::Garble,
    ]);
    prop_oneof![
        6 => (0u8..6, any::<Index>(), 0u8..8).prop_map(|(column, byte, bit)| Act::Flip(column, byte, bit)),
        1 => (0u8..6).prop_map(Act::Empty),
        1 => Just(Act::Delete),
        1 => Just(Act::DeletePayload),
        2 => any::<Index>().prop_map(Act::Swap),
        2 => any::<Index>().prop_map(Act::SwapBodies),
        1 => Just(Act::Insert),
        1 => Just(Act::InsertAndShift),
        1 => Just(Act::ShiftBack),
        1 => Just(Act::CutOff),
        1 => Just(Act::CutOffWithHead),
        1 => Just(Act::MoveHead),
        2 => Just(Act::Rewrite),
        1 => Just(Act::RewriteAndForge),
        1 => Just(Act::ForgeCheckpoint),
        1 => Just(Act::Fork),
        4 => (lines, any::<Index>()).prop_map(|(act, other)| Act::ExportLine(act, other)),
    ]
}

fn column(entry: &mut StoredEntry, column: u8) -> &mut Vec<u8> {
    let payload = entry.payload.as_mut().unwrap();
    match column {
        0 => &mut payload.body,
        1 => &mut payload.cluster,
        2 => &mut payload.subject,
        3 => &mut entry.id,
        4 => &mut entry.leaf,
        _ => &mut entry.chain,
    }
}

/// Returns the first record that may be reported if everything from an entry (from 0) on was
/// rewritten: the one after the last checkpoint before that entry.
fn after_checkpoint(at: usize) -> usize {
    SIGNED
        .iter()
        .rfind(|size| **size <= at)
        .map_or(1, |size| size + 1)
}

/// Tampers at an entry (from 0) and returns the record that must be reported. Returns `None` if the
/// act changed nothing.
fn tamper(
    ledger: &mut Ledger,
    act: &Act,
    at: usize,
) -> (Result<VerifiedLedger, FirstFault>, Option<usize>) {
    let entries = &mut ledger.entries;
    let mut trusted_checkpoint = None;
    let expected = match act {
        Act::Flip(which, byte, bit) => {
            let bytes = column(&mut entries[at], *which);
            let byte = byte.index(bytes.len());
            bytes[byte] ^= 1 << bit;
            Some(at + 1)
        }
        Act::Empty(which) => {
            column(&mut entries[at], *which).clear();
            Some(at + 1)
        }
        Act::Delete => {
            entries.remove(at);
            Some(at + 1)
        }
        Act::DeletePayload => {
            entries[at].payload = None;
            Some(at + 1)
        }
        Act::Swap(with) | Act::SwapBodies(with) => {
            let with = with.index(COUNT);
            let (one, other) = (entries[at].clone(), entries[with].clone());
            if matches!(act, Act::Swap(_)) {
                entries[at] = StoredEntry {
                    seq: one.seq,
                    ..other
                };
                entries[with] = StoredEntry {
                    seq: with as i64 + 1,
                    ..one
                };
            } else {
                entries[at].payload = other.payload;
                entries[with].payload = one.payload;
            }
            (at != with).then_some(at.min(with) + 1)
        }
        Act::Insert => {
            // Inserted after the original.
            entries.insert(at + 1, entries[at].clone());
            Some(at + 1)
        }
        Act::InsertAndShift => {
            entries.insert(at, entries[at].clone());
            for (n, entry) in entries.iter_mut().enumerate() {
                entry.seq = n as i64 + 1;
            }
            ledger.head.seq += 1;
            // The first of the two is the original.
            Some(at + 2)
        }
        Act::ShiftBack => {
            entries.remove(at);
            for (n, entry) in entries.iter_mut().enumerate() {
                entry.seq = n as i64 + 1;
            }
            ledger.head.seq -= 1;
            // For the last entry, only the chain value of the head reveals it.
            Some((at + 1).min(COUNT - 1))
        }
        Act::CutOff => {
            entries.truncate(at);
            Some(at + 1)
        }
        Act::CutOffWithHead => {
            entries.truncate(at);
            ledger.rewrite_from(at);
            Some(at + 1)
        }
        Act::MoveHead => {
            ledger.head.chain[at % 32] ^= 1;
            Some(COUNT)
        }
        Act::Rewrite => {
            column(&mut entries[at], 0).push(b'x');
            ledger.rewrite_from(at);
            Some(after_checkpoint(at))
        }
        Act::RewriteAndForge => {
            column(&mut entries[at], 0).push(b'x');
            ledger.rewrite_from(at);
            // The later checkpoints are replaced by one signed with another key.
            let before = SIGNED.iter().filter(|size| **size <= at).count();
            ledger.marks.truncate(before);
            let forged = ledger.signed_by(&key(9), SIGNED[before]);
            ledger.marks.push(forged);
            Some(SIGNED[before])
        }
        Act::ForgeCheckpoint => {
            let which = at % SIGNED.len();
            let note = "example.org/ledger\n1\nx\n\n\u{2014} example.org/ledger AAAA\n";
            ledger.marks[which] =
                ExpectedCheckpoint::stored(SIGNED[which] as i64, &[0; 32], note, &keys());
            Some(SIGNED[which])
        }
        Act::Fork => {
            trusted_checkpoint = Some(ledger.checkpoint(COUNT));
            let entries = &mut ledger.entries;
            column(&mut entries[at], 0).push(b'x');
            ledger.rewrite_from(at);
            let before = SIGNED.iter().filter(|size| **size <= at).count();
            ledger.marks.truncate(before);
            Some(after_checkpoint(at))
        }
        Act::ExportLine(act, other) => {
            let note = LAST_NOTE.with(Clone::clone);
            return tamper_lines(ledger, *act, at, other.index(COUNT), note);
        }
    };
    (ledger.verify(trusted_checkpoint.as_ref()), expected)
}

thread_local! {
    /// Signed once, because every export has the same checkpoint.
    static LAST_NOTE: String = Ledger::new().checkpoint(COUNT).sign(&[&key(1)]).unwrap();
}

fn tamper_lines(
    ledger: &Ledger,
    act: LineAct,
    at: usize,
    other: usize,
    checkpoint: String,
) -> (Result<VerifiedLedger, FirstFault>, Option<usize>) {
    let header = Header {
        export: FORMAT.into(),
        from: 1,
        chain: HexHash(chain::GENESIS),
        edge: Vec::new(),
        checkpoint,
    };
    let line = |entry: &StoredEntry| {
        serde_json::to_string(&ExportLine::of(entry.clone()).unwrap()).unwrap()
    };
    let mut lines: Vec<String> = ledger.entries.iter().map(line).collect();
    let expected = match act {
        LineAct::Drop => {
            lines.remove(at);
            Some(at + 1)
        }
        LineAct::Double => {
            lines.insert(at + 1, lines[at].clone());
            // There is no entry after the last.
            Some(if at + 1 == COUNT { COUNT + 1 } else { at + 1 })
        }
        LineAct::Swap => {
            lines.swap(at, other);
            (at != other).then_some(at.min(other) + 1)
        }
        LineAct::CutOff => {
            lines.truncate(at);
            Some(at + 1)
        }
        LineAct::Append => {
            lines.push(lines[at].clone());
            Some(COUNT + 1)
        }
        LineAct::Garble => {
            let half = lines[at].len() / 2;
            lines[at].truncate(half);
            Some(at + 1)
        }
    };
    let header = serde_json::to_string(&header).unwrap();
    let mut verifier = ExportVerifier::new(header.as_bytes(), &keys(), &[]).unwrap();
    let found = lines
        .iter()
        .try_for_each(|line| verifier.next(line.as_bytes()))
        .and_then(|()| verifier.finish());
    (found, expected)
}

#[test]
fn ten_thousand_random_tamperings_are_found_at_the_first_bad_record() {
    let untouched = Ledger::new();
    assert_eq!(untouched.verify(None).unwrap().signed, COUNT as u64);
    let config = Config {
        cases: 10_000,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&(acts(), 0..COUNT), |(act, at)| {
            let (found, expected) = tamper(&mut untouched.clone(), &act, at);
            match expected {
                Some(seq) => prop_assert_eq!(found.unwrap_err().seq, seq as i64),
                None => prop_assert!(found.is_ok()),
            }
            Ok(())
        })
        .unwrap();
}
