//! Time that accounting must still be asked about. It is stored with the watermark, so no restart drops it.
//!
//! A clock may run ahead and be set back. Stored times then lie in the future: nothing would be due until then, and accounting refuses
//! requests about the future. Therefore a step back moves the stored times along. After a restart, times that were stored while the clock
//! was ahead are ignored.

use std::time::Instant;

use mesh_events::EventType;

use super::unseen_ids::too_many;
use super::{Collector, CollectorState};
use crate::Error;
use crate::adapters::capture_state::CaptureState;
use crate::config::Config;
use crate::sources::SLURMDBD_BACKLOG_WAIT;

/// Smallest difference that counts as a step: clocks are slewed, and answers take time.
const MIN_CLOCK_STEP_SECS: i64 = 30;
/// Time after which a clock that was set ahead is not expected to come back.
pub(super) const MAX_CLOCK_AHEAD_SECS: i64 = 86_400;

/// Compares the wall clock with a monotonic one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    read_at: Instant,
    wall_clock: i64,
}

impl Clock {
    pub(super) const fn new(read_at: Instant, wall_clock: i64) -> Self {
        Self {
            read_at,
            wall_clock,
        }
    }

    /// Returns the seconds by which the clock was set since the last call.
    fn step(&mut self, now: Instant, wall_now: i64) -> i64 {
        let passed = now.saturating_duration_since(self.read_at);
        let passed = i64::try_from(passed.as_secs()).unwrap_or(i64::MAX);
        let step = wall_now
            .saturating_sub(self.wall_clock)
            .saturating_sub(passed);
        *self = Self::new(now, wall_now);
        if step.abs() > MIN_CLOCK_STEP_SECS {
            step
        } else {
            0
        }
    }
}

/// Moves stored times along with a clock that was set. Returns whether it was set back.
fn step(capture: &mut CaptureState, step: i64, now: i64) -> bool {
    if step > 0 {
        let before = capture.watermark;
        capture.ahead_from = Some(capture.ahead_from.map_or(before, |from| from.min(before)));
    }
    if step < 0 {
        capture.watermark = capture.watermark.saturating_add(step);
        capture.backlog_from = capture.backlog_from.map(|from| from.saturating_add(step));
        capture.capture_since = capture.capture_since.min(now);
        capture.ahead_from = None;
    }
    let is_past = |from: &mut i64| now.saturating_sub(*from) > MAX_CLOCK_AHEAD_SECS;
    capture.ahead_from.take_if(is_past);
    step < 0
}

/// A time range of the accounting backlog, up to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogWindow {
    /// Start, in Unix seconds.
    pub from: i64,
    /// Value of [`BacklogProgress::clock_steps`] when the window was read.
    clock_steps: u64,
}

/// What happens to the backlog while a window of it is worked off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BacklogProgress {
    /// Start of what was added since the window was read.
    added_from: Option<i64>,
    /// Number of times that the clock was set back. The stored start has moved then, and the window's has not.
    clock_steps: u64,
    /// When the time of an outage can be read: slurmctld sends what it has queued some seconds after slurmdbd is back.
    read_at: Option<tokio::time::Instant>,
}

impl BacklogProgress {
    /// Returns the current backlog.
    fn window(&mut self, capture: &CaptureState, now: i64) -> Option<BacklogWindow> {
        self.added_from = None;
        Some(BacklogWindow {
            from: capture.backlog_from?.min(now),
            clock_steps: self.clock_steps,
        })
    }

    /// Adds the time since the last poll, if that is long ago. Returns whether it has grown.
    fn grow(&mut self, capture: &mut CaptureState, config: &Config, now: i64) -> bool {
        let Some(from) = after_poll(capture, config, now) else {
            return false;
        };
        self.add(capture, from);
        true
    }

    /// Adds the time since then.
    fn add(&mut self, capture: &mut CaptureState, from: i64) {
        let earliest = |known: Option<i64>| Some(known.map_or(from, |known| known.min(from)));
        capture.backlog_from = earliest(capture.backlog_from);
        self.added_from = earliest(self.added_from);
    }

    /// Shortens the backlog by what was worked off. What was added meanwhile stays.
    fn shorten(&self, capture: &mut CaptureState, backlog: &BacklogWindow, until: Option<i64>) {
        if backlog.clock_steps == self.clock_steps {
            capture.backlog_from = until.into_iter().chain(self.added_from).min();
        }
    }
}

/// Backlog of a starting process: the time since the last published poll, the configured history at a first start, and the rest of the
/// previous process.
///
/// `newest` is the latest time of any run that is not in the future.
pub(super) fn at_start(
    capture: &mut CaptureState,
    config: &Config,
    now: i64,
    newest: Option<i64>,
) -> Option<i64> {
    capture.capture_since = capture.capture_since.min(now);
    if capture.watermark > now {
        capture.watermark = newest.unwrap_or(capture.capture_since).min(now);
        tracing::warn!(
            now,
            since = capture.watermark,
            "clock was ahead at the last poll, reading accounting since the newest record"
        );
    }
    if let Some(from) = capture.ahead_from.take() {
        capture.watermark = capture.watermark.min(from);
    }
    let absence = if capture.baseline_done {
        Some(capture.watermark.saturating_sub(config.overlap_secs()))
    } else {
        config.history_since(capture.capture_since).ok().flatten()
    };
    let backlog_start = capture.backlog_from.into_iter().chain(absence).min();
    backlog_start.map(|from| from.min(now))
}

/// Start of what a poll adds to the backlog. A job that began and ended between two polls is seen only if slurmctld still had it in memory.
fn after_poll(capture: &CaptureState, config: &Config, now: i64) -> Option<i64> {
    let limit = i64::try_from(config.catch_up_threshold.as_secs()).unwrap_or(i64::MAX);
    let is_long_ago = now.saturating_sub(capture.watermark) > limit;
    is_long_ago.then(|| capture.watermark.saturating_sub(config.overlap_secs()))
}

impl Collector {
    /// Returns the current backlog.
    pub async fn backlog(&self) -> Option<BacklogWindow> {
        let state = &mut *self.state.lock().await;
        let now = chrono::Utc::now().timestamp();
        state.backlog_progress.window(&state.capture, now)
    }

    /// Whether there is a backlog.
    pub async fn has_backlog(&self) -> bool {
        self.state.lock().await.capture.backlog_from.is_some()
    }

    /// Returns the wall clock time in Unix seconds, and records whether the clock was set.
    pub async fn clock(&self) -> i64 {
        let mut state = self.state.lock().await;
        self.check_clock(&mut state)
    }

    fn check_clock(&self, state: &mut CollectorState) -> i64 {
        let now = chrono::Utc::now().timestamp();
        let seconds = state.clock.step(Instant::now(), now);
        if step(&mut state.capture, seconds, now) {
            tracing::warn!(seconds, "clock was set back");
            state.backlog_progress.clock_steps += 1;
            self.backlog_changed.notify_one();
        }
        now
    }

    /// Adds an outage of accounting that is over, to be read after a delay: the lookups that were given up meanwhile are not repeated.
    pub async fn read_outage(&self, since: i64) {
        let state = &mut *self.state.lock().await;
        let from = since.saturating_sub(self.config.overlap_secs());
        state.backlog_progress.add(&mut state.capture, from);
        state.backlog_progress.read_at = Some(tokio::time::Instant::now() + SLURMDBD_BACKLOG_WAIT);
        state.stored.note_backlog(&state.capture);
        self.backlog_changed.notify_one();
    }

    /// Returns the time before which the backlog need not be read, once.
    pub async fn take_backlog_delay(&self) -> Option<tokio::time::Instant> {
        self.state.lock().await.backlog_progress.read_at.take()
    }

    /// Waits until the backlog grows.
    pub async fn backlog_changed(&self) {
        self.backlog_changed.notified().await;
    }

    /// Records a completely published poll.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn record_poll(&self, number: u64, began: Instant) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        // Uses the current clock, which may have been set while the poll was published.
        let took = i64::try_from(began.elapsed().as_secs()).unwrap_or_default();
        let now = self.check_clock(&mut state);
        let began = now.saturating_sub(took);
        let locked = &mut *state;
        if locked
            .backlog_progress
            .grow(&mut locked.capture, &self.config, began)
        {
            tracing::info!(
                last = locked.capture.watermark,
                now = began,
                "no poll since last, reading accounting from last to now"
            );
            locked.stored.note_backlog(&locked.capture);
            self.backlog_changed.notify_one();
        }
        let unseen = state.note_unseen(self.config.accounting, now);
        if unseen.is_some() {
            self.backlog_changed.notify_one();
        }
        state.store_waits();
        state.capture.poll = number;
        state.capture.watermark = began;
        // What this poll published is stored after it, by the next flush.
        state.capture.published = state.published_by_poll;
        state.published_by_poll = state.published;
        state.capture.baseline_done = true;
        drop(state);
        match unseen.and_then(too_many) {
            // Stored in one write with the newest id.
            Some(gap) => self.capture(EventType::CaptureGapClosed, gap).await,
            None => Ok(()),
        }
    }

    /// Records that accounting has reported everything until `until`, or until now.
    pub async fn record_caught_up(&self, backlog: &BacklogWindow, until: Option<i64>) {
        let state = &mut *self.state.lock().await;
        state
            .backlog_progress
            .shorten(&mut state.capture, backlog, until);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn capture_state(watermark: i64, backlog_from: Option<i64>) -> CaptureState {
        CaptureState {
            watermark,
            backlog_from,
            baseline_done: true,
            ..CaptureState::default()
        }
    }

    #[test]
    fn a_restart_adds_the_absence_to_the_backlog() {
        let config = Config::default();
        let backlog_start =
            |mut capture: CaptureState| at_start(&mut capture, &config, 20_000, None);
        assert_eq!(backlog_start(capture_state(10_000, None)), Some(9_400));
        assert_eq!(backlog_start(capture_state(10_000, Some(500))), Some(500));
        assert_eq!(
            backlog_start(capture_state(10_000, Some(9_900))),
            Some(9_400)
        );
    }

    #[test]
    fn state_stored_with_a_clock_ahead_does_not_prevent_lookups() {
        let config = Config::default();
        let backlog_start = |stored: &CaptureState, newest| {
            let mut capture = stored.clone();
            let backlog_start = at_start(&mut capture, &config, 20_000, newest);
            assert!(capture.watermark <= 20_000 && capture.ahead_from.is_none());
            // The same from the first poll on.
            assert_eq!(
                after_poll(&capture, &config, capture.watermark + 121),
                backlog_start
            );
            backlog_start
        };
        let mut stored = capture_state(23_600, None);
        stored.capture_since = 1_000;
        assert_eq!(backlog_start(&stored, Some(19_990)), Some(19_390));
        assert_eq!(backlog_start(&stored, None), Some(400));
        stored.ahead_from = Some(15_000);
        assert_eq!(backlog_start(&stored, Some(19_990)), Some(14_400));
        // The clock has reached that time meanwhile.
        stored.watermark = 18_600;
        assert_eq!(backlog_start(&stored, None), Some(14_400));
    }

    #[test]
    fn pending_work_follows_a_clock_that_is_set_back() {
        let (at, mut stored) = (Instant::now(), capture_state(10_000, None));
        let mut clock = Clock::new(at, 10_000);
        let mut check = |capture: &mut CaptureState, passed: u64, now: i64| {
            let seconds = clock.step(at + Duration::from_secs(passed), now);
            (step(capture, seconds, now), seconds)
        };
        assert_eq!(check(&mut stored, 5, 10_006), (false, 0));
        assert_eq!(check(&mut stored, 10, 13_611), (false, 3_600));
        assert_eq!(stored.ahead_from, Some(10_000));
        (stored.watermark, stored.backlog_from) = (13_611, Some(13_000));
        stored.capture_since = 13_000;
        assert_eq!(check(&mut stored, 15, 10_016), (true, -3_600));
        let expected = CaptureState {
            capture_since: 10_016,
            ..capture_state(10_011, Some(9_400))
        };
        assert_eq!(stored, expected);
        // A clock that was corrected and stays correct.
        check(&mut stored, 20, 13_621);
        assert_eq!(stored.ahead_from, Some(10_011));
        check(&mut stored, 20 + 90_000, 103_621);
        assert_eq!(stored.ahead_from, None);
    }

    #[test]
    fn a_first_start_reads_the_configured_history() {
        let first = CaptureState::default;
        let history = Config {
            history_since: "1970-01-01T00:01:40Z".into(),
            ..Config::default()
        };
        let backlog_start = |mut capture: CaptureState, config: &Config| {
            at_start(&mut capture, config, 20_000, None)
        };
        assert_eq!(backlog_start(first(), &Config::default()), None);
        assert_eq!(backlog_start(first(), &history), Some(100));
        // Published once; a later start covers only the downtime.
        assert_eq!(
            backlog_start(capture_state(10_000, None), &history),
            Some(9_400)
        );
        // A second start before the first poll begins where the first one did.
        let hour = Config {
            history_since: "1h".into(),
            ..Config::default()
        };
        let began = CaptureState {
            capture_since: 19_000,
            ..first()
        };
        assert_eq!(backlog_start(began, &hour), Some(15_400));
    }

    #[test]
    fn polls_far_apart_make_the_time_between_pending() {
        let config = Config::default();
        assert_eq!(
            after_poll(&capture_state(10_000, None), &config, 10_120),
            None
        );
        assert_eq!(
            after_poll(&capture_state(10_000, None), &config, 10_121),
            Some(9_400)
        );
        let mut stored = capture_state(10_000, Some(7));
        assert!(BacklogProgress::default().grow(&mut stored, &config, 10_121));
        assert_eq!(stored.backlog_from, Some(7));
    }

    /// Every poll comes later than `catch_up_threshold` after the last one, and so adds to the backlog while a window of it is read.
    #[test]
    fn catching_up_ends_although_every_poll_adds_to_the_backlog() {
        const DAYS: i64 = 10 * 86_400;
        let config = Config::default();
        let (mut progress, mut now) = (BacklogProgress::default(), DAYS);
        let mut stored = capture_state(now, Some(0));
        let (mut walks, mut requests) = (0, 0);
        let mut read = Vec::new();
        while let Some(window) = progress.window(&stored, now) {
            walks += 1;
            let mut start = window.from;
            loop {
                // A day per request, which takes 100 s. A poll takes place every 150 s.
                let asked = now;
                (requests, now) = (requests + 1, now + 100);
                if now - stored.watermark >= 150 {
                    assert!(progress.grow(&mut stored, &config, now));
                    stored.watermark = now;
                }
                let next = Some(start + 86_400).filter(|next| *next < asked);
                read.push(start..next.unwrap_or(asked));
                progress.shorten(&mut stored, &window, next);
                let Some(next) = next else { break };
                // Not less than what a restart would have to read.
                assert!(stored.backlog_from.is_some_and(|from| from <= next));
                start = next;
            }
            if walks == 1 {
                assert!(stored.backlog_from.is_some_and(|from| from > DAYS - 3_600));
            }
            if requests > 20 {
                break;
            }
        }
        // Nothing was left out.
        read.sort_by_key(|range| range.start);
        let mut until = 0;
        for range in read {
            assert!(range.start <= until, "{range:?} after {until}");
            until = until.max(range.end);
        }
        assert!(until > DAYS, "{until}");
    }

    #[test]
    fn progress_from_before_the_clock_was_set_back_does_not_count() {
        let mut progress = BacklogProgress::default();
        let mut stored = capture_state(10_000, Some(5_000));
        let window = progress.window(&stored, 10_000).unwrap();
        progress.clock_steps += 1;
        stored.backlog_from = Some(4_000);
        progress.shorten(&mut stored, &window, Some(9_000));
        assert_eq!(stored.backlog_from, Some(4_000));
    }

    #[test]
    fn state_of_an_older_ingest_has_no_pending_work() {
        let stored = r#"{"version":1,"capture_since":5,"watermark":9,"sweep":3,"baseline_done":true,"counts":{}}"#;
        let capture: CaptureState = serde_json::from_str(stored).unwrap();
        assert_eq!((capture.watermark, capture.backlog_from), (9, None));
    }
}
