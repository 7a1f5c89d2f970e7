//! Ids and names that must be the same after every restart.

use mesh_events::EventId;
pub use mesh_events::catalogue::endpoint_consumer as consumer;
use sha2::{Digest, Sha256};

/// What ids of messages about other endpoints begin with.
const NOTICE: &str = "notice-";

/// Id of the audit entry and of the dead letter of a delivery: one final outcome, one id, however often it is published.
pub fn delivery_id(endpoint: &str, event_id: &str) -> String {
    let mut hash = Sha256::new();
    for field in ["slurm-mesh/delivery/1", endpoint, event_id] {
        hash.update(u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(field.as_bytes());
    }
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes)
        .into_uuid()
        .to_string()
}

/// The same of a delivery that was begun again so often.
pub fn outcome_id(endpoint: &str, event_id: &str, round: u32) -> String {
    match round {
        0 => delivery_id(endpoint, event_id),
        round => delivery_id(endpoint, &format!("{event_id}#{round}")),
    }
}

/// Id of the message "N events while away" that begins with this event.
pub fn away_id(endpoint: &str, first: &str) -> String {
    format!("away-{}", delivery_id(endpoint, first))
}

/// Id of the message to an endpoint that another one was halted then.
pub fn notice_id(endpoint: &str, halted: &str, at_millis: i64) -> String {
    let id = delivery_id(endpoint, &format!("{halted}@{at_millis}"));
    format!("{NOTICE}{id}")
}

/// True for the id of such a message.
pub fn is_notice(id: &str) -> bool {
    id.starts_with(NOTICE)
}

/// What an event that a replay tells is remembered by: once for each replay, beside the event itself.
pub fn replayed(replay: &str, event_id: &str) -> String {
    format!("{replay}:{event_id}")
}

/// The replay in what is remembered.
pub fn replay(id: &str) -> Option<&str> {
    id.split_once(':').map(|(replay, _)| replay)
}

/// Id of the message of an array's digest with this number.
pub fn digest_id(endpoint: &str, key: &str, number: u32) -> String {
    format!(
        "digest-{}",
        delivery_id(endpoint, &format!("{key}#{number}"))
    )
}

/// True for the id of a digest's message.
pub fn is_digest(id: &str) -> bool {
    id.starts_with("digest-")
}

/// True for the id of an event, also of one that a replay tells (and not of a message of our own).
pub fn is_event(id: &str) -> bool {
    let event = id.split_once(':').map_or(id, |(_, event)| event);
    event.parse::<EventId>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_change() {
        // SHA-256("ops-slack"); a change would leave every endpoint's place in the stream behind.
        assert_eq!(consumer("ops-slack"), "wh-adbee16fb09b");
        assert_eq!(consumer("").len(), 15);
    }

    #[test]
    fn every_delivery_has_its_own_id() {
        assert_eq!(delivery_id("a", "b"), delivery_id("a", "b"));
        assert_ne!(delivery_id("a", "b"), delivery_id("ab", ""));
        assert_eq!(outcome_id("a", "b", 0), delivery_id("a", "b"));
        assert_ne!(outcome_id("a", "b", 1), outcome_id("a", "b", 2));
        assert!(is_event(&delivery_id("a", "b")), "a UUIDv8");
        assert!(!is_event(&away_id("a", "b")));
        let notice = notice_id("a", "b", 1);
        assert!(is_notice(&notice) && !is_event(&notice) && !is_digest(&notice));
        assert_ne!(notice, notice_id("a", "b", 2));
        let again = replayed("r1", &delivery_id("a", "b"));
        assert!(is_event(&again) && replay(&again) == Some("r1"));
        assert_eq!(replay(&delivery_id("a", "b")), None);
    }
}
