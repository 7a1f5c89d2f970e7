//! The fault reported for each kind of tampering.

mod tampering;

use proptest::prelude::*;

use super::*;
use crate::fixture::ledger;

/// Tampers with a valid ledger of ten entries and checks the reported fault.
fn check(tamper: impl FnOnce(&mut Vec<StoredEntry>, &mut StoredHead), seq: i64, what: Fault) {
    let (mut entries, mut head) = ledger(10);
    tamper(&mut entries, &mut head);
    assert_eq!(verify(&entries, &head), Err(FirstFault { seq, what }));
}

fn payload(entry: &mut StoredEntry) -> &mut StoredPayload {
    entry.payload.as_mut().unwrap()
}

#[test]
fn an_untouched_ledger_is_verified() {
    for count in [0, 1, 10] {
        let (entries, head) = ledger(count);
        let verified = verify(&entries, &head).unwrap();
        assert_eq!(verified.count, u64::from(count));
        assert_eq!(verified.head.as_slice(), head.chain.as_slice());
    }
}

#[test]
fn changed_content_is_named() {
    check(
        |e, _| payload(&mut e[4]).body[0] ^= 1,
        5,
        Fault::ContentChanged,
    );
    check(
        |e, _| payload(&mut e[0]).subject.push(b'x'),
        1,
        Fault::ContentChanged,
    );
    check(
        |e, _| payload(&mut e[9]).cluster = "d".into(),
        10,
        Fault::ContentChanged,
    );
    check(|e, _| e[4].id = "other".into(), 5, Fault::ContentChanged);
}

#[test]
fn content_that_is_no_text_is_named() {
    check(|e, _| e[4].id = vec![0xff], 5, Fault::ContentChanged);
    check(
        |e, _| payload(&mut e[4]).subject[0] = 0xff,
        5,
        Fault::ContentChanged,
    );
    check(
        |e, _| payload(&mut e[4]).cluster = vec![0xff, b'A'],
        5,
        Fault::ContentChanged,
    );
}

#[test]
fn changed_hashes_are_named() {
    check(|e, _| e[4].leaf[31] ^= 1, 5, Fault::LeafChanged);
    check(|e, _| e[4].chain[0] ^= 1, 5, Fault::ChainBroken);
    check(|e, _| e[4].leaf.clear(), 5, Fault::LeafChanged);
    check(|_, h| h.chain[0] ^= 1, 10, Fault::HeadChanged);
}

#[test]
fn swapped_entries_are_named() {
    check(
        |e, _| {
            e.swap(4, 6);
            e[4].seq = 5;
            e[6].seq = 7;
        },
        5,
        Fault::Replaced,
    );
    check(
        |e, _| {
            let other = e[6].payload.clone();
            e[6].payload = e[4].payload.take();
            e[4].payload = other;
        },
        5,
        Fault::ContentChanged,
    );
}

#[test]
fn rewritten_entries_break_the_chain() {
    check(
        |e, _| {
            payload(&mut e[4]).body[0] ^= 1;
            let LeafContent::Leaf(leaf) = e[4].hashed().content else {
                panic!("content that was chained")
            };
            e[4].leaf = leaf.to_vec();
        },
        5,
        Fault::ChainBroken,
    );
}

#[test]
fn missing_and_extra_entries_are_named() {
    check(|e, _| drop(e.remove(4)), 5, Fault::Missing);
    check(|e, _| drop(e.remove(0)), 1, Fault::Missing);
    check(|e, _| e[4].payload = None, 5, Fault::PayloadMissing);
    check(|e, _| e.truncate(7), 8, Fault::CutOff);
    check(|e, _| e.clear(), 1, Fault::CutOff);
    check(|e, _| e.insert(4, e[3].clone()), 4, Fault::Extra);
    check(
        |_, h| {
            let (_, shorter) = ledger(7);
            *h = shorter;
        },
        8,
        Fault::Extra,
    );
}

proptest! {
    #[test]
    fn any_flipped_bit_is_found_where_it_is(at in 0usize..10, column in 0usize..3, byte: prop::sample::Index, bit in 0u32..8) {
        let (mut entries, head) = ledger(10);
        let bytes = match column {
            0 => &mut payload(&mut entries[at]).body,
            1 => &mut entries[at].leaf,
            _ => &mut entries[at].chain,
        };
        let byte = byte.index(bytes.len());
        bytes[byte] ^= 1 << bit;
        prop_assert_eq!(verify(&entries, &head).unwrap_err().seq, at as i64 + 1);
    }
}
