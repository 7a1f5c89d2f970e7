//! Checks that a request is of its source, on its bytes as they came, in constant time.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, Utc};
use ring::hmac::{self, HMAC_SHA256};
use sha2::{Digest as _, Sha256};
use standard_webhooks::SignedRequest;
use subtle::ConstantTimeEq as _;

use super::source::Signature;

/// Length of an id that is made of a body, in bytes.
const BODY_ID_BYTES: usize = 16;

/// Why a request is refused. The sender learns no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A header is missing or unreadable.
    #[error("no usable {0}")]
    Header(&'static str),
    /// Its time is too far from ours.
    #[error("the time of the request is more than five minutes from ours")]
    Time,
    /// It is not signed with the secret.
    #[error("the signature does not fit")]
    Signature,
}

impl From<standard_webhooks::Refusal> for Refusal {
    fn from(refusal: standard_webhooks::Refusal) -> Self {
        match refusal {
            standard_webhooks::Refusal::Timestamp => Self::Header("webhook-timestamp"),
            standard_webhooks::Refusal::Time => Self::Time,
            standard_webhooks::Refusal::Signature => Self::Signature,
        }
    }
}

/// A request.
pub struct Request<'a> {
    /// The value of a header, by its name.
    pub header: &'a dyn Fn(&str) -> Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

impl Signature {
    /// Checks a request against the secrets of its source. Returns the id of the delivery: what is not signed is no part of it, so that a
    /// request that is sent again by somebody else is the same event.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn check(
        &self,
        secrets: &[&str],
        request: &Request<'_>,
        now: DateTime<Utc>,
    ) -> Result<String, Refusal> {
        let header = |name: &'static str| (request.header)(name).ok_or(Refusal::Header(name));
        let any = |fits: &dyn Fn(&str) -> bool| match secrets.iter().any(|secret| fits(secret)) {
            true => Ok(()),
            false => Err(Refusal::Signature),
        };
        match self {
            Self::Standard => {
                let signed = SignedRequest {
                    id: header("webhook-id")?,
                    timestamp: header("webhook-timestamp")?,
                    body: request.body,
                };
                signed.verify(header("webhook-signature")?, secrets, now)?;
                Ok(signed.id.to_owned())
            }
            Self::Github => {
                let given = header("x-hub-signature-256")?;
                let tag = given
                    .strip_prefix("sha256=")
                    .and_then(|tag| hex::decode(tag).ok());
                let tag = tag.ok_or(Refusal::Header("x-hub-signature-256"))?;
                any(&|secret| is_tag(secret.as_bytes(), request.body, &tag))?;
                Ok(body_id(request.body))
            }
            Self::Gitlab => {
                let given = header("x-gitlab-token")?;
                any(&|secret| is_equal(given, secret))?;
                let key = (request.header)("idempotency-key");
                Ok(key.map_or_else(|| body_id(request.body), str::to_owned))
            }
            Self::Hmac { header } => {
                let given = (request.header)(header).ok_or(Refusal::Header("signature"))?;
                let text = given.strip_prefix("sha256=").unwrap_or(given);
                let tags = [hex::decode(text).ok(), BASE64_STANDARD.decode(text).ok()];
                any(&|secret| {
                    let mut tags = tags.iter().flatten();
                    tags.any(|tag| is_tag(secret.as_bytes(), request.body, tag))
                })?;
                Ok(body_id(request.body))
            }
            Self::Bearer => {
                let given = header("authorization")?;
                let token = match given.split_once(' ') {
                    Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
                    // MinIO sends a token as it is configured.
                    _ => given,
                };
                any(&|secret| is_equal(token, secret))?;
                Ok(body_id(request.body))
            }
        }
    }
}

fn is_tag(key: &[u8], signed: &[u8], tag: &[u8]) -> bool {
    hmac::verify(&hmac::Key::new(HMAC_SHA256, key), signed, tag).is_ok()
}

fn is_equal(given: &str, secret: &str) -> bool {
    // Of hashes, so that the time says nothing about the length.
    let hash = |text: &str| Sha256::digest(text.as_bytes());
    hash(given).as_slice().ct_eq(hash(secret).as_slice()).into()
}

/// The id of an event that brings none.
pub fn body_id(body: &[u8]) -> String {
    hex::encode(&Sha256::digest(body)[..BODY_ID_BYTES])
}

#[cfg(test)]
mod tests;
