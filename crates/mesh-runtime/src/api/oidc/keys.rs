//! The keys of an issuer, and signature verification by ring.
//!
//! A key is bound to one algorithm when it is parsed. Only RS256, ES256 and EdDSA (Ed25519) are supported. A token with `none`, or "signed"
//! with a public key as an HMAC secret, matches no key.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, new_error};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature as ring_signature;
use serde::Deserialize;
use serde_json::Value;

/// Algorithms in the order in which messages list them.
pub(super) const ALGORITHMS: [(&str, Algorithm); 3] = [
    ("RS256", Algorithm::RS256),
    ("ES256", Algorithm::ES256),
    ("EdDSA", Algorithm::EdDSA),
];
/// More keys than any issuer has.
const MAX_KEYS: usize = 100;

#[derive(Clone, Debug, Default)]
pub(super) struct Keys(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Keys {
    /// Parses a JWK set (RFC 7517 §5). Skips keys that are not for a supported signature.
    ///
    /// # Errors
    /// If it is not a JWK set, or has no usable key.
    pub(super) fn read(set: &Value) -> Result<Self, String> {
        let listed = set["keys"].as_array().ok_or("not a key set (JWKS)")?;
        let keys: Vec<Key> = listed.iter().take(MAX_KEYS).filter_map(key).collect();
        if keys.is_empty() {
            return Err("no key for RS256, ES256 or EdDSA".to_owned());
        }
        Ok(Self(keys))
    }

    /// The key of an id for an algorithm. Without an id, the only key for it.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let mut fitting = self.0.iter().filter(|key| {
            key.algorithm == algorithm && id.is_none_or(|id| key.id.as_deref() == Some(id))
        });
        let found = fitting.next()?;
        fitting.next().is_none().then_some(&found.key)
    }
}

/// `None` for a key that is not for a supported signature.
fn key(set_member: &Value) -> Option<Key> {
    let jwk = Jwk::deserialize(set_member).ok()?;
    let use_of_key = &jwk.common.public_key_use;
    let operations = jwk.common.key_operations.as_deref();
    if !matches!(use_of_key, None | Some(PublicKeyUse::Signature))
        || operations.is_some_and(|listed| !listed.contains(&KeyOperations::Verify))
    {
        return None;
    }
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            Algorithm::ES256
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            Algorithm::EdDSA
        }
        _ => return None,
    };
    let name = ALGORITHMS.iter().find(|(_, one)| *one == algorithm)?.0;
    // RFC 9864 names EdDSA with this curve Ed25519, which jsonwebtoken does not know.
    let fits = |alg: &Value| alg == name || (name == "EdDSA" && alg == "Ed25519");
    if set_member.get("alg").is_some_and(|alg| !fits(alg)) {
        return None;
    }
    Some(Key {
        key: DecodingKey::from_jwk(&jwk).ok()?,
        id: jwk.common.key_id,
        algorithm,
    })
}

/// Verifies signatures with ring, which TLS requires anyway; cannot sign.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs ring for verification; call it before the first token is checked.
pub(super) fn install_ring() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if RING.install_default().is_err() {
            tracing::warn!("another JWT signature provider is already installed in this process");
        }
    });
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(new_error(ErrorKind::UnsupportedAlgorithm))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() {
        return Err(new_error(ErrorKind::InvalidAlgorithm));
    }
    let kind = key.kind().clone();
    match algorithm {
        Algorithm::RS256 | Algorithm::ES256 | Algorithm::EdDSA => Ok(Box::new(KeySet {
            algorithm: *algorithm,
            kind,
        })),
        _ => Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    }
}

struct KeySet {
    algorithm: Algorithm,
    kind: DecodingKeyKind,
}

impl Verifier<Vec<u8>> for KeySet {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match (self.algorithm, &self.kind) {
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                // At least 2048 bits.
                ring_signature::RsaPublicKeyComponents { n, e }.verify(
                    &ring_signature::RSA_PKCS1_2048_8192_SHA256,
                    message,
                    signature,
                )
            }
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(key)) => {
                ring_signature::UnparsedPublicKey::new(
                    &ring_signature::ECDSA_P256_SHA256_FIXED,
                    key,
                )
                .verify(message, signature)
            }
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(key)) => {
                ring_signature::UnparsedPublicKey::new(&ring_signature::ED25519, key)
                    .verify(message, signature)
            }
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for KeySet {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_keys_for_our_algorithms_are_taken() {
        let rsa = json!({ "kty": "RSA", "kid": "r", "n": "AQAB", "e": "AQAB" });
        let with = |more: Value| {
            let mut key = rsa.clone();
            key.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            key
        };
        let set = |keys: Value| Keys::read(&json!({ "keys": keys }));
        for refused in [
            with(json!({ "use": "enc" })),
            with(json!({ "alg": "RS512" })),
            with(json!({ "alg": "HS256" })),
            json!({ "kty": "OKP", "crv": "Ed25519", "x": "AQAB", "alg": "Ed448" }),
            with(json!({ "key_ops": ["encrypt"] })),
            json!({ "kty": "oct", "k": "AQAB", "kid": "r" }),
            json!({ "kty": "EC", "crv": "P-384", "x": "AQAB", "y": "AQAB" }),
            json!({ "kty": "OKP", "crv": "X25519", "x": "AQAB" }),
            json!({ "kty": "RSA", "n": "!", "e": "AQAB" }),
            json!("a key"),
        ] {
            assert!(set(json!([refused])).is_err(), "{refused}");
        }
        assert!(Keys::read(&json!({})).is_err());
        let taken = json!({ "kty": "OKP", "crv": "Ed25519", "x": "AQAB", "alg": "Ed25519", "key_ops": ["verify"] });
        assert!(set(json!([taken])).is_ok());
        let keys = set(json!([with(json!({ "use": "sig", "alg": "RS256" })), 5])).unwrap();
        assert!(keys.find(Some("r"), Algorithm::RS256).is_some());
        assert!(keys.find(None, Algorithm::RS256).is_some());
        assert!(keys.find(Some("r"), Algorithm::ES256).is_none());
        assert!(keys.find(Some("s"), Algorithm::RS256).is_none());
        // Two keys match: ambiguous.
        let two = set(json!([rsa, with(json!({ "kid": "s" }))])).unwrap();
        assert!(two.find(None, Algorithm::RS256).is_none());
    }
}
