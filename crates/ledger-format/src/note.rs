//! Signed notes: a text followed by Ed25519 signatures. The note format is C2SP's `signed-note`
//! (<https://c2sp.org/signed-note>). The key format is that of Go's `golang.org/x/mod/sumdb/note`.
//!
//! The text of a public key (*vkey*) is `<name>+<key id>+<base64>`. That of a private key is
//! `PRIVATE+KEY+` followed by the same fields with the seed. The base64 field holds a byte 01 for
//! Ed25519 and the 32 bytes of the key. The key id is the beginning of SHA-256(name ‖ LF ‖ 01 ‖
//! public key), in hexadecimal.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, VerifyingKey};
use sha2::{Digest as _, Sha256};

/// Signature type of Ed25519.
const ALGORITHM_ED25519: u8 = 1;
/// Prefix of a signature line: an em dash and a space.
const SIGNATURE_PREFIX: &str = "\u{2014} ";
const PRIVATE_KEY_PREFIX: &str = "PRIVATE+KEY+";
/// Notes with more signatures or bytes are rejected before parsing.
const MAX_SIGNATURES: usize = 100;
const MAX_NOTE_BYTES: usize = 64 << 10;

/// Why a key or a note is invalid.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoteError {
    /// Not a valid key.
    #[error("not a key in the format <name>+<key id>+<base64>: {0}")]
    Key(&'static str),
    /// Not a valid key name.
    #[error("{0:?} is not a key name; allowed: text without spaces and plus signs")]
    Name(String),
    /// Not a signed note.
    #[error("not a signed note: {0}")]
    Malformed(&'static str),
    /// No trusted key has signed the note.
    #[error("signed only by {}, none of which is a given key", .0.join(" and "))]
    Untrusted(Vec<String>),
    /// The signature line has the name and id of a trusted key, but that key did not sign this
    /// text.
    #[error("the signature of {0} does not match the text: it is forged, or the note was changed")]
    InvalidSignature(String),
}

/// A public key with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    name: String,
    key: VerifyingKey,
}

impl PublicKey {
    /// Parses a text with one key per line.
    ///
    /// # Errors
    /// If a line is not a valid key.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, NoteError> {
        let lines = text.lines().map(str::trim);
        lines
            .filter(|line| !line.is_empty())
            .map(str::parse)
            .collect()
    }

    /// Returns the name, which is also the origin of the checkpoints that the key signs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns name and key id in the form used by signature lines and messages.
    pub fn label(&self) -> String {
        label(&self.name, self.id())
    }

    /// Returns the key id.
    pub fn id(&self) -> [u8; 4] {
        key_id(&self.name, ALGORITHM_ED25519, self.key.as_bytes())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&key_text(
            &self.name,
            ALGORITHM_ED25519,
            self.key.as_bytes(),
        ))
    }
}

impl FromStr for PublicKey {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let (name, id, bytes) = key_fields(text, ALGORITHM_ED25519)?;
        let key = VerifyingKey::from_bytes(&bytes)
            .map_err(|_| NoteError::Key("not a point of the curve"))?;
        let key = Self {
            name: name.to_owned(),
            key,
        };
        same_id(key, id)
    }
}

/// A private key with its name.
#[derive(Clone)]
pub struct PrivateKey {
    name: String,
    key: ed25519_dalek::SigningKey,
}

impl PrivateKey {
    /// Creates a key from 32 random bytes.
    ///
    /// # Errors
    /// If the name is not allowed.
    pub fn new(name: &str, seed: &[u8; 32]) -> Result<Self, NoteError> {
        Ok(Self {
            name: checked_name(name)?.to_owned(),
            key: ed25519_dalek::SigningKey::from_bytes(seed),
        })
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        PublicKey {
            name: self.name.clone(),
            key: self.key.verifying_key(),
        }
    }

    /// Returns the secret as text. Use it only to write the key file.
    pub fn to_secret_text(&self) -> String {
        format!(
            "{PRIVATE_KEY_PREFIX}{}+{}",
            self.public().label(),
            encoded(ALGORITHM_ED25519, &self.key.to_bytes())
        )
    }
}

/// Prints the key's label, never the secret.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({})", self.public().label())
    }
}

impl FromStr for PrivateKey {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let public_form = text
            .strip_prefix(PRIVATE_KEY_PREFIX)
            .ok_or(NoteError::Key("it does not begin with PRIVATE+KEY+"))?;
        let (name, id, seed) = key_fields(public_form, ALGORITHM_ED25519)?;
        let key = Self::new(name, &seed)?;
        same_id(key.public(), id)?;
        Ok(key)
    }
}

/// Signs a text with every key.
///
/// # Errors
/// If the text is not valid in a note.
pub fn sign(text: &str, keys: &[&PrivateKey]) -> Result<String, NoteError> {
    checked_text(text)?;
    let mut note = format!("{text}\n");
    for key in keys {
        let public = key.public();
        let mut signature = public.id().to_vec();
        signature.extend(key.key.sign(text.as_bytes()).to_bytes());
        note.push_str(&format!(
            "{SIGNATURE_PREFIX}{} {}\n",
            public.name,
            STANDARD.encode(signature)
        ));
    }
    Ok(note)
}

/// Parses a note and returns its text and the keys that signed it. At least one of the given keys
/// must have signed.
///
/// # Errors
/// If it is not a note, no given key has signed it, or the signature of a given key does not match
/// the text.
pub fn open<'a, 'k>(
    note: &'a str,
    keys: &'k [PublicKey],
) -> Result<(&'a str, Vec<&'k PublicKey>), NoteError> {
    let (text, signatures) = split(note)?;
    let mut signed_by: Vec<&PublicKey> = Vec::new();
    let mut others = Vec::new();
    for (name, id, signature) in signatures {
        let Some(key) = keys.iter().find(|key| key.name == name && key.id() == id) else {
            others.push(label(name, id));
            continue;
        };
        let valid = Signature::from_slice(&signature)
            .is_ok_and(|signature| key.key.verify_strict(text.as_bytes(), &signature).is_ok());
        if !valid {
            return Err(NoteError::InvalidSignature(key.label()));
        }
        if !signed_by.contains(&key) {
            signed_by.push(key);
        }
    }
    if signed_by.is_empty() {
        return Err(NoteError::Untrusted(others));
    }
    Ok((text, signed_by))
}

/// Returns the text of a note without verifying its signatures.
///
/// # Errors
/// If it is not a note.
pub fn unverified_text(note: &str) -> Result<&str, NoteError> {
    Ok(split(note)?.0)
}

pub(crate) type SignatureLine<'a> = (&'a str, [u8; 4], Vec<u8>);

pub(crate) fn split(note: &str) -> Result<(&str, Vec<SignatureLine<'_>>), NoteError> {
    if note.len() > MAX_NOTE_BYTES {
        return Err(NoteError::Malformed("it is longer than 64 KiB"));
    }
    // The last empty line separates the signatures: the text may contain empty lines.
    let at = note.rfind("\n\n").ok_or(NoteError::Malformed(
        "an empty line above the signatures is missing",
    ))?;
    let (text, lines) = (&note[..=at], &note[at + 2..]);
    checked_text(text)?;
    let lines = lines
        .strip_suffix('\n')
        .ok_or(NoteError::Malformed("the last line does not end"))?;
    let mut signatures = Vec::new();
    for line in lines.split('\n') {
        let form = NoteError::Malformed("a line below the text is not a signature");
        let (name, encoded) = line
            .strip_prefix(SIGNATURE_PREFIX)
            .and_then(|line| line.split_once(' '))
            .ok_or(form.clone())?;
        checked_name(name)?;
        let decoded = STANDARD.decode(encoded).map_err(|_| form.clone())?;
        let (id, signature) = decoded.split_first_chunk::<4>().ok_or(form)?;
        signatures.push((name, *id, signature.to_vec()));
        if signatures.len() > MAX_SIGNATURES {
            return Err(NoteError::Malformed("it has more than 100 signatures"));
        }
    }
    Ok((text, signatures))
}

fn checked_text(text: &str) -> Result<(), NoteError> {
    if !text.ends_with('\n') || text.contains(|char: char| char < ' ' && char != '\n') {
        return Err(NoteError::Malformed(
            "its text does not end with a newline, or has control characters",
        ));
    }
    Ok(())
}

fn checked_name(name: &str) -> Result<&str, NoteError> {
    if name.is_empty() || name.contains(|char: char| char.is_whitespace() || char == '+') {
        return Err(NoteError::Name(name.to_owned()));
    }
    Ok(name)
}

/// Parses name, key id and key from `<name>+<key id>+<base64>`.
pub(crate) fn key_fields(text: &str, kind: u8) -> Result<(&str, &str, [u8; 32]), NoteError> {
    // The name has no plus sign, but the base64 may contain some.
    let mut fields = text.trim_end().splitn(3, '+');
    let (Some(name), Some(id), Some(key)) = (fields.next(), fields.next(), fields.next()) else {
        return Err(NoteError::Key("it has fewer than three fields"));
    };
    checked_name(name)?;
    let key = STANDARD
        .decode(key)
        .map_err(|_| NoteError::Key("its third field is not base64"))?;
    match key.split_first() {
        Some((of, key)) if *of == kind => match key.try_into() {
            Ok(key) => Ok((name, id, key)),
            Err(_) => Err(NoteError::Key("an Ed25519 key has 32 bytes")),
        },
        _ => Err(NoteError::Key(
            "its algorithm is not Ed25519, or it has another use",
        )),
    }
}

fn same_id(key: PublicKey, id: &str) -> Result<PublicKey, NoteError> {
    if hex::encode(key.id()) == id {
        Ok(key)
    } else {
        Err(NoteError::Key("its key id does not match name and key"))
    }
}

/// Computes the key id: the beginning of SHA-256 of name, type and key.
pub(crate) fn key_id(name: &str, kind: u8, key: &[u8; 32]) -> [u8; 4] {
    let mut hash = Sha256::new();
    hash.update(name.as_bytes());
    hash.update([b'\n', kind]);
    hash.update(key);
    let [a, b, c, d, ..] = <[u8; 32]>::from(hash.finalize());
    [a, b, c, d]
}

/// Formats a public key as text.
pub(crate) fn key_text(name: &str, kind: u8, key: &[u8; 32]) -> String {
    format!(
        "{}+{}",
        label(name, key_id(name, kind, key)),
        encoded(kind, key)
    )
}

fn encoded(kind: u8, key: &[u8; 32]) -> String {
    let mut bytes = vec![kind];
    bytes.extend(key);
    STANDARD.encode(bytes)
}

fn label(name: &str, id: [u8; 4]) -> String {
    format!("{name}+{}", hex::encode(id))
}

#[cfg(test)]
mod tests {
    use signed_note::{Note, StandardSigner, StandardVerifier, VerifierList};

    use super::*;

    fn key(n: u8) -> PrivateKey {
        PrivateKey::new("example.org/ledger", &[n; 32]).unwrap()
    }

    const TEXT: &str = "first\n\nlast\n";

    #[test]
    fn keys_and_notes_are_those_of_another_implementation() {
        let key = key(7);
        let note = sign(TEXT, &[&key]).unwrap();
        let verifier = StandardVerifier::new(&key.public().to_string()).unwrap();
        let theirs = Note::from_bytes(note.as_bytes()).unwrap();
        let (valid, _) = theirs
            .verify(&VerifierList::new(vec![Box::new(verifier)]))
            .unwrap();
        assert_eq!(valid.len(), 1);

        let signer = StandardSigner::new(&key.to_secret_text()).unwrap();
        let mut theirs = Note::new(TEXT.as_bytes(), &[]).unwrap();
        theirs.add_sigs(&[&signer]).unwrap();
        assert_eq!(String::from_utf8(theirs.to_bytes()).unwrap(), note);
        assert_eq!(open(&note, &[key.public()]).unwrap().0, TEXT);
    }

    #[test]
    fn the_example_of_the_specification_is_read() {
        // Example of https://c2sp.org/signed-note, which does not give the public key.
        let note = "Ognuno sta solo sul cuor della terra\ntrafitto da un raggio di sole:\n\ned è subito sera.\n\n\
                    — quasimodo.example/salvatore NnugSzTjtVAewIS+Z/iJhUPeFDkO/5QQ2i5ddnGITLlC+EhfLW9oJKONrMouFSQU0xMcXxj99ihAQwaqP3ZekRwNtIc=\n";
        assert!(unverified_text(note).unwrap().ends_with("subito sera.\n"));
        assert_eq!(
            open(note, &[key(1).public()]),
            Err(NoteError::Untrusted(vec![
                "quasimodo.example/salvatore+367ba04b".into()
            ]))
        );
    }

    #[test]
    fn keys_survive_as_text_and_wrong_ones_are_refused() {
        let key = key(1);
        let text = key.public().to_string();
        assert_eq!(text.parse(), Ok(key.public()));
        let secret: PrivateKey = key.to_secret_text().parse().unwrap();
        assert_eq!(secret.public(), key.public());
        assert!(!format!("{key:?}").contains(&key.to_secret_text()[40..]));
        let id = hex::encode(key.public().id());
        for wrong in [
            "",
            "name",
            "name+00000000",
            "a b+00000000+AQ==",
            &text.replace(&id, "00000000"),
            &text[..text.len() - 4],
            &key.to_secret_text(),
        ] {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong:?}");
        }
        assert!(PrivateKey::new("a+b", &[0; 32]).is_err());
        assert!(text.parse::<PrivateKey>().is_err());
    }

    #[test]
    fn every_signature_of_a_given_key_must_be_right() {
        let (one, two) = (key(1), key(2));
        let note = sign(TEXT, &[&one, &two]).unwrap();
        let both = [one.public(), two.public()];
        assert_eq!(open(&note, &both).unwrap().1.len(), 2);
        assert_eq!(open(&note, &both[..1]).unwrap().1, [&both[0]]);
        let third = [key(3).public()];
        let untrusted = open(&note, &third);
        assert!(matches!(untrusted, Err(NoteError::Untrusted(labels)) if labels.len() == 2));

        let changed = note.replace("last", "Last");
        assert!(matches!(
            open(&changed, &both),
            Err(NoteError::InvalidSignature(_))
        ));
        // A valid signature does not compensate for an invalid one.
        let other = sign("other\n", &[&two]).unwrap();
        let mixed = format!(
            "{}{}",
            sign(TEXT, &[&one]).unwrap(),
            other.split_once("\n\n").unwrap().1
        );
        assert!(matches!(
            open(&mixed, &both),
            Err(NoteError::InvalidSignature(_))
        ));
    }

    #[test]
    fn invalid_notes_are_refused() {
        let note = sign(TEXT, &[&key(1)]).unwrap();
        let keys = [key(1).public()];
        for wrong in [
            String::new(),
            "text\n".into(),
            "text\n\n".into(),
            note.trim_end().into(),
            note.replace('\u{2014}', "-"),
            note.replace(" example.org", "  example.org"),
            format!("{note}\n"),
            format!("{note}x\n"),
            format!("\t{note}"),
            format!("{}{note}", "x".repeat(MAX_NOTE_BYTES)),
        ] {
            assert!(open(&wrong, &keys).is_err(), "{wrong:?}");
        }
        assert!(sign("no end", &[&key(1)]).is_err());
        assert!(sign("bell\u{7}\n", &[&key(1)]).is_err());
    }
}
