//! Delays between the attempts of an operation that a dependency refuses. Deliveries of webhooks have delays of their own, which their
//! endpoints configure.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Delays between attempts. The loop of the attempts is the caller's: each reports its failures in its own way.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
    /// Part of the delay that is random.
    jitter: f64,
}

impl Backoff {
    /// The same delay each time.
    pub const fn fixed(delay: Duration) -> Self {
        Self::doubling(delay, delay)
    }

    /// Twice the delay each time, up to `max`.
    pub const fn doubling(initial: Duration, max: Duration) -> Self {
        Self {
            next: initial,
            max,
            jitter: 0.0,
        }
    }

    /// Makes a part of each delay random, from 0 to 1, which spreads many that wait for the same server.
    pub const fn with_jitter(self, jitter: f64) -> Self {
        Self { jitter, ..self }
    }

    /// Returns the delay that follows this number of earlier ones, for a caller that counts failures itself.
    pub fn nth_delay(mut self, earlier: u32) -> Duration {
        let factor = 2_u32.saturating_pow(earlier);
        self.next = self.next.saturating_mul(factor).min(self.max);
        self.next_delay()
    }

    /// Returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.max);
        delay.mul_f64(1.0 - self.jitter * rand::random::<f64>())
    }

    /// Waits before the next attempt. False on shutdown.
    pub async fn wait(&mut self, shutdown: &CancellationToken) -> bool {
        let delay = self.next_delay();
        tokio::select! {
            () = shutdown.cancelled() => false,
            () = tokio::time::sleep(delay) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_millis(350));
        let delays = [(); 4].map(|()| backoff.next_delay().as_millis());
        assert_eq!(delays, [100, 200, 350, 350]);
        let backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_millis(350));
        let delays = [0, 1, 2, u32::MAX].map(|earlier| backoff.nth_delay(earlier).as_millis());
        assert_eq!(delays, [100, 200, 350, 350]);
    }

    #[test]
    fn only_the_given_part_of_a_delay_is_random() {
        let mut backoff = Backoff::fixed(Duration::from_millis(100)).with_jitter(0.5);
        for _ in 0..100 {
            let delay = backoff.next_delay();
            assert!((50..=100).contains(&delay.as_millis()), "{delay:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_on_shutdown() {
        let shutdown = CancellationToken::new();
        let mut backoff = Backoff::fixed(Duration::from_secs(3600));
        assert!(backoff.wait(&shutdown).await);
        shutdown.cancel();
        assert!(!backoff.wait(&shutdown).await);
    }
}
