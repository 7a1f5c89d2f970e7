//! Checks that a request is of its source, on its bytes as they came, in constant time.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use ring::hmac::{self, HMAC_SHA256};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::source::Signature;

/// How far the time of a request may be from ours, as Standard Webhooks has it.
const TOLERANCE: TimeDelta = TimeDelta::seconds(300);
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
                let (id, time) = (header("webhook-id")?, header("webhook-timestamp")?);
                let given = header("webhook-signature")?;
                let at = time
                    .parse()
                    .ok()
                    .and_then(|at| DateTime::from_timestamp(at, 0));
                let at = at.ok_or(Refusal::Header("webhook-timestamp"))?;
                if (now - at).abs() > TOLERANCE {
                    return Err(Refusal::Time);
                }
                let signed = [id.as_bytes(), b".", time.as_bytes(), b".", request.body].concat();
                let tags: Vec<Vec<u8>> = given
                    .split(' ')
                    .filter_map(|one| BASE64_STANDARD.decode(one.strip_prefix("v1,")?).ok())
                    .collect();
                any(&|secret| {
                    let encoded = secret.strip_prefix("whsec_").unwrap_or(secret);
                    let key = BASE64_STANDARD.decode(encoded).unwrap_or_default();
                    !key.is_empty() && tags.iter().any(|tag| is_tag(&key, &signed, tag))
                })?;
                Ok(id.to_owned())
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
