//! Position in a list of deliveries, for pages and redelivery jobs.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const VERSION: &str = "1";

/// Position of a delivery in its endpoint's list. As text it is a cursor, opaque to clients. It grants no access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryPosition {
    /// When the delivery was created, in milliseconds since the Unix epoch.
    pub created_at: i64,
    /// Orders deliveries of the same time as they were published.
    pub stream_sequence: i64,
    /// Distinguishes deliveries without a stream sequence.
    pub event_id: String,
}

impl DeliveryPosition {
    /// The cursor for clients.
    pub fn cursor(&self) -> String {
        let (at, sequence, id) = (self.created_at, self.stream_sequence, &self.event_id);
        URL_SAFE_NO_PAD.encode(format!("{VERSION}/{at}/{sequence}/{id}"))
    }

    /// Parses a cursor. `None` if it is invalid.
    pub fn parse(cursor: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
        let mut parts = text.splitn(4, '/');
        (parts.next()? == VERSION).then_some(())?;
        let place = Self {
            created_at: parts.next()?.parse().ok()?,
            stream_sequence: parts.next()?.parse().ok()?,
            event_id: parts.next()?.to_owned(),
        };
        // PostgreSQL rejects texts with NUL.
        (!place.event_id.contains('\0')).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursors_come_back(created_at: i64, stream_sequence: i64, event_id in "[^\0]*") {
            let place = DeliveryPosition { created_at, stream_sequence, event_id };
            prop_assert_eq!(DeliveryPosition::parse(&place.cursor()), Some(place));
        }

        #[test]
        fn any_other_text_is_none(text: String) {
            prop_assert_eq!(DeliveryPosition::parse(&text), None);
        }
    }
}
