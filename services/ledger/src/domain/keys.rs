//! Selects the signing key, and creates the audit entries about keys.

use chrono::DateTime;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, SigningKeyMade};
use mesh_events::timestamp;
use sha2::{Digest as _, Sha256};

use super::checkpoint::Checkpoint;
use super::note::PublicKey;
pub use ledger_format::key_rotation::StoredKey;

/// Kind of audit entries about keys.
pub const KIND: &str = "key";

/// What to do with the key in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// Sign with it.
    This,
    /// Register it as the ledger's first key, and sign with it.
    Register,
    /// Create a key: neither the file nor the ledger has one.
    Make,
    /// Do not sign on this host, with the reason.
    None(String),
}

/// Returns the current origin of a ledger: the configured one, or the one under which it was
/// continued.
pub fn origin(stored: &[StoredKey], configured: &str) -> String {
    let names: Vec<String> = stored
        .iter()
        .filter_map(|key| Some(key.vkey.parse::<PublicKey>().ok()?.name().to_owned()))
        .collect();
    match names.last() {
        Some(last) if names.iter().any(|name| name == configured) => last.clone(),
        _ => configured.to_owned(),
    }
}

/// Decides how to use the key in the file, given the keys of the ledger.
pub fn choose(file: Option<PublicKey>, stored: &[StoredKey], origin: &str) -> Use {
    if let Some(file) = &file
        && file.name() != origin
    {
        return Use::None(format!(
            "the key is of {}, but this ledger is {origin}: set ledger.checkpoint.origin, or use the right key file",
            file.name()
        ));
    }
    let Some(last) = stored.last() else {
        return match file {
            Some(_) => Use::Register,
            None => Use::Make,
        };
    };
    let vkey = file.map(|key| key.to_string());
    match vkey {
        Some(vkey) if vkey == last.vkey => Use::This,
        Some(vkey) if stored.iter().any(|key| key.vkey == vkey) => Use::None(format!(
            "the key was replaced by {}: copy that key file here",
            last.vkey
        )),
        Some(_) => Use::None(format!(
            "the key does not belong to this ledger, which signs with {}",
            last.vkey
        )),
        None => Use::None(format!(
            "the key is missing: this ledger signs with {}; copy its file from the replica that has it",
            last.vkey
        )),
    }
}

/// True if a checkpoint is the hand-over from one key to the next: both have signed it, and its
/// size is the one from which the next key signs.
pub fn handed_over(note: &str, keys: &[StoredKey]) -> bool {
    let public: Vec<PublicKey> = keys
        .iter()
        .filter_map(|key| key.vkey.parse().ok())
        .collect();
    Checkpoint::open(note, &public).is_ok_and(|(checkpoint, signed_by)| {
        signed_by.len() == keys.len()
            && keys
                .last()
                .is_some_and(|key| key.from_size.unsigned_abs() == checkpoint.size)
    })
}

/// Returns the key that signs the first checkpoint with an entry. A key signs up to and including
/// the hand-over to the next.
pub fn in_charge(keys: &[StoredKey], seq: i64) -> Option<&StoredKey> {
    keys.iter().rev().find(|key| key.from_size < seq)
}

/// Returns the audit entries about keys: one for each key that replaced another.
pub fn audit_entries(keys: &[StoredKey], cluster: &str) -> Vec<AuditEntry> {
    keys.iter()
        .zip(keys.iter().skip(1))
        .map(|(before, key)| AuditEntry {
            id: audit_id(&key.vkey),
            cluster: cluster.to_owned(),
            kind: KIND.to_owned(),
            at: DateTime::from_timestamp_micros(key.made_at).map(timestamp),
            service: "ledger".to_owned(),
            act: Some(Act::Key(SigningKeyMade {
                vkey: key.vkey.clone(),
                before: before.vkey.clone(),
                size: key.from_size.unsigned_abs(),
                made_by: key.made_by.clone(),
            })),
        })
        .collect()
}

/// Returns the deterministic id of the audit entry about a key.
pub fn audit_id(vkey: &str) -> String {
    entry_id(&["slurm-mesh/key/1", vkey])
}

/// Computes a deterministic id, so that publishing again yields the same entry.
pub(super) fn entry_id(fields: &[&str]) -> String {
    let mut hash = Sha256::new();
    for field in fields {
        hash.update(u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(field.as_bytes());
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    uuid::Builder::from_custom_bytes(bytes)
        .into_uuid()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::note::PrivateKey;

    fn key(name: &str, seed: u8) -> PublicKey {
        PrivateKey::new(name, &[seed; 32]).unwrap().public()
    }

    fn stored(number: i64, key: &PublicKey) -> StoredKey {
        StoredKey {
            number,
            vkey: key.to_string(),
            from_size: number * 10,
            made_at: 1_763_760_000_000_000,
            made_by: String::new(),
        }
    }

    #[test]
    fn only_the_newest_key_of_this_ledger_signs() {
        let (one, two) = (key("o", 1), key("o", 2));
        let both = [stored(1, &one), stored(2, &two)];
        let check =
            |file: Option<&PublicKey>, stored: &[StoredKey]| choose(file.cloned(), stored, "o");
        assert_eq!(check(None, &[]), Use::Make);
        assert_eq!(check(Some(&one), &[]), Use::Register);
        assert_eq!(check(Some(&two), &both), Use::This);
        for (file, part) in [
            (Some(&one), "was replaced by"),
            (Some(&key("o", 3)), "does not belong to this ledger"),
            (Some(&key("p", 2)), "is of p, but this ledger is o"),
            (None, "is missing"),
        ] {
            let Use::None(reason) = check(file, &both) else {
                panic!("{part}")
            };
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn the_origin_is_the_configured_one_or_one_that_followed_it() {
        let (one, two) = (stored(1, &key("o", 1)), stored(2, &key("p", 2)));
        assert_eq!(origin(&[], "o"), "o");
        assert_eq!(origin(std::slice::from_ref(&one), "o"), "o");
        assert_eq!(origin(std::slice::from_ref(&one), "other"), "other");
        let both = [one, two];
        assert_eq!(
            (origin(&both, "o"), origin(&both, "p")),
            ("p".into(), "p".into())
        );
        assert_eq!(origin(&both, "other"), "other");
    }

    #[test]
    fn the_audit_entry_of_a_key_is_reproducible() {
        let keys = [1, 2, 3].map(|n| stored(n, &key("o", n as u8)));
        assert_eq!(audit_entries(&keys[..1], "c"), []);
        let entries = audit_entries(&keys, "c");
        assert_eq!(entries[..1], audit_entries(&keys[..2], "c"));
        assert_ne!(entries[0].id, entries[1].id);
        let Some(Act::Key(second)) = &entries[0].act else {
            panic!("a key")
        };
        assert_eq!((&second.before, second.size), (&keys[0].vkey, 20));
    }
}
