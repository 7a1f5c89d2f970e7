//! Costs that came a moment before the message they complete was stored.
//!
//! Messages of one endpoint are handled several at a time, so a cost may overtake the event it follows from. Whoever comes second
//! finds the other: the message looks here after it was stored, the cost looks into the database after it was put here.
//!
//! Most costs complete nothing the endpoint is told of, so they are kept for a short while only, and no more than a few MiB of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Besides the time that messages wait for their cost: one that the bus has to give out again comes within it.
const JOIN_WINDOW: Duration = Duration::from_secs(10);
/// Costs and their pairs; beyond it the oldest go: those messages go without.
const MOST_BYTES: usize = 4 << 20;

/// Recent costs by pair.
pub struct Costs {
    kept: Duration,
    recent: Mutex<RecentCosts>,
}

#[derive(Default)]
struct RecentCosts {
    costs: HashMap<String, (Instant, Vec<u8>)>,
    /// What was put, the oldest first; some may be taken by now.
    order: VecDeque<(Instant, String)>,
    bytes: usize,
}

impl Costs {
    /// For messages that wait so long for their cost.
    pub fn new(cost_join_timeout: Duration) -> Self {
        Self {
            kept: cost_join_timeout + JOIN_WINDOW,
            recent: Mutex::default(),
        }
    }

    /// Keeps a cost for a while.
    pub fn put(&self, pair: String, cost: Vec<u8>, now: Instant) {
        let mut recent = self.recent(now);
        recent.remove(&pair);
        recent.bytes += pair.len() + cost.len();
        recent.order.push_back((now, pair.clone()));
        recent.costs.insert(pair, (now, cost));
        while recent.bytes > MOST_BYTES && recent.forget_oldest() {}
    }

    /// Takes a cost out.
    pub fn take(&self, pair: &str, now: Instant) -> Option<Vec<u8>> {
        self.recent(now).remove(pair)
    }

    /// Without those that are too old by now.
    fn recent(&self, now: Instant) -> MutexGuard<'_, RecentCosts> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |(put, _): &(Instant, String)| now.duration_since(*put) >= self.kept;
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

    /// False if there is none.
    fn forget_oldest(&mut self) -> bool {
        let Some((put, pair)) = self.order.pop_front() else {
            return false;
        };
        // It may have been taken, and put again later.
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
            costs.put(format!("{n:02}"), vec![0; MOST_BYTES / 10], now);
        }
        let (count, _, bytes) = held(&costs);
        assert_eq!(count, 9);
        assert!(bytes <= MOST_BYTES);
        assert!(costs.take("99", now).is_some() && costs.take("00", now).is_none());
    }
}
