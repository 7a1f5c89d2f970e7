//! Standard Webhooks 1.0.0, version `v1` (HMAC-SHA256): the webhook-dispatcher signs, the workflow-trigger verifies. No IO, no clocks.

mod signer;
mod verify;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac::{Context, Key, Tag};

pub use signer::{InvalidSecret, Signer};
pub use verify::{Refusal, SignedRequest, TOLERANCE};

/// Before the base64 of a secret.
const SECRET_PREFIX: &str = "whsec_";
/// Before the base64 of a signature.
const VERSION: &str = "v1,";

/// A secret of these bytes.
pub fn encode_secret(key: &[u8]) -> String {
    format!("{SECRET_PREFIX}{}", BASE64_STANDARD.encode(key))
}

/// The hash of id, time and body.
fn tag(key: &Key, id: &str, time: &str, body: &[u8]) -> Tag {
    let mut signed = Context::with_key(key);
    for part in [id, ".", time, "."] {
        signed.update(part.as_bytes());
    }
    signed.update(body);
    signed.sign()
}
