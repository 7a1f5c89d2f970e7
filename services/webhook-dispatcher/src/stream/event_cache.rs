//! Caches decoded events: each is decoded once for all endpoints and attempts.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use mesh_events::{DecodeError, Event};

use crate::message::decoded_event::DecodedEvent;

/// Only the newest events are cached.
const MAX_EVENTS: usize = 256;
/// Larger events are not cached.
const MAX_EVENT_BYTES: usize = 8 * 1024;

/// Decoded events, keyed by their encoded bytes.
#[derive(Default)]
pub struct EventCache(Mutex<RecentEvents>);

#[derive(Default)]
struct RecentEvents {
    facts: HashMap<Bytes, Arc<DecodedEvent>>,
    order: VecDeque<Bytes>,
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
        if let Some(fact) = self.with(|recent| recent.facts.get(body).cloned()) {
            return Ok(fact);
        }
        let fact = Arc::new(DecodedEvent::from(Event::from_bytes(body)?));
        // Copy the key: a slice of the message would keep the whole receive buffer alive.
        let body = Bytes::copy_from_slice(body);
        self.with(|recent| {
            if recent
                .facts
                .insert(body.clone(), Arc::clone(&fact))
                .is_none()
            {
                recent.order.push_back(body);
            }
            if recent.order.len() > MAX_EVENTS
                && let Some(oldest) = recent.order.pop_front()
            {
                recent.facts.remove(&oldest);
            }
        });
        Ok(fact)
    }

    fn with<T>(&self, act: impl FnOnce(&mut RecentEvents) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::EventType;
    use prost::Message as _;

    use super::*;
    use crate::message::sample;

    fn body(n: usize, detail: usize) -> Vec<u8> {
        let event = Event {
            run_seq: n as u64,
            source_detail: "x".repeat(detail),
            ..sample::event(EventType::JobStarted)
        };
        event.encode_to_vec()
    }

    #[test]
    fn the_last_ones_are_read_once() {
        let facts = EventCache::default();
        let read = |n| facts.read(&body(n, 0)).unwrap();
        let first = read(0);
        assert!(Arc::ptr_eq(&first, &read(0)));
        for n in 1..=MAX_EVENTS {
            assert_eq!(read(n).run_seq, n as u64);
        }
        assert!(!Arc::ptr_eq(&first, &read(0)), "too long ago");
        let recent = facts.0.lock().unwrap();
        assert_eq!(
            (recent.facts.len(), recent.order.len()),
            (MAX_EVENTS, MAX_EVENTS)
        );
    }

    #[test]
    fn large_ones_are_not_remembered_and_what_is_none_is_an_error() {
        let facts = EventCache::default();
        assert_eq!(facts.read(&body(7, MAX_EVENT_BYTES)).unwrap().run_seq, 7);
        assert!(facts.read(b"no event").is_err());
        assert!(facts.0.lock().unwrap().facts.is_empty());
    }
}
