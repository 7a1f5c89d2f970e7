//! Limits test deliveries, which send immediately to wherever an endpoint points. Tests are subject to the limits of
//! deliveries: one at a time per endpoint, within the endpoint's rate limit, and with a permit of the total. A test
//! over the limit gets the time for a retry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use tokio::sync::OwnedSemaphorePermit;

use super::{ApiError, Webhooks};
use crate::attempt::rate::Bucket;
use crate::clock;
use crate::config::Endpoint;

/// Retry time if none is known.
const DEFAULT_RETRY_AFTER_SECS: u64 = 1;

/// Test deliveries of all endpoints.
#[derive(Default)]
pub struct TestLimiter(Mutex<HashMap<String, TestHistory>>);

#[derive(Default)]
struct TestHistory {
    under_way: bool,
    /// Rate limit of tests while another dispatcher owns the endpoint and its bucket.
    bucket: Bucket,
}

/// Permission to send a test.
pub(super) struct TestPermit<'a> {
    turns: &'a TestLimiter,
    name: String,
    _in_flight: OwnedSemaphorePermit,
}

impl Drop for TestPermit<'_> {
    fn drop(&mut self) {
        let mut all = self.turns.all();
        if let Some(tried) = all.get_mut(&self.name) {
            tried.under_way = false;
            if tried.bucket == Bucket::default() {
                all.remove(&self.name);
            }
        }
    }
}

impl TestLimiter {
    fn all(&self) -> MutexGuard<'_, HashMap<String, TestHistory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spend(&self, endpoint: &Endpoint, now: DateTime<Utc>) -> Result<(), DateTime<Utc>> {
        let Some(limit) = &endpoint.limit else {
            return Ok(());
        };
        let mut all = self.all();
        let bucket = &mut all.entry(endpoint.name.clone()).or_default().bucket;
        if bucket.take(limit, now) {
            Ok(())
        } else {
            Err(bucket.next(limit, now))
        }
    }
}

impl Webhooks {
    /// Requests permission to send a test now.
    pub(super) async fn turn(&self, endpoint: &Endpoint) -> Result<TestPermit<'_>, ApiError> {
        let (name, now) = (&endpoint.name, clock::now());
        let in_flight = Arc::clone(&self.shared.in_flight_limit).try_acquire_owned();
        let in_flight = in_flight.map_err(|_| ApiError::TooMany {
            problem: "as many requests as may be (max_in_flight) are under way".to_owned(),
            after: DEFAULT_RETRY_AFTER_SECS,
        })?;
        {
            let mut all = self.turns.all();
            let tried = all.entry(name.clone()).or_default();
            if tried.under_way {
                return Err(ApiError::TooMany {
                    problem: format!("a test of {name:?} is running"),
                    after: DEFAULT_RETRY_AFTER_SECS,
                });
            }
            tried.under_way = true;
        }
        let turn = TestPermit {
            turns: &self.turns,
            name: name.clone(),
            _in_flight: in_flight,
        };
        let spent = match self.worker_pool.worker(name) {
            Some(worker) => worker.charge(now).await?,
            None => self.turns.spend(endpoint, now),
        };
        spent.map_err(|next| ApiError::TooMany {
            problem: format!("the rate_limit of {name:?} is exhausted"),
            after: u64::try_from((next - now).num_seconds()).unwrap_or(0) + 1,
        })?;
        Ok(turn)
    }
}
