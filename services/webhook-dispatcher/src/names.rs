//! Ids and names that must never change, not even between releases.

use mesh_events::EventId;
use sha2::{Digest, Sha256};

/// Prefix of the ids of messages about other endpoints.
const NOTICE: &str = "notice-";

/// Id of the audit entry and of the dead letter of a delivery. The same for every publish of one outcome.
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

/// The id of an outcome after this many redeliveries.
pub fn outcome_id(endpoint: &str, event_id: &str, round: u32) -> String {
    match round {
        0 => delivery_id(endpoint, event_id),
        round => delivery_id(endpoint, &format!("{event_id}#{round}")),
    }
}

/// Id of the message "N events while away" that starts with this event.
pub fn away_id(endpoint: &str, first: &str) -> String {
    format!("away-{}", delivery_id(endpoint, first))
}

/// Id of the notice to an endpoint that another one was halted at this time.
pub fn notice_id(endpoint: &str, halted: &str, at_millis: i64) -> String {
    let id = delivery_id(endpoint, &format!("{halted}@{at_millis}"));
    format!("{NOTICE}{id}")
}

/// True for the id of a notice.
pub fn is_notice(id: &str) -> bool {
    id.starts_with(NOTICE)
}

/// Id of a replayed event's delivery: unique per replay, and distinct from the event's own.
pub fn replayed(replay: &str, event_id: &str) -> String {
    format!("{replay}:{event_id}")
}

/// The replay of a delivery id, if any.
pub fn replay(id: &str) -> Option<&str> {
    id.split_once(':').map(|(replay, _)| replay)
}

/// Id of an array digest's message with this number.
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

/// True for the id of an event, replayed or not. False for messages of the dispatcher.
pub fn is_event(id: &str) -> bool {
    let event = id.split_once(':').map_or(id, |(_, event)| event);
    event.parse::<EventId>().is_ok()
}

#[cfg(test)]
mod tests {
    use mesh_events::catalogue::legacy_endpoint_consumer;

    use super::*;

    #[test]
    fn names_never_change() {
        // SHA-256("ops-slack"). With another name the positions of former versions would not be found.
        assert_eq!(legacy_endpoint_consumer("ops-slack"), "wh-adbee16fb09b");
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
