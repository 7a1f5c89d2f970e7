//! Limits test deliveries, which send immediately to wherever an endpoint points. Tests are subject to the limits of
//! deliveries: one at a time per endpoint, within the endpoint's rate limit, and with a permit of the total. A test
//! over the limit gets the time for a retry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rate_limit::{LeakyBucket, Limit};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit};
use tokio::time::Instant;

use super::{ApiError, Webhooks};
use crate::config::Endpoint;

/// Retry time if none is known.
const DEFAULT_RETRY_AFTER_SECS: u64 = 1;

/// Rate limit of an endpoint's tests while another dispatcher owns the endpoint and its bucket.
type Bucket = Option<(Limit, LeakyBucket)>;

/// Test deliveries of all endpoints. A bucket is locked while a test is under way.
#[derive(Default)]
pub struct TestLimiter(Mutex<HashMap<String, Arc<tokio::sync::Mutex<Bucket>>>>);

/// Permission to send a test.
pub(super) struct TestPermit {
    _turn: OwnedMutexGuard<Bucket>,
    _in_flight: OwnedSemaphorePermit,
}

impl TestLimiter {
    /// The bucket of an endpoint, unless a test is under way. Full ones are dropped.
    fn turn(&self, endpoint: &str, now: Instant) -> Option<OwnedMutexGuard<Bucket>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turn| match turn.try_lock() {
            Ok(turn) => matches!(&*turn, Some((_, bucket)) if !bucket.is_full(now)),
            Err(_) => true,
        });
        let turn = Arc::clone(all.entry(endpoint.to_owned()).or_default());
        turn.try_lock_owned().ok()
    }
}

impl Webhooks {
    /// Requests permission to send a test now.
    pub(super) async fn turn(&self, endpoint: &Endpoint) -> Result<TestPermit, ApiError> {
        let (name, now, after) = (&endpoint.name, Instant::now(), DEFAULT_RETRY_AFTER_SECS);
        let in_flight = Arc::clone(&self.shared.in_flight_limit).try_acquire_owned();
        let in_flight = in_flight.map_err(|_| ApiError::TooMany {
            problem: "as many requests as may be (max_in_flight) are under way".to_owned(),
            after,
        })?;
        let turn = self.turns.turn(name, now);
        let mut turn = turn.ok_or_else(|| ApiError::TooMany {
            problem: format!("a test of {name:?} is running"),
            after,
        })?;
        let charged = match (self.worker_pool.worker(name), endpoint.rules.limit) {
            (Some(worker), _) => worker.charge().await?,
            (None, None) => Ok(()),
            (None, Some(limit)) => {
                let known = turn.take().filter(|(known, _)| *known == limit);
                let (_, bucket) = turn.insert(known.unwrap_or((limit, limit.bucket())));
                match bucket.try_take(now) {
                    true => Ok(()),
                    false => Err(bucket.wait_for(1, now)),
                }
            }
        };
        charged.map_err(|wait| ApiError::TooMany {
            problem: format!("the rate_limit of {name:?} is exhausted"),
            after: wait.as_secs() + 1,
        })?;
        Ok(TestPermit {
            _turn: turn,
            _in_flight: in_flight,
        })
    }
}
