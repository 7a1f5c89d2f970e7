//! Publishing: complete when JetStream has stored the message.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures_util::{TryStreamExt as _, stream};
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};
use mesh_events::cloudevents::{Attributes, HEADER_REPLAY};
use mesh_events::{Event, subject};
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::{Backoff, Bus, Error, metrics, trace};

/// Limit of entities that [`Bus::publish_all`] publishes at the same time.
const MAX_IN_FLIGHT_PUBLISHES: usize = 256;

/// How far the clock of the process that observed an event may have been ahead of the server's.
const MAX_OBSERVER_CLOCK_LEAD: TimeDelta = TimeDelta::days(1);

/// JetStream's receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishAck {
    /// Sequence in the stream.
    pub sequence: u64,
    /// True if the stream had this id already.
    pub duplicate: bool,
}

/// A recorded event to be replayed.
#[derive(Clone, Debug)]
pub struct ReplayedEvent {
    /// Subject it was recorded from.
    pub original: String,
    /// The event.
    pub event: Event,
    /// Its bytes as recorded.
    pub body: Bytes,
}

impl Bus {
    /// Publishes an event and waits until JetStream has stored it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it can never be published, else [`Error::Publish`]: retry with the same event.
    pub async fn publish(&self, event: &Event) -> Result<PublishAck, Error> {
        self.publish_as(event, &event.id).await
    }

    /// Publishes an event that the stream has lost. The message id is new to JetStream, so that deduplication does not drop it. Consumers
    /// recognise the event by its own id.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn republish(&self, event: &Event, because: &str) -> Result<PublishAck, Error> {
        self.publish_as(event, &format!("{}/{because}", event.id))
            .await
    }

    async fn publish_as(&self, event: &Event, message_id: &str) -> Result<PublishAck, Error> {
        let invalid = |source: mesh_events::UnknownEventType| Error::Invalid {
            id: event.id.clone(),
            reason: source.to_string(),
        };
        let subject = subject::of(event).map_err(invalid)?;
        let mut headers = HeaderMap::new();
        for (name, value) in Attributes::of(event).map_err(invalid)?.headers() {
            headers.insert(name, value);
        }
        self.send(subject, message_id, headers, event.encode_to_vec().into())
            .await
    }

    /// Publishes recorded events, byte for byte, on the subjects of a replay, in this order, and each once per replay. Returns when
    /// JetStream has stored all of them.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one can never be published, else [`Error::Publish`]: retry with the same events.
    pub async fn publish_replayed(
        &self,
        replay: &str,
        endpoint: Option<&str>,
        events: Vec<ReplayedEvent>,
    ) -> Result<(), Error> {
        let mut sent = Vec::with_capacity(events.len());
        for ReplayedEvent {
            original,
            event,
            body,
        } in events
        {
            let attributes = Attributes::of(&event).map_err(|source| Error::Invalid {
                id: event.id.clone(),
                reason: source.to_string(),
            })?;
            let mut headers = HeaderMap::new();
            for (name, value) in attributes.headers() {
                headers.insert(name, value);
            }
            headers.insert(HEADER_REPLAY, replay);
            let subject = subject::replay(replay, endpoint, &original);
            let id = format!("{replay}:{}", event.id);
            // Sent one after the other, then acknowledged together.
            let acknowledged = self.begin(subject.clone(), &id, headers, body).await;
            sent.push((subject, id, acknowledged));
        }
        for (subject, id, acknowledged) in sent {
            self.stored(subject, &id, acknowledged).await?;
        }
        Ok(())
    }

    /// Deletes the messages of a replay.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn purge_replay(&self, replay: &str) -> Result<(), Error> {
        let failed = || Error::jetstream("purge replay", replay);
        let stream = self.jetstream.get_stream_no_info(MESH_REPLAY).await;
        let stream = stream.map_err(|source| failed()(source.into()))?;
        let purge = stream.purge().filter(subject::replay(replay, None, ">"));
        let purged = purge.await.map(drop);
        purged.map_err(|source| failed()(source.into()))
    }

    /// Publishes a message that is no event (audit entry, dead letter) and waits until JetStream has stored it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it can never be published, else [`Error::Publish`].
    pub async fn publish_raw(
        &self,
        subject: String,
        id: &str,
        body: Vec<u8>,
    ) -> Result<PublishAck, Error> {
        self.send(subject, id, HeaderMap::new(), body.into()).await
    }

    async fn send(
        &self,
        subject: String,
        id: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<PublishAck, Error> {
        let waiting = self.status.publishing(&subject);
        let acknowledged = self.begin(subject.clone(), id, headers, body).await;
        let stored = self.stored(subject, id, acknowledged).await;
        waiting.answered();
        stored
    }

    /// Sends a message; [`Self::stored`] awaits the acknowledgement.
    pub(crate) async fn begin(
        &self,
        subject: String,
        id: &str,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<PublishAckFuture, PublishError> {
        headers.insert(async_nats::header::NATS_MESSAGE_ID, id);
        trace::inject(&mut headers);
        self.jetstream
            .publish_with_headers(subject, headers, body)
            .await
    }

    pub(crate) async fn stored(
        &self,
        subject: String,
        id: &str,
        acknowledged: Result<PublishAckFuture, PublishError>,
    ) -> Result<PublishAck, Error> {
        let acknowledged = async { acknowledged?.await };
        match acknowledged.await {
            Ok(ack) => {
                self.status.stored(&subject);
                metrics::published(if ack.duplicate { "duplicate" } else { "stored" }, 1);
                Ok(PublishAck {
                    sequence: ack.sequence,
                    duplicate: ack.duplicate,
                })
            }
            Err(source) => {
                metrics::published("failed", 1);
                if source.kind() == PublishErrorKind::MaxPayloadExceeded {
                    return Err(Error::Invalid {
                        id: id.to_owned(),
                        reason: source.to_string(),
                    });
                }
                self.status.failed(&subject, &source);
                Err(Error::Publish { subject, source })
            }
        }
    }

    /// Publishes an event; retries while NATS is unavailable or the stream is full.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when `shutdown` is cancelled, [`Error::Invalid`] if it can never be published.
    pub async fn publish_until_done(
        &self,
        event: &Event,
        shutdown: &CancellationToken,
    ) -> Result<PublishAck, Error> {
        // Full jitter spreads many publishers that wait for the same server.
        let mut backoff =
            Backoff::doubling(Duration::from_millis(100), Duration::from_secs(5)).with_jitter(1.0);
        let mut warned = false;
        loop {
            let published = tokio::select! {
                () = shutdown.cancelled() => return Err(Error::Cancelled),
                published = self.publish(event) => published,
            };
            match published {
                Err(error @ Error::Publish { .. }) => {
                    if !warned {
                        warned = true;
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            event.id = event.id,
                            "event not stored, retrying"
                        );
                    }
                }
                done => return done,
            }
            if !backoff.wait(shutdown).await {
                return Err(Error::Cancelled);
            }
        }
    }

    /// Publishes the events of an outbox that SLURM_EVENTS lacks: a process that was killed may have published them. The server recognizes a
    /// repetition only for the stream's deduplication window. If the stream cannot be read, all are published.
    ///
    /// # Errors
    /// As [`Bus::publish_all`].
    pub async fn publish_outbox(
        &self,
        mut events: Vec<Event>,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        let looked = shutdown.run_until_cancelled(self.stored_ids(&events));
        match looked.await.ok_or(Error::Cancelled)? {
            Ok(stored) => events.retain(|event| !stored.contains(&event.id)),
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "events not looked for on the bus; those of the last process may be published twice"
            ),
        }
        self.publish_all(events, shutdown).await.map(drop)
    }

    /// Ids of those of these events that SLURM_EVENTS has.
    async fn stored_ids(&self, events: &[Event]) -> Result<HashSet<String>, Error> {
        let times = events.iter().filter_map(|event| event.observed_at.as_ref());
        let oldest = times.map(|at| at.seconds).min().unwrap_or_default();
        let since =
            DateTime::from_timestamp(oldest, 0).unwrap_or_default() - MAX_OBSERVER_CLOCK_LEAD;
        let mut wanted: BTreeMap<String, HashSet<&str>> = BTreeMap::new();
        for event in events {
            if let Ok(subject) = subject::of(event) {
                wanted.entry(subject).or_default().insert(&event.id);
            }
        }
        let mut stored_ids = HashSet::new();
        for (subject, mut wanted) in wanted {
            let mut stored =
                self.stored_messages_since(SLURM_EVENTS, subject, since.min(Utc::now()));
            while !wanted.is_empty() {
                let messages = stored.next().await?;
                if messages.is_empty() {
                    break;
                }
                for message in messages {
                    let Ok(event) = Event::from_bytes(&message.body) else {
                        continue;
                    };
                    if wanted.remove(event.id.as_str()) {
                        stored_ids.insert(event.id);
                    }
                }
            }
        }
        Ok(stored_ids)
    }

    /// Publishes many events until all are stored. Events of one entity keep their order, with one unacknowledged at a time; different
    /// entities go in parallel. Returns the highest stream sequence of these events; 0 without any.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when `shutdown` is cancelled, [`Error::Invalid`] for an event that can never be published.
    pub async fn publish_all(
        &self,
        events: Vec<Event>,
        shutdown: &CancellationToken,
    ) -> Result<u64, Error> {
        let span = Span::current();
        self.publish_all_traced(
            events
                .into_iter()
                .map(|event| (event, span.clone()))
                .collect(),
            shutdown,
        )
        .await
    }

    /// Publishes events, each within its span; see [`Bus::publish_all`].
    ///
    /// # Errors
    /// As [`Bus::publish_all`].
    pub async fn publish_all_traced(
        &self,
        events: Vec<(Event, Span)>,
        shutdown: &CancellationToken,
    ) -> Result<u64, Error> {
        let mut by_entity: HashMap<(String, String), Vec<(Event, Span)>> = HashMap::new();
        for (event, span) in events {
            let key = (event.cluster.clone(), event.entity_key().to_owned());
            by_entity.entry(key).or_default().push((event, span));
        }
        let last = AtomicU64::new(0);
        stream::iter(by_entity.into_values().map(Ok))
            .try_for_each_concurrent(MAX_IN_FLIGHT_PUBLISHES, async |events| {
                for (event, span) in &events {
                    let acknowledged = self
                        .publish_until_done(event, shutdown)
                        .instrument(span.clone())
                        .await?;
                    last.fetch_max(acknowledged.sequence, Ordering::Relaxed);
                }
                Ok(())
            })
            .await?;
        Ok(last.into_inner())
    }
}
