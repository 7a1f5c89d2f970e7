//! How much of `MESH_IN` a caller may use, by events and bytes per minute. A person also has a share of the whole stream, for as long as it
//! keeps events: events that stay there for two weeks could else take all of it, slowly.
//!
//! Kept in memory: each process counts for itself, from zero after a restart.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use slurm_client::LeakyBucket;
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);
/// As long as `MESH_IN` keeps events.
const RETENTION: Duration = Duration::from_secs(14 * 86_400);
/// What a person may publish in that time. Unused permits are kept, so that it can be twice as much: an eighth of the stream.
const USER_BYTES: NonZeroU32 = NonZeroU32::new(64 << 20).expect("not 0");

/// Limits of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowanceLimits {
    /// Events in a minute.
    pub events: NonZeroU32,
    /// Bytes of events in a minute.
    pub bytes: NonZeroU32,
}

/// Who sends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sender<'a> {
    /// A Unix user.
    User(&'a str),
    /// A source.
    Source(&'a str),
}

/// What every caller has left.
#[derive(Debug)]
pub(crate) struct Allowances {
    of_user: AllowanceLimits,
    of_source: AllowanceLimits,
    /// Those who lack something, users and sources.
    callers: [Mutex<HashMap<String, Allowance>>; 2],
}

#[derive(Debug)]
struct Allowance {
    events: LeakyBucket,
    bytes: LeakyBucket,
    /// Of the whole stream.
    share: Option<LeakyBucket>,
}

impl Allowances {
    pub(crate) fn new(of_user: AllowanceLimits, of_source: AllowanceLimits) -> Self {
        Self {
            of_user,
            of_source,
            callers: Default::default(),
        }
    }

    /// Takes what the events of a request need, all or nothing.
    ///
    /// # Errors
    /// If there is not so much: how long to wait.
    pub(super) fn take(
        &self,
        sender: Sender<'_>,
        events: usize,
        bytes: usize,
        now: Instant,
    ) -> Result<(), Duration> {
        let (callers, name, limits, share) = match sender {
            Sender::User(name) => (&self.callers[0], name, self.of_user, Some(USER_BYTES)),
            Sender::Source(name) => (&self.callers[1], name, self.of_source, None),
        };
        let mut callers = callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, allowance| !allowance.is_full(now));
        let allowance = callers
            .entry(name.to_owned())
            .or_insert_with(|| Allowance::new(limits, share));
        allowance.take(count(events), count(bytes), now)
    }
}

impl Allowance {
    fn new(limits: AllowanceLimits, share: Option<NonZeroU32>) -> Self {
        Self {
            events: LeakyBucket::new(limits.events, MINUTE),
            bytes: LeakyBucket::new(limits.bytes, MINUTE),
            share: share.map(|bytes| LeakyBucket::new(bytes, RETENTION)),
        }
    }

    fn take(&mut self, events: u32, bytes: u32, now: Instant) -> Result<(), Duration> {
        let share = self.share.as_ref();
        let wait = self
            .events
            .wait_for(events, now)
            .max(self.bytes.wait_for(bytes, now))
            .max(share.map_or(Duration::ZERO, |share| share.wait_for(bytes, now)));
        if !wait.is_zero() {
            return Err(wait);
        }
        self.events.take(events, now);
        self.bytes.take(bytes, now);
        if let Some(share) = &mut self.share {
            share.take(bytes, now);
        }
        Ok(())
    }

    fn is_full(&self, now: Instant) -> bool {
        let share = self.share.as_ref();
        self.events.is_full(now)
            && self.bytes.is_full(now)
            && share.is_none_or(|share| share.is_full(now))
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn limits(events: u32, bytes: u32) -> AllowanceLimits {
        AllowanceLimits {
            events: NonZeroU32::new(events).unwrap(),
            bytes: NonZeroU32::new(bytes).unwrap(),
        }
    }

    #[test]
    fn a_caller_is_limited_by_events_and_by_bytes_and_others_are_not() {
        let allowances = Allowances::new(limits(3, 1_000), limits(60, 100_000));
        let now = Instant::now();
        let take = |sender, events, bytes, now| allowances.take(sender, events, bytes, now);
        let alice = Sender::User("alice");
        assert_eq!(take(alice, 1, 900, now), Ok(()));
        // What is refused uses nothing.
        assert_eq!(take(alice, 1, 600, now), Err(Duration::from_secs(30)));
        assert_eq!(take(alice, 1, 100, now), Ok(()));
        assert_eq!(take(alice, 1, 0, now), Ok(()));
        assert_eq!(take(alice, 1, 0, now), Err(Duration::from_secs(20)));
        assert_eq!(take(Sender::User("bob"), 3, 1_000, now), Ok(()));
        // Not the user of that name.
        assert_eq!(take(Sender::Source("alice"), 60, 0, now), Ok(()));
        assert_eq!(take(alice, 3, 1_000, now + MINUTE), Ok(()));
    }

    #[test]
    fn a_user_cannot_fill_the_stream_slowly_and_a_source_can_use_it() {
        let allowances = Allowances::new(limits(60, 1 << 20), limits(60, 1 << 20));
        let begin = Instant::now();
        let sent = |sender: Sender<'_>| {
            let minutes = 0..14 * 24 * 60_u32;
            let accepted = minutes.filter(|n| {
                let now = begin + MINUTE * *n;
                allowances.take(sender, 16, 1 << 20, now).is_ok()
            });
            accepted.count()
        };
        // MiB
        assert!((64..=128).contains(&sent(Sender::User("alice"))));
        assert_eq!(sent(Sender::Source("ci")), 14 * 24 * 60);
    }
}
