//! Encryption of endpoint secrets at rest.
//!
//! Secrets are encrypted before they reach the database, with ChaCha20-Poly1305. Every text has its own key, derived
//! with HKDF-SHA256 from the service's key and 32 random bytes, so no nonce is used twice. The ciphertext is bound to
//! the endpoint's id: it cannot be decrypted in another row.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};

use crate::error::Error;

/// First byte of every ciphertext.
const VERSION: u8 = 1;
const KEY_BYTES: usize = 32;
const SALT_BYTES: usize = 32;

/// Encrypts and decrypts. Holds the keys.
pub struct Vault {
    /// The first key encrypts, all keys decrypt.
    keys: Vec<[u8; KEY_BYTES]>,
}

impl Vault {
    /// Parses keys, one per line: 32 bytes in base64. The first key encrypts, all keys decrypt.
    ///
    /// # Errors
    /// What is wrong with them, without the keys themselves.
    pub fn parse(text: &str) -> Result<Self, String> {
        let keys: Result<Vec<_>, _> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(|line| {
                STANDARD
                    .decode(line)
                    .ok()
                    .and_then(|key| key.try_into().ok())
                    .ok_or(())
            })
            .collect();
        match keys {
            Ok(keys) if !keys.is_empty() => Ok(Self { keys }),
            _ => Err(
                "32 bytes in base64, one key a line; `openssl rand -base64 32` makes one"
                    .to_owned(),
            ),
        }
    }

    /// Reads the keys of a file, or generates a key if there is no file.
    ///
    /// # Errors
    /// If the file cannot be created, or its content is invalid.
    pub fn open_or_make(path: &Path) -> Result<Self, Error> {
        let unusable = |problem: String| Error::SecretsKey {
            path: path.to_owned(),
            problem,
        };
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        match made {
            Ok(mut file) => {
                let key = format!("{}\n", STANDARD.encode(rand::random::<[u8; KEY_BYTES]>()));
                file.write_all(key.as_bytes())
                    .and_then(|()| file.sync_all())
                    .map_err(|error| unusable(error.to_string()))?;
                tracing::info!(path = %path.display(), "generated the encryption key of webhook secrets, back it up");
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unusable(error.to_string())),
        }
        let text = secret_file::read(path).map_err(|error| unusable(error.to_string()))?;
        Self::parse(&text).map_err(unusable)
    }

    /// Encrypts a text of an endpoint.
    pub fn seal(&self, endpoint_id: &str, text: &[u8]) -> Vec<u8> {
        let salt: [u8; SALT_BYTES] = rand::random();
        let key = derive(&self.keys[0], &salt);
        let mut sealed = text.to_vec();
        key.seal_in_place_append_tag(nonce(), Aad::from(endpoint_id), &mut sealed)
            .expect("texts are far shorter than 256 GiB");
        let mut blob = vec![VERSION];
        blob.extend_from_slice(&salt);
        blob.append(&mut sealed);
        blob
    }

    /// Decrypts a text of this endpoint. `None` if the key is missing or the text was modified.
    pub fn open(&self, endpoint_id: &str, blob: &[u8]) -> Option<Vec<u8>> {
        let (version, rest) = blob.split_first()?;
        let (salt, sealed) = rest.split_at_checked(SALT_BYTES)?;
        if *version != VERSION {
            return None;
        }
        self.keys.iter().find_map(|key| {
            let mut text = sealed.to_vec();
            let opened = derive(key, salt)
                .open_in_place(nonce(), Aad::from(endpoint_id), &mut text)
                .ok()?
                .len();
            text.truncate(opened);
            Some(text)
        })
    }
}

/// A fixed nonce is safe, as each key is used once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn derive(key: &[u8; KEY_BYTES], salt: &[u8]) -> LessSafeKey {
    struct Length;
    impl KeyType for Length {
        fn len(&self) -> usize {
            KEY_BYTES
        }
    }
    let mut derived = [0; KEY_BYTES];
    Salt::new(HKDF_SHA256, salt)
        .extract(key)
        .expand(&[b"slurm-mesh/webhook-secrets/1"], Length)
        .and_then(|okm| okm.fill(&mut derived))
        .expect("HKDF-SHA256 gives up to 8160 bytes");
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &derived).expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn vault(seeds: &[u8]) -> Vault {
        Vault {
            keys: seeds.iter().map(|seed| [*seed; KEY_BYTES]).collect(),
        }
    }

    #[test]
    fn what_was_sealed_opens_for_its_endpoint_alone() {
        let sealed = vault(&[1]).seal("a", b"whsec_secret");
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_eq!(vault(&[1]).open("a", &sealed).unwrap(), b"whsec_secret");
        assert_eq!(vault(&[1]).open("b", &sealed), None);
        assert_eq!(vault(&[2]).open("a", &sealed), None);
        assert_ne!(vault(&[1]).seal("a", b"whsec_secret"), sealed);
        // After key rotation: the new key precedes the old one.
        assert_eq!(vault(&[2, 1]).open("a", &sealed).unwrap(), b"whsec_secret");
        for n in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[n] ^= 1;
            assert_eq!(vault(&[1]).open("a", &changed), None, "byte {n}");
            assert_eq!(vault(&[1]).open("a", &sealed[..n]), None, "cut at {n}");
        }
    }

    #[test]
    fn a_key_is_made_once_and_readable_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("webhook-dispatcher.key");
        let sealed = Vault::open_or_make(&path).unwrap().seal("a", b"x");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(
            Vault::open_or_make(&path)
                .unwrap()
                .open("a", &sealed)
                .is_some()
        );
        std::fs::write(&path, "c2hvcnQ=\n").unwrap();
        let error = Vault::open_or_make(&path).err().unwrap();
        assert!(
            !mesh_runtime::error_chain(&error).contains("c2hvcnQ"),
            "{error}"
        );
    }
}
