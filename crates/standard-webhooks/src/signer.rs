//! Signs requests.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, Utc};
use ring::hmac::{HMAC_SHA256, Key};
use secrecy::{ExposeSecret, SecretString};

use crate::{SECRET_PREFIX, VERSION, tag};

/// `v1,`, a hash in base64 and a space.
const MAX_SIGNATURE_LENGTH: usize = 48;

/// Signs for one endpoint. Implements no `Debug`, so the key cannot be logged.
#[derive(Clone)]
pub struct Signer {
    key: Key,
    /// Previous secrets and the time until which they sign as well, for receivers that have not changed theirs yet.
    retired: Vec<(Key, DateTime<Utc>)>,
    /// The secrets as configured, for redaction.
    secrets: Vec<SecretString>,
}

/// A secret that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSecret {
    /// The prefix is missing. The value could be anything, such as a password.
    #[error("a secret begins with whsec_")]
    Prefix,
    /// Not base64.
    #[error("after whsec_ comes base64")]
    Base64,
    /// Standard Webhooks requires 24 to 64 bytes.
    #[error("{0} bytes; a secret has 24 to 64")]
    Length(usize),
}

impl Signer {
    /// A signer with a secret of the form `whsec_<base64>`.
    ///
    /// # Errors
    /// If the form or length is invalid.
    pub fn new(secret: &str) -> Result<Self, InvalidSecret> {
        let encoded = secret
            .strip_prefix(SECRET_PREFIX)
            .ok_or(InvalidSecret::Prefix)?;
        let key = BASE64_STANDARD
            .decode(encoded)
            .map_err(|_| InvalidSecret::Base64)?;
        if !(24..=64).contains(&key.len()) {
            return Err(InvalidSecret::Length(key.len()));
        }
        Ok(Self {
            key: Key::new(HMAC_SHA256, &key),
            retired: Vec::new(),
            secrets: vec![secret.into()],
        })
    }

    /// Adds a previous secret, which signs as well until then.
    #[must_use]
    pub fn beside(mut self, retired: Self, until: DateTime<Utc>) -> Self {
        self.retired.push((retired.key, until));
        self.secrets.extend(retired.secrets);
        self
    }

    /// The secrets of this signer.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(ExposeSecret::expose_secret)
    }

    /// Value of `webhook-signature`. The timestamp is that of the attempt, as receivers refuse timestamps older than
    /// five minutes.
    pub fn sign(&self, id: &str, at: DateTime<Utc>, body: impl AsRef<[u8]>) -> String {
        let retired = self.retired.iter().filter(|(_, until)| at < *until);
        let keys = std::iter::once(&self.key).chain(retired.map(|(key, _)| key));
        let time = at.timestamp().to_string();
        let mut signatures = String::with_capacity(MAX_SIGNATURE_LENGTH);
        for key in keys {
            let space = if signatures.is_empty() { "" } else { " " };
            signatures.push_str(space);
            signatures.push_str(VERSION);
            BASE64_STANDARD.encode_string(tag(key, id, &time, body.as_ref()), &mut signatures);
        }
        signatures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_as_the_published_vectors_say() {
        // Test vectors of Standard Webhooks, used by all its libraries.
        let cases = [
            (
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                r#"{"test": 2432232314}"#,
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
            (
                "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
                "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
                1_649_367_553,
                r#"{"email":"test@example.com","username":"test_user"}"#,
                "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
            ),
        ];
        for (secret, id, at, body, expected) in cases {
            let signer = Signer::new(secret).unwrap();
            assert_eq!(
                signer.sign(id, DateTime::from_timestamp(at, 0).unwrap(), body),
                expected
            );
        }
    }

    #[test]
    fn a_retired_secret_signs_beside_the_new_one_until_its_time() {
        let [old, new] = [
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        ]
        .map(|secret| Signer::new(secret).unwrap());
        let at = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        let both = new.clone().beside(old.clone(), at);
        let before = at - chrono::TimeDelta::seconds(1);
        let expected = format!(
            "{} {}",
            new.sign("id", before, "{}"),
            old.sign("id", before, "{}")
        );
        assert_eq!(both.sign("id", before, "{}"), expected);
        assert_eq!(both.sign("id", at, "{}"), new.sign("id", at, "{}"));
    }

    #[test]
    fn weak_and_malformed_secrets_are_refused() {
        assert_eq!(
            Signer::new("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").err(),
            Some(InvalidSecret::Prefix)
        );
        assert_eq!(
            Signer::new("whsec_not base64").err(),
            Some(InvalidSecret::Base64)
        );
        assert_eq!(
            Signer::new("whsec_c2hvcnQ=").err(),
            Some(InvalidSecret::Length(5))
        );
        assert_eq!(Signer::new("whsec_").err(), Some(InvalidSecret::Length(0)));
    }
}
