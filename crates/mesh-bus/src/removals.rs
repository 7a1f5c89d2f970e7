//! Notices messages that were removed before their time, as a purge does. They cannot be restored, so the loss is logged and reported.
//!
//! NATS moves a consumer behind what was purged, as if it had read it. So each comparison needs what the one before it saw.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy};
use futures_util::TryStreamExt as _;
use mesh_events::catalogue::{MESH_REPLAY, STREAMS};
use time::OffsetDateTime;

use crate::repair::filters;
use crate::{BoxError, Bus, Error, metrics};

/// The clocks of the servers may differ by this much.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// What the last comparison saw.
#[derive(Default)]
pub(crate) struct Removals(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    streams: HashMap<String, StreamLook>,
    /// By stream and name.
    consumers: HashMap<(String, String), Backlog>,
}

/// A stream that keeps its messages for a time.
#[derive(Clone, Copy, Debug)]
struct StreamLook {
    created: OffsetDateTime,
    first_sequence: u64,
    first_stored: OffsetDateTime,
    last_sequence: u64,
    last_stored: OffsetDateTime,
}

/// What a consumer has not delivered, and how many deliveries it has made.
#[derive(Clone, Debug)]
struct Backlog {
    created: OffsetDateTime,
    filters: Vec<String>,
    pending: u64,
    deliveries: u64,
}

impl Removals {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamLook {
    fn new(info: &stream::Info) -> Self {
        Self {
            created: info.created,
            first_sequence: info.state.first_sequence,
            first_stored: info.state.first_timestamp,
            last_sequence: info.state.last_sequence,
            last_stored: info.state.last_timestamp,
        }
    }

    const fn is_empty(&self) -> bool {
        self.first_sequence > self.last_sequence
    }

    /// The look of before, if it was at the stream that exists now.
    fn earlier(&self, before: Option<Self>) -> Option<Self> {
        before.filter(|before| before.created == self.created)
    }

    /// Sequence after the last message that was removed too early since `before`, or ever.
    fn removed_before(
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
    fn new(info: &Info) -> Self {
        let filters = filters(&info.config).into_iter();
        Self {
            created: info.created,
            filters: filters.map(str::to_owned).collect(),
            pending: info.num_pending,
            deliveries: info.delivered.consumer_sequence,
        }
    }

    /// At least so many messages were removed undelivered since `before`: each delivery takes one at most.
    fn removed_since(&self, before: &Self) -> u64 {
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
fn keeps_its_messages(config: &stream::Config) -> bool {
    config.retention == RetentionPolicy::Limits
        && config.discard == DiscardPolicy::New
        && config.name != MESH_REPLAY
}

/// Whether a message of this time is not old enough for a stream to remove it.
fn is_young(stored: OffsetDateTime, config: &stream::Config) -> bool {
    let until = time::Duration::try_from(config.max_age)
        .ok()
        .and_then(|age| stored.checked_add(age));
    config.max_age.is_zero()
        || until.is_none_or(|until| until > OffsetDateTime::now_utc() + CLOCK_TOLERANCE)
}

/// Whether a consumer of the whole stream, which has nothing left, never got the last message. Of one with filters that is unknown.
fn lacks_the_last(info: &Info, stream: &StreamLook) -> bool {
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

impl Bus {
    /// Compares what a consumer has not delivered with the last comparison.
    pub(crate) async fn note_backlog(&self, stream: &str, name: &str, info: &Info) {
        let now = Backlog::new(info);
        let key = (stream.to_owned(), name.to_owned());
        let before = self.removals.lock().consumers.insert(key, now.clone());
        let removed = match &before {
            Some(before) => now.removed_since(before),
            None => 0,
        };
        if removed > 0 {
            self.report_removal(
                stream,
                format!("at least {removed} messages of {stream} that {name} had not read were removed (purged, or too old)"),
            );
        } else if before.is_none() && self.is_purged_unread(stream, info).await {
            self.report_removal(
                stream,
                format!("{stream} was purged: messages that {name} had not read are lost"),
            );
        }
    }

    /// Whether the stream was purged before the process began, as far as the server's own records show it.
    async fn is_purged_unread(&self, stream: &str, info: &Info) -> bool {
        let Ok(found) = self.jetstream.get_stream(stream).await else {
            return false;
        };
        let found = found.cached_info();
        let look = StreamLook::new(found);
        keeps_its_messages(&found.config)
            && look.is_empty()
            && look.last_sequence > 0
            && is_young(look.last_stored, &found.config)
            && lacks_the_last(info, &look)
    }

    /// Compares every stream with the last look at it, and the consumers of those whose messages are removed once they are handled. For
    /// connections that may provision.
    ///
    /// # Errors
    /// The first one if NATS does not answer for a stream. The others are compared all the same.
    pub async fn note_removals(&self) -> Result<(), Error> {
        let mut noted = Ok(());
        for stream in STREAMS {
            noted = noted.and(Box::pin(self.note_removals_in(stream.name)).await);
        }
        noted
    }

    async fn note_removals_in(&self, name: &str) -> Result<(), Error> {
        let found = self.jetstream.get_stream(name).await;
        let found = found.map_err(|source| failed(name, source.into()))?;
        let config = &found.cached_info().config;
        if config.retention == RetentionPolicy::WorkQueue {
            for info in consumers(&found).await? {
                self.note_backlog(name, &info.name, &info).await;
            }
            return Ok(());
        }
        if !keeps_its_messages(config) {
            return Ok(());
        }
        let now = StreamLook::new(found.cached_info());
        let seen = self.removals.lock().streams.get(name).copied();
        let before = now.earlier(seen);
        if let Some(sequence) =
            now.removed_before(before.as_ref(), |stored| is_young(stored, config))
        {
            let message = format!(
                "stream {name} was purged by another client: its messages before sequence {sequence} are lost"
            );
            // Every start finds an old purge again.
            let matters = before.is_some() || {
                let consumers = consumers(&found).await?;
                consumers.iter().any(|info| lacks_the_last(info, &now))
            };
            if matters {
                self.report_removal(name, message);
            } else {
                tracing::info!(
                    stream = name,
                    "{message}; no consumer is known to lack them"
                );
            }
        }
        self.removals.lock().streams.insert(name.to_owned(), now);
        Ok(())
    }

    fn report_removal(&self, stream: &str, message: String) {
        metrics::removed(stream);
        tracing::error!(stream, "{message}");
        self.status.record(message);
    }
}

async fn consumers(stream: &stream::Stream) -> Result<Vec<Info>, Error> {
    let found = stream.consumers().try_collect().await;
    found.map_err(|source: stream::ConsumersError| {
        failed(&stream.cached_info().config.name, source.into())
    })
}

fn failed(stream: &str, source: BoxError) -> Error {
    Error::jetstream("look for removed messages in", stream)(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_763_760_000 + seconds).unwrap()
    }

    /// A stream with messages of these sequences and times.
    fn look(first: (u64, i64), last: (u64, i64)) -> StreamLook {
        StreamLook {
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
        let removed = |before: Option<StreamLook>, now: StreamLook| {
            now.removed_before(now.earlier(before).as_ref(), |stored| stored > at(100))
        };
        let empty_before = look((8, 0), (7, 50));
        let purged = look((8, 0), (7, 150));
        for (name, before, now, expected) in [
            ("nothing", None, look((1, 0), (0, 0)), None),
            ("all expired", None, empty_before, None),
            ("purged before", None, purged, Some(8)),
            ("still empty", Some(purged), purged, None),
            ("new ones", Some(purged), look((8, 160), (9, 170)), None),
            (
                "first expired",
                Some(look((1, 50), (7, 150))),
                look((5, 120), (7, 150)),
                None,
            ),
            (
                "first purged",
                Some(look((1, 120), (7, 150))),
                look((5, 130), (7, 150)),
                Some(5),
            ),
            (
                "last purged",
                Some(look((1, 50), (7, 150))),
                look((9, 160), (9, 160)),
                Some(9),
            ),
            (
                "came and went",
                Some(empty_before),
                look((9, 0), (8, 160)),
                Some(9),
            ),
        ] {
            assert_eq!(removed(before, now), expected, "{name}");
        }
        let other = StreamLook {
            created: at(5),
            ..look((1, 120), (7, 150))
        };
        assert_eq!(removed(Some(other), look((5, 130), (7, 150))), None);
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
