//! How many requests may be under way: to one endpoint, and to all of them together.
//!
//! What all have together is bounded, so that a thousand receivers that hang hold no more memory and sockets than one machine has. But an
//! endpoint can always send one thing at a time, so however many others hang, it is never kept out.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The places of one endpoint.
pub struct ConcurrencyLimit {
    own: Semaphore,
    /// The one that is the endpoint's alone.
    sure: Semaphore,
    common: Arc<Semaphore>,
}

/// The right to have a request under way.
pub struct Permit<'a> {
    _own: SemaphorePermit<'a>,
    _common: SemaphorePermit<'a>,
}

impl ConcurrencyLimit {
    /// So many at a time, of those that all have together.
    pub fn new(concurrency: usize, common: Arc<Semaphore>) -> Self {
        Self {
            own: Semaphore::new(concurrency),
            sure: Semaphore::new(1),
            common,
        }
    }

    /// Waits for one.
    ///
    /// # Panics
    /// Never: no semaphore is closed.
    pub async fn take(&self) -> Permit<'_> {
        let own = self.own.acquire().await;
        let common = tokio::select! {
            biased;
            place = self.sure.acquire() => place,
            place = self.common.acquire() => place,
        };
        Permit {
            _own: own.expect("the semaphore is never closed"),
            _common: common.expect("the semaphore is never closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn all_together_is_bounded_and_each_has_a_place_of_its_own() {
        let common = Arc::new(Semaphore::new(2));
        let greedy = ConcurrencyLimit::new(64, Arc::clone(&common));
        let held: Vec<_> = std::iter::from_fn(|| greedy.take().now_or_never()).collect();
        assert_eq!(held.len(), 3, "its own and the two of all");
        let other = ConcurrencyLimit::new(64, common);
        let first = other.take().now_or_never();
        assert!(first.is_some(), "its own");
        assert!(other.take().now_or_never().is_none());
        drop(held);
        assert!(other.take().now_or_never().is_some());
    }

    #[test]
    fn an_endpoint_has_no_more_than_it_may() {
        let places = ConcurrencyLimit::new(2, Arc::new(Semaphore::new(10)));
        let held: Vec<_> = std::iter::from_fn(|| places.take().now_or_never()).collect();
        assert_eq!(held.len(), 2);
    }
}
