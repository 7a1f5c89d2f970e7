//! How much of `MESH_IN` a caller may use, by events and bytes per minute. A person also has a share of the whole stream, for as long as it
//! keeps events: events that stay there for two weeks could else take all of it, slowly.
//!
//! Kept in memory: each process counts for itself, from zero after a restart.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mesh_events::IncomingEvent;
use mesh_events::catalogue::{MESH_IN, STREAMS};
use rate_limit::LeakyBucket;
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);
/// Of the stream's size, what a person may publish in the time for which it keeps events. Unused permits are kept, so that it can be twice
/// as much: an eighth.
const USER_PART: u64 = 16;

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

/// What the events of a request need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    events: u32,
    bytes: u32,
}

impl Need {
    pub(super) fn of(events: &[IncomingEvent]) -> Self {
        let bytes = events.iter().map(|event| event.to_bytes().len()).sum();
        Self {
            events: count(events.len()),
            bytes: count(bytes),
        }
    }
}

/// What a request exceeds, and how long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exceeded {
    /// The rate of the caller.
    Rate(Duration),
    /// The user's share of the stream.
    Share(Duration),
}

/// Bytes of a person, and the time in which they may be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub bytes: NonZeroU32,
    pub period: Duration,
}

impl Share {
    /// By the catalogue.
    fn new() -> Self {
        let found = STREAMS.iter().find(|stream| stream.name == MESH_IN);
        let size = found.map_or(0, |stream| stream.max_bytes.unsigned_abs());
        let bytes = u32::try_from(size / USER_PART).unwrap_or(u32::MAX);
        Self {
            bytes: NonZeroU32::new(bytes).unwrap_or(NonZeroU32::MIN),
            period: found.map_or(MINUTE, |stream| stream.max_age),
        }
    }
}

/// What every caller has left.
#[derive(Debug)]
pub(crate) struct Allowances {
    pub(super) of_stream: Share,
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
            of_stream: Share::new(),
            of_user,
            of_source,
            callers: Default::default(),
        }
    }

    /// Takes what the events of a request need, all or nothing.
    ///
    /// # Errors
    /// If there is not so much.
    pub(super) fn take(
        &self,
        sender: Sender<'_>,
        need: Need,
        now: Instant,
    ) -> Result<(), Exceeded> {
        let (callers, name, limits, share) = match sender {
            Sender::User(name) => (&self.callers[0], name, self.of_user, Some(self.of_stream)),
            Sender::Source(name) => (&self.callers[1], name, self.of_source, None),
        };
        let mut callers = callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, allowance| !allowance.is_full(now));
        let allowance = callers
            .entry(name.to_owned())
            .or_insert_with(|| Allowance::new(limits, share));
        allowance.take(need, now)
    }

    /// Gives back what a request took whose events are not on the bus.
    pub(super) fn give_back(&self, sender: Sender<'_>, need: Need) {
        let (callers, name) = match sender {
            Sender::User(name) => (&self.callers[0], name),
            Sender::Source(name) => (&self.callers[1], name),
        };
        let mut callers = callers.lock().unwrap_or_else(PoisonError::into_inner);
        // Who is not there lacks nothing.
        if let Some(allowance) = callers.get_mut(name) {
            allowance.give_back(need);
        }
    }
}

impl Allowance {
    fn new(limits: AllowanceLimits, share: Option<Share>) -> Self {
        Self {
            events: LeakyBucket::new(limits.events, MINUTE),
            bytes: LeakyBucket::new(limits.bytes, MINUTE),
            share: share.map(|share| LeakyBucket::new(share.bytes, share.period)),
        }
    }

    fn take(&mut self, need: Need, now: Instant) -> Result<(), Exceeded> {
        let Need { events, bytes } = need;
        let share = self.share.as_ref();
        let share = share.map_or(Duration::ZERO, |share| share.wait_for(bytes, now));
        let rate = self
            .events
            .wait_for(events, now)
            .max(self.bytes.wait_for(bytes, now));
        // The one for which the caller waits longer.
        if !share.is_zero() && share >= rate {
            return Err(Exceeded::Share(share));
        }
        if !rate.is_zero() {
            return Err(Exceeded::Rate(rate));
        }
        self.events.take(events, now);
        self.bytes.take(bytes, now);
        if let Some(share) = &mut self.share {
            share.take(bytes, now);
        }
        Ok(())
    }

    fn give_back(&mut self, need: Need) {
        self.events.put_back(need.events);
        self.bytes.put_back(need.bytes);
        if let Some(share) = &mut self.share {
            share.put_back(need.bytes);
        }
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
        let take =
            |sender, events, bytes, now| allowances.take(sender, Need { events, bytes }, now);
        let rate = |seconds| Err(Exceeded::Rate(Duration::from_secs(seconds)));
        let alice = Sender::User("alice");
        assert_eq!(take(alice, 1, 900, now), Ok(()));
        // What is refused uses nothing.
        assert_eq!(take(alice, 1, 600, now), rate(30));
        assert_eq!(take(alice, 1, 100, now), Ok(()));
        assert_eq!(take(alice, 1, 0, now), Ok(()));
        assert_eq!(take(alice, 1, 0, now), rate(20));
        assert_eq!(take(Sender::User("bob"), 3, 1_000, now), Ok(()));
        // Not the user of that name.
        assert_eq!(take(Sender::Source("alice"), 60, 0, now), Ok(()));
        assert_eq!(take(alice, 3, 1_000, now + MINUTE), Ok(()));
        assert_eq!(take(alice, 3, 1_000, now + MINUTE), rate(60));
        // It was not published.
        let need = Need {
            events: 3,
            bytes: 1_000,
        };
        allowances.give_back(alice, need);
        assert_eq!(take(alice, 3, 1_000, now + MINUTE), Ok(()));
    }

    #[test]
    fn a_share_is_a_sixteenth_of_the_stream_and_said_as_such() {
        let allowances = Allowances::new(limits(1_000, 1 << 30), limits(1_000, 1 << 30));
        let share = allowances.of_stream;
        assert_eq!(share.bytes.get(), 64 << 20);
        assert_eq!(share.period, Duration::from_secs(14 * 86_400));
        let now = Instant::now();
        let need = Need {
            events: 1,
            bytes: share.bytes.get(),
        };
        let alice = Sender::User("alice");
        assert_eq!(allowances.take(alice, need, now), Ok(()));
        let exceeded = allowances.take(alice, need, now);
        assert!(matches!(exceeded, Err(Exceeded::Share(_))), "{exceeded:?}");
        allowances.give_back(alice, need);
        assert_eq!(allowances.take(alice, need, now), Ok(()));
    }

    #[test]
    fn a_user_cannot_fill_the_stream_slowly_and_a_source_can_use_it() {
        let allowances = Allowances::new(limits(60, 1 << 20), limits(60, 1 << 20));
        let begin = Instant::now();
        let sent = |sender: Sender<'_>| {
            let minutes = 0..14 * 24 * 60_u32;
            let accepted = minutes.filter(|n| {
                let now = begin + MINUTE * *n;
                let need = Need {
                    events: 16,
                    bytes: 1 << 20,
                };
                allowances.take(sender, need, now).is_ok()
            });
            accepted.count()
        };
        // MiB
        assert!((64..=128).contains(&sent(Sender::User("alice"))));
        assert_eq!(sent(Sender::Source("ci")), 14 * 24 * 60);
    }
}
