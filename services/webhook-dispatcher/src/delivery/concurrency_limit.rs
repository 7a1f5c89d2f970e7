//! Limits the requests in flight, per endpoint and over all endpoints.
//!
//! The total is limited so that a thousand hanging receivers do not exhaust memory and sockets. Beyond the total,
//! every endpoint may always have one request in flight, so hanging receivers cannot starve another endpoint.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The permits of one endpoint.
pub struct ConcurrencyLimit {
    own: Semaphore,
    /// One permit reserved for this endpoint.
    sure: Semaphore,
    common: Arc<Semaphore>,
}

/// Permission to have a request in flight.
pub type Permit<'a> = [SemaphorePermit<'a>; 2];

impl ConcurrencyLimit {
    /// A limit for one endpoint, within a shared total.
    pub fn new(concurrency: usize, common: Arc<Semaphore>) -> Self {
        Self {
            own: Semaphore::new(concurrency),
            sure: Semaphore::new(1),
            common,
        }
    }

    /// Waits for a permit.
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
        [own, common].map(|permit| permit.expect("the semaphore is never closed"))
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
