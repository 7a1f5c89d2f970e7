//! The cursor of a listing.
//!
//! A cursor is opaque to callers. It holds the sequence of the last returned entry and the time
//! bounds resolved for the first page, so that `since=2h` does not move between pages. It also
//! holds a digest of the request, so that it cannot be used with another one. It grants no rights:
//! visibility is evaluated again for each page.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Length of the digest of a request, in bytes.
pub const DIGEST: usize = 8;

const VERSION: u8 = 1;
const NONE: i64 = i64::MIN;

/// Position in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Sequence of the last returned entry.
    pub seq: i64,
    /// Lower bound in microseconds since 1970.
    pub since: Option<i64>,
    /// Upper bound in microseconds since 1970.
    pub until: Option<i64>,
    /// Digest of the request.
    pub digest: [u8; DIGEST],
}

impl Cursor {
    /// Encodes the cursor for callers.
    pub fn encode(&self) -> String {
        let mut bytes = vec![VERSION];
        for number in [
            self.seq,
            self.since.unwrap_or(NONE),
            self.until.unwrap_or(NONE),
        ] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.digest);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Decodes a cursor. Returns `None` if the text is not a cursor.
    pub fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (seq, rest) = rest.split_first_chunk()?;
        let (since, rest) = rest.split_first_chunk()?;
        let (until, digest) = rest.split_first_chunk()?;
        let bound = |bytes: &[u8; 8]| Some(i64::from_be_bytes(*bytes)).filter(|n| *n != NONE);
        (*version == VERSION).then_some(Self {
            seq: i64::from_be_bytes(*seq),
            since: bound(since),
            until: bound(until),
            digest: digest.try_into().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursors_come_back(seq: i64, since in proptest::option::of(0i64..), until in proptest::option::of(0i64..), digest: [u8; DIGEST]) {
            let cursor = Cursor { seq, since, until, digest };
            prop_assert_eq!(Cursor::decode(&cursor.encode()), Some(cursor));
        }

        #[test]
        fn any_text_is_survived(text in "\\PC{0,60}") {
            let _ = Cursor::decode(&text);
        }
    }
}
