//! Verifies requests.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use ring::hmac::{HMAC_SHA256, Key};
use subtle::ConstantTimeEq as _;

use crate::{SECRET_PREFIX, VERSION, tag};

/// How far the time of a request may be from ours.
pub const TOLERANCE: TimeDelta = TimeDelta::seconds(300);

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `webhook-timestamp` is not a time.
    Timestamp,
    /// Its time is too far from ours.
    Time,
    /// It is not signed with a secret.
    Signature,
}

/// What is signed of a request.
#[derive(Clone, Copy, Debug)]
pub struct SignedRequest<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`.
    pub timestamp: &'a str,
    /// The body.
    pub body: &'a [u8],
}

impl SignedRequest<'_> {
    /// Checks `webhook-signature`, in constant time: one of the secrets has signed. The prefix `whsec_` is optional, and so is a
    /// minimum length: the sender chooses the secret.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn verify(
        &self,
        signatures: &str,
        secrets: &[&str],
        now: DateTime<Utc>,
    ) -> Result<(), Refusal> {
        let seconds = self.timestamp.parse().ok();
        let at = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
        if (now - at.ok_or(Refusal::Timestamp)?).abs() > TOLERANCE {
            return Err(Refusal::Time);
        }
        let given: Vec<Vec<u8>> = signatures
            .split(' ')
            .filter_map(|one| BASE64_STANDARD.decode(one.strip_prefix(VERSION)?).ok())
            .collect();
        let has_signed = |secret: &&str| {
            let encoded = secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret);
            let key = BASE64_STANDARD.decode(encoded).unwrap_or_default();
            let expected = tag(
                &Key::new(HMAC_SHA256, &key),
                self.id,
                self.timestamp,
                self.body,
            );
            // Everybody can sign with an empty key.
            !key.is_empty()
                && given
                    .iter()
                    .any(|given| given.ct_eq(expected.as_ref()).into())
        };
        match secrets.iter().any(has_signed) {
            true => Ok(()),
            false => Err(Refusal::Signature),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Signer, encode_secret};

    const AT: i64 = 1_614_265_330;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    #[test]
    fn what_is_signed_here_is_verified_here() {
        let [old, new] = [[1; 24], [2; 24]].map(|key| encode_secret(&key));
        let signer = |secret: &str| Signer::new(secret).unwrap();
        let both = signer(&new).beside(signer(&old), at(AT + 1));
        let request = SignedRequest {
            id: "msg_1",
            timestamp: &AT.to_string(),
            body: b"{}",
        };
        let signatures = both.sign("msg_1", at(AT), "{}");
        for secret in [&old, &new] {
            assert_eq!(request.verify(&signatures, &[secret], at(AT)), Ok(()));
            let without_prefix = &secret[6..];
            assert_eq!(
                request.verify(&signatures, &[without_prefix], at(AT)),
                Ok(())
            );
        }
        let third = encode_secret(&[3; 24]);
        let refused = Err(Refusal::Signature);
        assert_eq!(request.verify(&signatures, &[&third], at(AT)), refused);
        assert_eq!(request.verify(&signatures, &[], at(AT)), refused);
        assert_eq!(request.verify("", &[&new], at(AT)), refused);
        for other in [
            SignedRequest {
                id: "msg_2",
                ..request
            },
            SignedRequest {
                timestamp: &(AT + 1).to_string(),
                ..request
            },
            SignedRequest {
                body: b"[]",
                ..request
            },
        ] {
            assert_eq!(other.verify(&signatures, &[&new], at(AT)), refused);
        }
        let later = at(AT) + TOLERANCE;
        assert_eq!(request.verify(&signatures, &[&new], later), Ok(()));
        let too_late = later + TimeDelta::seconds(1);
        let refused = request.verify(&signatures, &[&new], too_late);
        assert_eq!(refused, Err(Refusal::Time));
        let no_time = SignedRequest {
            timestamp: "today",
            ..request
        };
        let refused = no_time.verify(&signatures, &[&new], at(AT));
        assert_eq!(refused, Err(Refusal::Timestamp));
    }

    #[test]
    fn an_empty_key_signs_nothing() {
        let time = AT.to_string();
        let request = SignedRequest {
            id: "msg_1",
            timestamp: &time,
            body: b"{}",
        };
        let tag = tag(&Key::new(HMAC_SHA256, b""), "msg_1", &time, b"{}");
        let forged = format!("v1,{}", BASE64_STANDARD.encode(tag));
        for secret in ["", "whsec_", "not base64!"] {
            let refused = request.verify(&forged, &[secret], at(AT));
            assert_eq!(refused, Err(Refusal::Signature), "{secret:?}");
        }
    }
}
