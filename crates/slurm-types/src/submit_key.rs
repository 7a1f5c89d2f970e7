//! The key of a submission. The workflow-trigger puts it into the job's comment, ingest reads it there.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// First part of every key, with the version of its form.
const PREFIX: &str = "smesh:1:";
/// Bytes of the hash in a key: 128 bits are enough to name a submission, and 22 characters are short enough for a comment.
const HASH_BYTES: usize = 16;
/// Characters after the prefix.
const HASH_CHARS: usize = 22;

/// Names one submission: `smesh:1:` and 22 characters of base64url. The job's comment begins with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SubmitKey(String);

impl SubmitKey {
    /// The key of an action of a rule for an event: the first 16 bytes of SHA-256 over the rule's id, its generation, the event's id and the
    /// action's index, each with its length before it.
    pub fn new(rule: &str, generation: u64, event: &str, action: u32) -> Self {
        let mut hash = Sha256::new();
        for part in [
            rule.as_bytes(),
            &generation.to_be_bytes(),
            event.as_bytes(),
            &action.to_be_bytes(),
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let hash = URL_SAFE_NO_PAD.encode(&hash.finalize()[..HASH_BYTES]);
        Self(format!("{PREFIX}{hash}"))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key at the begin of a job's comment.
    pub fn in_comment(comment: &str) -> Option<Self> {
        comment.split(' ').next()?.parse().ok()
    }

    /// The comment of a job: the key, then the user's own text.
    pub fn comment(&self, own: Option<&str>) -> String {
        match own {
            Some(own) => format!("{self} {own}"),
            None => self.0.clone(),
        }
    }
}

impl fmt::Display for SubmitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a [`SubmitKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read submit key {text:?}: expected smesh:1: and 22 characters of base64url")]
pub struct ParseKeyError {
    text: String,
}

impl FromStr for SubmitKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hash = text
            .strip_prefix(PREFIX)
            .filter(|hash| hash.len() == HASH_CHARS && URL_SAFE_NO_PAD.decode(hash).is_ok());
        match hash {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err(ParseKeyError {
                text: text.chars().take(64).collect(),
            }),
        }
    }
}

impl TryFrom<String> for SubmitKey {
    type Error = ParseKeyError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SubmitKey> for String {
    fn from(key: SubmitKey) -> Self {
        key.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_at_the_begin_of_a_comment_only() {
        let key = SubmitKey::new("alice/align", 3, "event-1", 0);
        // The bytes of keys are stored in jobs and databases: they never change.
        assert_eq!(key.as_str(), "smesh:1:9fIHDdBNcRAt-RViGtjebQ");
        for (comment, expected) in [
            (key.comment(None), Some(&key)),
            (key.comment(Some("of mine")), Some(&key)),
            (format!("see {key}"), None),
            (format!("{key}x"), None),
            (format!("{key}\n"), None),
            ("smesh:1:".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(
                SubmitKey::in_comment(&comment).as_ref(),
                expected,
                "{comment}"
            );
        }
    }

    #[test]
    fn every_part_counts_and_no_part_flows_into_another() {
        let keys = [
            SubmitKey::new("ab", 1, "c", 0),
            SubmitKey::new("a", 1, "bc", 0),
            SubmitKey::new("ab", 2, "c", 0),
            SubmitKey::new("ab", 1, "c", 1),
            SubmitKey::new("ab", 1, "d", 0),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }
}
