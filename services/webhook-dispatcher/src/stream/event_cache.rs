//! Caches decoded events: each is decoded once for all endpoints and attempts.

use std::sync::Arc;

use bytes::Bytes;
use event_filter::DecodedEvent;
use mesh_events::{DecodeError, Event};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

/// Only the newest events are cached.
const MAX_EVENTS: u64 = 256;
/// Larger events are not cached.
const MAX_EVENT_BYTES: usize = 8 * 1024;

/// Decoded events, keyed by their encoded bytes.
pub struct EventCache(Cache<Bytes, Arc<DecodedEvent>>);

impl Default for EventCache {
    fn default() -> Self {
        let cache = Cache::builder().max_capacity(MAX_EVENTS);
        Self(cache.eviction_policy(EvictionPolicy::lru()).build())
    }
}

impl EventCache {
    /// Returns the event, decoding it if it is not cached.
    ///
    /// # Errors
    /// If the bytes are not an event.
    pub fn read(&self, body: &[u8]) -> Result<Arc<DecodedEvent>, DecodeError> {
        if body.len() > MAX_EVENT_BYTES {
            return Ok(Arc::new(Event::from_bytes(body)?.into()));
        }
        if let Some(event) = self.0.get(body) {
            return Ok(event);
        }
        let event = Arc::new(DecodedEvent::from(Event::from_bytes(body)?));
        // Copy the key: a slice of the message would keep the whole receive buffer alive.
        self.0
            .insert(Bytes::copy_from_slice(body), Arc::clone(&event));
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use event_filter::sample;
    use mesh_events::EventType;
    use prost::Message as _;

    use super::*;

    fn body(n: u64, detail: usize) -> Vec<u8> {
        let event = Event {
            run_seq: n,
            source_detail: "x".repeat(detail),
            ..sample::event(EventType::JobStarted)
        };
        event.encode_to_vec()
    }

    #[test]
    fn the_newest_events_are_decoded_once() {
        let events = EventCache::default();
        let read = |n: u64| events.read(&body(n, 0)).unwrap();
        let first = read(0);
        assert!(Arc::ptr_eq(&first, &read(0)));
        for n in 1..=MAX_EVENTS {
            assert_eq!(read(n).run_seq, n);
        }
        events.0.run_pending_tasks();
        assert_eq!(events.0.entry_count(), MAX_EVENTS);
        assert!(!Arc::ptr_eq(&first, &read(0)), "too long ago");
    }

    #[test]
    fn large_events_are_not_cached_and_other_bytes_are_an_error() {
        let events = EventCache::default();
        assert_eq!(events.read(&body(7, MAX_EVENT_BYTES)).unwrap().run_seq, 7);
        assert!(events.read(b"no event").is_err());
        events.0.run_pending_tasks();
        assert_eq!(events.0.entry_count(), 0);
    }
}
