//! Costs that arrived before their message was stored.
//!
//! An endpoint handles several messages concurrently, so a cost may overtake the event it belongs to. Whichever is
//! second finds the other: a message checks this cache after it was stored, a cost checks the database after it was
//! cached.
//!
//! Most costs belong to no message of the endpoint. They expire after a short while, and are limited to a few MiB.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Retention beyond the time that messages wait for their cost. Covers a redelivery of the message.
const JOIN_WINDOW: Duration = Duration::from_secs(10);
/// Maximum bytes of costs and keys. Beyond it the oldest are dropped, and their messages are sent without cost.
const MAX_BYTES: usize = 4 << 20;

/// Recent costs by key.
pub struct Costs {
    retention: Duration,
    recent: Mutex<RecentCosts>,
}

#[derive(Default)]
struct RecentCosts {
    costs: HashMap<String, (Instant, Vec<u8>)>,
    /// Insertion order, oldest first. Entries may have been taken already.
    order: VecDeque<(Instant, String)>,
    bytes: usize,
}

impl Costs {
    /// A cache for messages that wait this long for their cost.
    pub fn new(cost_join_timeout: Duration) -> Self {
        Self {
            retention: cost_join_timeout + JOIN_WINDOW,
            recent: Mutex::default(),
        }
    }

    /// Caches a cost.
    pub fn put(&self, pair: String, cost: Vec<u8>, now: Instant) {
        let mut recent = self.recent(now);
        recent.remove(&pair);
        recent.bytes += pair.len() + cost.len();
        recent.order.push_back((now, pair.clone()));
        recent.costs.insert(pair, (now, cost));
        while recent.bytes > MAX_BYTES && recent.forget_oldest() {}
    }

    /// Removes and returns a cost.
    pub fn take(&self, pair: &str, now: Instant) -> Option<Vec<u8>> {
        self.recent(now).remove(pair)
    }

    /// Locks the cache after removing expired costs.
    fn recent(&self, now: Instant) -> MutexGuard<'_, RecentCosts> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |(put, _): &(Instant, String)| now.duration_since(*put) >= self.retention;
        while recent.order.front().is_some_and(is_old) {
            recent.forget_oldest();
        }
        recent
    }
}

impl RecentCosts {
    fn remove(&mut self, pair: &str) -> Option<Vec<u8>> {
        let (_, cost) = self.costs.remove(pair)?;
        self.bytes -= pair.len() + cost.len();
        Some(cost)
    }

    /// Returns false if the cache is empty.
    fn forget_oldest(&mut self) -> bool {
        let Some((put, pair)) = self.order.pop_front() else {
            return false;
        };
        // It may have been taken and inserted again.
        if self.costs.get(&pair).is_some_and(|(at, _)| *at == put) {
            self.remove(&pair);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(costs: &Costs) -> (usize, usize, usize) {
        let recent = costs.recent.lock().unwrap();
        (recent.costs.len(), recent.order.len(), recent.bytes)
    }

    #[test]
    fn costs_that_complete_nothing_are_forgotten_at_the_next_look() {
        let (costs, start) = (Costs::new(Duration::from_secs(3)), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for n in 0..500 {
            costs.put(format!("{n:03}"), vec![0; 7], at(n / 100));
        }
        assert_eq!(held(&costs), (500, 500, 5_000));
        assert_eq!(costs.take("499", at(12)).map(|cost| cost.len()), Some(7));
        costs.put("000".to_owned(), vec![0; 97], at(12));
        assert_eq!(costs.take("none", at(16)), None);
        assert_eq!(held(&costs), (100, 101, 1_090), "of the last second");
        assert_eq!(costs.take("none", at(17)), None);
        assert_eq!(held(&costs), (1, 1, 100));
        assert_eq!(costs.take("000", at(17)).map(|cost| cost.len()), Some(97));
        assert_eq!(costs.take("none", at(30)), None);
        assert_eq!(held(&costs), (0, 0, 0));
    }

    #[test]
    fn of_a_storm_the_newest_are_kept() {
        let (costs, now) = (Costs::new(Duration::from_secs(3)), Instant::now());
        for n in 0..100 {
            costs.put(format!("{n:02}"), vec![0; MAX_BYTES / 10], now);
        }
        let (count, _, bytes) = held(&costs);
        assert_eq!(count, 9);
        assert!(bytes <= MAX_BYTES);
        assert!(costs.take("99", now).is_some() && costs.take("00", now).is_none());
    }
}
