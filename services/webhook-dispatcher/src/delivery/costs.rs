//! Costs, and who cancelled a job, that arrived before their message was stored.
//!
//! An endpoint handles several messages concurrently, so a cost may overtake the event it belongs to. Whichever is
//! second finds the other: a message checks this cache after it was stored, a cost checks the database after it was
//! cached.
//!
//! Most costs belong to no message of the endpoint. They expire after a short while.

use std::time::Duration;

use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

/// Retention beyond the time that messages wait for their cost. Covers a redelivery of the message.
const JOIN_WINDOW: Duration = Duration::from_secs(10);
/// Maximum bytes of costs and keys, of all endpoints. Beyond it the oldest are dropped, and their messages are sent
/// without cost.
const MAX_BYTES: u64 = 64 << 20;

/// Recent costs by endpoint and key.
pub struct Costs(Cache<(String, String), Bytes>);

impl Costs {
    /// A cache for messages that wait this long for their cost.
    pub fn new(cost_join_timeout: Duration) -> Self {
        let size = |(endpoint, pair): &(String, String), cost: &Bytes| {
            let bytes = endpoint.len() + pair.len() + cost.len();
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let cache = Cache::builder()
            .weigher(size)
            .max_capacity(MAX_BYTES)
            .eviction_policy(EvictionPolicy::lru())
            .time_to_live(cost_join_timeout + JOIN_WINDOW);
        Self(cache.build())
    }

    /// Caches a cost.
    pub fn put(&self, endpoint: &str, pair: String, cost: Bytes) {
        self.0.insert((endpoint.to_owned(), pair), cost);
    }

    /// Removes and returns a cost.
    pub fn take(&self, endpoint: &str, pair: &str) -> Option<Bytes> {
        self.0.remove(&(endpoint.to_owned(), pair.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cost_is_taken_once_by_its_endpoint() {
        let costs = Costs::new(Duration::from_secs(3));
        costs.put("one", "pair".to_owned(), Bytes::from_static(b"before"));
        costs.put("one", "pair".to_owned(), Bytes::from_static(b"cost"));
        assert_eq!(costs.take("other", "pair"), None);
        assert_eq!(costs.take("one", "pair").as_deref(), Some(&b"cost"[..]));
        assert_eq!(costs.take("one", "pair"), None);
    }

    #[test]
    fn of_a_storm_the_newest_are_kept() {
        let costs = Costs::new(Duration::from_secs(3));
        let cost = vec![0; usize::try_from(MAX_BYTES / 10).unwrap()];
        for n in 0..100 {
            costs.put("one", format!("{n:02}"), cost.clone().into());
            costs.0.run_pending_tasks();
        }
        assert!(costs.0.weighted_size() <= MAX_BYTES);
        assert_eq!(costs.0.entry_count(), 9);
        assert!(costs.take("one", "99").is_some() && costs.take("one", "00").is_none());
    }
}
