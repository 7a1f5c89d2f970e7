//! What a comparison sees of streams and consumers, and what was removed since the one before.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy};
use mesh_events::catalogue::MESH_REPLAY;
use time::OffsetDateTime;

use crate::repair::plan::filters;

/// The clocks of the servers may differ by this much.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// What the last comparison saw.
#[derive(Default)]
pub(crate) struct Removals(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    streams: HashMap<String, StreamSnapshot>,
    /// By stream and name.
    consumers: HashMap<(String, String), Backlog>,
}

/// A stream that keeps its messages for a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamSnapshot {
    created: OffsetDateTime,
    first_sequence: u64,
    first_stored: OffsetDateTime,
    pub(super) last_sequence: u64,
    pub(super) last_stored: OffsetDateTime,
}

/// What a consumer has not delivered, and how many deliveries it has made.
#[derive(Clone, Debug)]
pub(super) struct Backlog {
    created: OffsetDateTime,
    filters: Vec<String>,
    pending: u64,
    deliveries: u64,
}

impl Removals {
    /// Notes what a consumer has not delivered. Returns what the last comparison noted.
    pub(super) fn note_backlog(&self, stream: &str, name: &str, now: Backlog) -> Option<Backlog> {
        let key = (stream.to_owned(), name.to_owned());
        self.lock().consumers.insert(key, now)
    }

    pub(super) fn last_snapshot(&self, stream: &str) -> Option<StreamSnapshot> {
        self.lock().streams.get(stream).copied()
    }

    pub(super) fn note_snapshot(&self, stream: &str, now: StreamSnapshot) {
        self.lock().streams.insert(stream.to_owned(), now);
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamSnapshot {
    pub(super) fn new(info: &stream::Info) -> Self {
        Self {
            created: info.created,
            first_sequence: info.state.first_sequence,
            first_stored: info.state.first_timestamp,
            last_sequence: info.state.last_sequence,
            last_stored: info.state.last_timestamp,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.first_sequence > self.last_sequence
    }

    /// The snapshot of before, if it was of the stream that exists now.
    pub(super) fn earlier(&self, before: Option<Self>) -> Option<Self> {
        before.filter(|before| before.created == self.created)
    }

    /// Sequence after the last message that was removed too early since `before`, or ever.
    pub(super) fn removed_before(
        &self,
        before: Option<&Self>,
        is_young: impl Fn(OffsetDateTime) -> bool,
    ) -> Option<u64> {
        let is_removed = match before {
            None => self.is_empty() && self.last_sequence > 0 && is_young(self.last_stored),
            Some(before) => {
                let first = !before.is_empty() && is_young(before.first_stored);
                let last = self.first_sequence > before.last_sequence
                    && (before.is_empty() || is_young(before.last_stored));
                self.first_sequence > before.first_sequence && (first || last)
            }
        };
        is_removed.then_some(self.first_sequence)
    }
}

impl Backlog {
    pub(super) fn new(info: &Info) -> Self {
        let filters = filters(&info.config).into_iter();
        Self {
            created: info.created,
            filters: filters.map(str::to_owned).collect(),
            pending: info.num_pending,
            deliveries: info.delivered.consumer_sequence,
        }
    }

    /// At least so many messages were removed undelivered since `before`: each delivery takes one at most.
    pub(super) fn removed_since(&self, before: &Self) -> u64 {
        // With other filters, other messages are pending.
        if self.created != before.created || self.filters != before.filters {
            return 0;
        }
        let deliveries = self.deliveries.saturating_sub(before.deliveries);
        let fewer = before.pending.saturating_sub(self.pending);
        fewer.saturating_sub(deliveries)
    }
}

/// Whether the messages of a stream stay until they are old. Its server may be the site's own, with other limits than ours.
pub(super) fn keeps_its_messages(config: &stream::Config) -> bool {
    config.retention == RetentionPolicy::Limits
        && config.discard == DiscardPolicy::New
        && config.name != MESH_REPLAY
}

/// Whether a message of this time is not old enough for a stream to remove it.
pub(super) fn is_young(stored: OffsetDateTime, config: &stream::Config) -> bool {
    let until = time::Duration::try_from(config.max_age)
        .ok()
        .and_then(|age| stored.checked_add(age));
    config.max_age.is_zero()
        || until.is_none_or(|until| until > OffsetDateTime::now_utc() + CLOCK_TOLERANCE)
}

/// Whether a consumer of the whole stream, which has nothing left, never got the last message. Of one with filters that is unknown.
pub(super) fn lacks_the_last(info: &Info, stream: &StreamSnapshot) -> bool {
    if !filters(&info.config).is_empty() {
        return false;
    }
    let last_delivery = match info.delivered.last_active {
        Some(at) => at,
        // It delivered nothing yet.
        None if info.delivered.consumer_sequence == 0 => info.created,
        // The server was restarted since.
        None => return false,
    };
    info.num_pending == 0 && info.num_ack_pending == 0 && stream.last_stored > last_delivery
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_763_760_000 + seconds).unwrap()
    }

    /// A stream with messages of these sequences and times.
    fn snapshot(first: (u64, i64), last: (u64, i64)) -> StreamSnapshot {
        StreamSnapshot {
            created: at(0),
            first_sequence: first.0,
            first_stored: at(first.1),
            last_sequence: last.0,
            last_stored: at(last.1),
        }
    }

    #[test]
    fn what_expires_is_no_purge() {
        // Messages stored after second 100 are young.
        let removed = |before: Option<StreamSnapshot>, now: StreamSnapshot| {
            now.removed_before(now.earlier(before).as_ref(), |stored| stored > at(100))
        };
        let empty_before = snapshot((8, 0), (7, 50));
        let purged = snapshot((8, 0), (7, 150));
        for (name, before, now, expected) in [
            ("nothing", None, snapshot((1, 0), (0, 0)), None),
            ("all expired", None, empty_before, None),
            ("purged before", None, purged, Some(8)),
            ("still empty", Some(purged), purged, None),
            ("new ones", Some(purged), snapshot((8, 160), (9, 170)), None),
            (
                "first expired",
                Some(snapshot((1, 50), (7, 150))),
                snapshot((5, 120), (7, 150)),
                None,
            ),
            (
                "first purged",
                Some(snapshot((1, 120), (7, 150))),
                snapshot((5, 130), (7, 150)),
                Some(5),
            ),
            (
                "last purged",
                Some(snapshot((1, 50), (7, 150))),
                snapshot((9, 160), (9, 160)),
                Some(9),
            ),
            (
                "came and went",
                Some(empty_before),
                snapshot((9, 0), (8, 160)),
                Some(9),
            ),
        ] {
            assert_eq!(removed(before, now), expected, "{name}");
        }
        let other = StreamSnapshot {
            created: at(5),
            ..snapshot((1, 120), (7, 150))
        };
        assert_eq!(removed(Some(other), snapshot((5, 130), (7, 150))), None);
    }

    #[test]
    fn a_delivery_explains_one_message() {
        let backlog = |created, pending, deliveries| Backlog {
            created: at(created),
            filters: vec!["a".to_owned()],
            pending,
            deliveries,
        };
        let before = backlog(0, 10, 5);
        for (now, expected) in [
            (backlog(0, 10, 5), 0),
            (backlog(0, 4, 11), 0),
            (backlog(0, 12, 40), 0),
            (backlog(0, 0, 5), 10),
            (backlog(0, 0, 8), 7),
            (backlog(1, 0, 5), 0),
        ] {
            assert_eq!(now.removed_since(&before), expected, "{now:?}");
        }
        let narrower = Backlog {
            filters: vec!["a.b".to_owned()],
            ..backlog(0, 0, 5)
        };
        assert_eq!(narrower.removed_since(&before), 0);
    }
}
