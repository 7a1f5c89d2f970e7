//! How long a record that only accounting has was waited for.
//!
//! Time counts from accounting's first answer without the record on, but not while accounting is unavailable: slurmctld keeps what it has to
//! report until then, so an outage proves nothing, however long.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::Config;

/// How often `missing_record_timeout` may pass after the limit, if accounting goes away again and again.
const MAX_GRACE_PERIODS: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct AccountingWait {
    /// Time that counted before `since`, in this process and in earlier ones.
    before: Duration,
    /// From when on time counts; `None` without an answer so far, and while accounting is unavailable.
    since: Option<Instant>,
    has_answered: bool,
}

impl AccountingWait {
    /// A wait that earlier processes have begun, if they waited at all. It goes on at once, else each restart would prolong it by the time to
    /// the next answer.
    pub(super) fn continued(before: Duration, now: Instant) -> Self {
        let has_answered = before > Duration::ZERO;
        Self {
            before,
            since: has_answered.then_some(now),
            has_answered,
        }
    }

    pub(super) const fn has_answered(&self) -> bool {
        self.has_answered
    }

    pub(super) fn waited(&self, now: Instant) -> Duration {
        self.before + self.uninterrupted(now)
    }

    /// The part of the wait since accounting was last unavailable.
    fn uninterrupted(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now - since)
    }

    /// Records an answer without the record.
    pub(super) fn answered(&mut self, now: Instant) {
        self.has_answered = true;
        self.since.get_or_insert(now);
    }

    /// Records that accounting is unavailable.
    pub(super) fn interrupted(&mut self, now: Instant) {
        (self.before, self.since) = (self.waited(now), None);
    }

    /// Records that accounting answers again.
    pub(super) fn resumed(&mut self, now: Instant) {
        if self.has_answered {
            self.since.get_or_insert(now);
        }
    }

    /// Time until [`Self::is_over`], if accounting stays available.
    pub(super) fn left(&self, within: Duration, now: Instant, config: &Config) -> Duration {
        let grace = config.missing_record_timeout;
        let steady = within
            .saturating_sub(self.waited(now))
            .max(grace.saturating_sub(self.uninterrupted(now)));
        let longest = within.saturating_add(grace.saturating_mul(MAX_GRACE_PERIODS));
        steady.min(longest.saturating_sub(self.waited(now)))
    }

    /// Whether to stop after `within`. Soon after an outage, slurmctld may still have to report the record.
    pub(super) fn is_over(&self, within: Duration, now: Instant, config: &Config) -> bool {
        self.left(within, now, config).is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_neither_counts_nor_proves_anything() {
        let config = Config::default();
        let within = config.resolution_timeout;
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut wait = AccountingWait::continued(Duration::ZERO, at(0));
        // No answer yet.
        wait.resumed(at(5));
        assert_eq!(wait.waited(at(9)), Duration::ZERO);
        wait.answered(at(10));
        wait.interrupted(at(40));
        wait.interrupted(at(50));
        assert_eq!(wait.waited(at(2_000)), Duration::from_secs(30));
        wait.resumed(at(2_000));
        wait.answered(at(2_010));
        assert!(!wait.is_over(within, at(2_389), &config));
        assert!(wait.is_over(within, at(2_390), &config));
        // Just before the limit, accounting is unavailable once more.
        wait.interrupted(at(2_389));
        wait.resumed(at(4_000));
        assert!(!wait.is_over(within, at(4_029), &config));
        assert!(wait.is_over(within, at(4_030), &config));
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_within_ten_minutes_of_answers_although_accounting_goes_away_again_and_again() {
        let config = Config::default();
        let began = Instant::now();
        let mut wait = AccountingWait::continued(Duration::ZERO, began);
        let (mut now, mut answering) = (began, Duration::ZERO);
        while !wait.is_over(config.resolution_timeout, now, &config) {
            wait.answered(now);
            (now, answering) = (
                now + Duration::from_secs(20),
                answering + Duration::from_secs(20),
            );
            wait.interrupted(now);
            now += Duration::from_secs(40);
            assert!(answering <= Duration::from_secs(600));
        }
    }
}
