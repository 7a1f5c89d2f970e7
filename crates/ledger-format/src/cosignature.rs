//! Cosignatures: a witness signs that a checkpoint is consistent with all earlier checkpoints of
//! that origin that it has signed. The format is C2SP's `tlog-cosignature`
//! (<https://c2sp.org/tlog-cosignature>), for Ed25519.
//!
//! A cosignature is an additional signature line of the note. It consists of eight bytes of Unix
//! seconds and an Ed25519 signature of a header with that time and the note's text. The key's text
//! and id are those of `signed-note`, with type 04.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, VerifyingKey};

use crate::note::{NoteError, key_fields, key_id, key_text, split};

/// Signature type of a timestamped cosignature.
const ALGORITHM_COSIGNATURE: u8 = 4;

/// Public key of a witness, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessKey {
    name: String,
    key: VerifyingKey,
}

impl WitnessKey {
    /// Returns the name of the witness.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key id.
    pub fn id(&self) -> [u8; 4] {
        key_id(&self.name, ALGORITHM_COSIGNATURE, self.key.as_bytes())
    }
}

impl fmt::Display for WitnessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&key_text(
            &self.name,
            ALGORITHM_COSIGNATURE,
            self.key.as_bytes(),
        ))
    }
}

impl FromStr for WitnessKey {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let (name, id, bytes) = key_fields(text, ALGORITHM_COSIGNATURE)?;
        let key = VerifyingKey::from_bytes(&bytes)
            .map_err(|_| NoteError::Key("not a point of the curve"))?;
        let key = Self {
            name: name.to_owned(),
            key,
        };
        match hex::encode(key.id()) == id {
            true => Ok(key),
            false => Err(NoteError::Key("its key id does not match name and key")),
        }
    }
}

/// Returns the message that a witness signs. `time` is in Unix seconds.
pub fn message(text: &str, time: u64) -> String {
    format!("cosignature/v1\ntime {time}\n{text}")
}

/// Returns those of the given witnesses that have cosigned a note, each once.
///
/// # Errors
/// If it is not a note, or the signature of a given witness does not match the text.
pub fn cosigned<'k>(
    note: &str,
    witnesses: &'k [WitnessKey],
) -> Result<Vec<&'k WitnessKey>, NoteError> {
    let (text, signatures) = split(note)?;
    let mut found: Vec<&WitnessKey> = Vec::new();
    for (name, id, cosignature) in signatures {
        let is_of = |witness: &&WitnessKey| witness.name == name && witness.id() == id;
        let Some(witness) = witnesses.iter().find(is_of) else {
            continue;
        };
        let valid = cosignature
            .split_first_chunk::<8>()
            .is_some_and(|(time, signature)| {
                let signed = message(text, u64::from_be_bytes(*time));
                Signature::from_slice(signature).is_ok_and(|signature| {
                    let verified = witness.key.verify_strict(signed.as_bytes(), &signature);
                    verified.is_ok()
                })
            });
        if !valid {
            return Err(NoteError::InvalidSignature(witness.to_string()));
        }
        if !found.contains(&witness) {
            found.push(witness);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use ed25519_dalek::{Signer as _, SigningKey};

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::note::PrivateKey;

    fn witness(seed: u8) -> (WitnessKey, SigningKey) {
        let secret = SigningKey::from_bytes(&[seed; 32]);
        let key = WitnessKey {
            name: format!("witness.example/{seed}"),
            key: secret.verifying_key(),
        };
        (key, secret)
    }

    fn line((key, secret): &(WitnessKey, SigningKey), text: &str, time: u64) -> String {
        let mut bytes = key.id().to_vec();
        bytes.extend(time.to_be_bytes());
        bytes.extend(secret.sign(message(text, time).as_bytes()).to_bytes());
        format!("\u{2014} {} {}\n", key.name, STANDARD.encode(bytes))
    }

    #[test]
    fn only_cosignatures_of_this_text_and_of_these_witnesses_count() {
        let log = PrivateKey::new("example.org/log", &[9; 32]).unwrap();
        let checkpoint = Checkpoint {
            origin: "example.org/log".into(),
            size: 3,
            root: [1; 32],
        };
        let note = checkpoint.sign(&[&log]).unwrap();
        let text = checkpoint.text();
        let (one, two) = (witness(1), witness(2));
        let keys = [one.0.clone(), two.0.clone()];
        assert_eq!(cosigned(&note, &keys), Ok(vec![]));
        let both = format!(
            "{note}{}{}",
            line(&one, &text, 1_700_000_000),
            line(&two, &text, 5)
        );
        assert_eq!(cosigned(&both, &keys).unwrap().len(), 2);
        assert_eq!(cosigned(&both, &keys[..1]), Ok(vec![&keys[0]]));
        // The log's signature is still accepted.
        let log_keys = [log.public()];
        assert_eq!(Checkpoint::open(&both, &log_keys).unwrap().0, checkpoint);
        let twice = format!("{note}{0}{0}", line(&one, &text, 7));
        assert_eq!(cosigned(&twice, &keys).unwrap().len(), 1);
        let forged = format!("{note}{}", line(&one, "other\n", 7));
        assert!(matches!(
            cosigned(&forged, &keys),
            Err(NoteError::InvalidSignature(_))
        ));
    }

    #[test]
    fn a_witness_key_is_of_its_own_type() {
        let (key, secret) = witness(3);
        assert_eq!(key.to_string().parse(), Ok(key.clone()));
        let log = PrivateKey::new(key.name(), &secret.to_bytes())
            .unwrap()
            .public();
        assert!(log.to_string().parse::<WitnessKey>().is_err());
        assert_ne!(log.id(), key.id());
    }
}
