//! Limits accounting to one request at a time, with pauses between them. A request costs slurmdbd of 22.05 up to a second.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};

/// Minimum time between the starts of two requests.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time from an answer to the next request.
const MIN_REST: Duration = Duration::from_millis(500);

/// Rate limit of accounting requests, shared by all callers.
#[derive(Debug, Default)]
pub struct AccountingRateLimit {
    not_before: Mutex<Option<Instant>>,
}

/// Permit for one request.
pub struct AccountingPermit<'a> {
    began: Instant,
    not_before: MutexGuard<'a, Option<Instant>>,
}

impl AccountingRateLimit {
    /// Waits for a permit. Permits are granted in the order of the calls.
    pub async fn next(&self) -> AccountingPermit<'_> {
        let not_before = self.not_before.lock().await;
        if let Some(time) = *not_before {
            sleep_until(time).await;
        }
        AccountingPermit {
            began: Instant::now(),
            not_before,
        }
    }
}

impl Drop for AccountingPermit<'_> {
    fn drop(&mut self) {
        *self.not_before = Some((self.began + REQUEST_INTERVAL).max(Instant::now() + MIN_REST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_are_apart_and_a_slow_answer_is_rested_after() {
        let rate_limit = AccountingRateLimit::default();
        let began = Instant::now();
        drop(rate_limit.next().await);
        let second = rate_limit.next().await;
        assert_eq!(began.elapsed(), REQUEST_INTERVAL);
        tokio::time::sleep(Duration::from_secs(7)).await;
        drop(second);
        drop(rate_limit.next().await);
        assert_eq!(
            began.elapsed(),
            REQUEST_INTERVAL + Duration::from_secs(7) + MIN_REST
        );
    }
}
