//! A test sends at once and to wherever its endpoint points, so it is bounded as deliveries are: one at a time to an endpoint, within the
//! endpoint's rate, and with a place of those that all requests have together. Whoever finds none is told when to come again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use tokio::sync::OwnedSemaphorePermit;

use super::{ApiError, Webhooks};
use crate::clock;
use crate::config::Endpoint;
use crate::domain::rate::Bucket;

/// When to come again where nobody knows.
const DEFAULT_RETRY_AFTER_SECS: u64 = 1;

/// Tests of endpoints.
#[derive(Default)]
pub struct TestLimiter(Mutex<HashMap<String, TestHistory>>);

#[derive(Default)]
struct TestHistory {
    under_way: bool,
    /// Where another dispatcher has the endpoint, and its rate with it.
    bucket: Bucket,
}

/// The right to send a test.
pub(super) struct TestPermit<'a> {
    turns: &'a TestLimiter,
    name: String,
    _place: OwnedSemaphorePermit,
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
    /// Asks to send a test now.
    pub(super) async fn turn(&self, endpoint: &Endpoint) -> Result<TestPermit<'_>, ApiError> {
        let (name, now) = (&endpoint.name, clock::now());
        let places = Arc::clone(&self.shared.places).try_acquire_owned();
        let place = places.map_err(|_| ApiError::TooMany {
            problem: "as many requests as may be (max_in_flight) are under way".to_owned(),
            after: DEFAULT_RETRY_AFTER_SECS,
        })?;
        {
            let mut all = self.turns.all();
            let tried = all.entry(name.clone()).or_default();
            if tried.under_way {
                return Err(ApiError::TooMany {
                    problem: format!("a test of {name:?} is under way"),
                    after: DEFAULT_RETRY_AFTER_SECS,
                });
            }
            tried.under_way = true;
        }
        let turn = TestPermit {
            turns: &self.turns,
            name: name.clone(),
            _place: place,
        };
        let spent = match self.worker_pool.worker(name) {
            Some(worker) => worker.spend(now).await?,
            None => self.turns.spend(endpoint, now),
        };
        spent.map_err(|next| ApiError::TooMany {
            problem: format!("the rate_limit of {name:?} is used up"),
            after: u64::try_from((next - now).num_seconds()).unwrap_or(0) + 1,
        })?;
        Ok(turn)
    }
}
