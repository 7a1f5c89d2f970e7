//! Reads a stream in order without acknowledgements, for a reader that stores its position itself.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{
    AckPolicy, DeliverPolicy, IntoConsumerConfig as _, PullConsumer, pull,
};
use async_nats::jetstream::stream::ConsumerCreateStrictErrorKind;
use chrono::{DateTime, Utc};
use futures_util::{Stream, StreamExt as _, future, stream};
use mesh_events::catalogue::{DISPATCHER_CONSUMERS, dispatcher_consumers};

use crate::consume::messages;
use crate::direct::Next;
use crate::metrics::{self, ConsumerMetrics};
use crate::repair::plan::filters;
use crate::repair::{CHECK_INTERVAL, is_absent};
use crate::{BoxError, Bus, Error, Message};

/// Messages per batch.
const BATCH_SIZE: usize = 256;
/// Gaps checked concurrently.
const MAX_CONCURRENT_READS: usize = 32;
/// The server removes the consumer after this time without a reader.
const INACTIVE_THRESHOLD: Duration = Duration::from_secs(60);
/// Interval of reads of a replica that lacks the newest messages.
const REPLICA_LAG: Duration = Duration::from_millis(20);

/// Metadata key of a random number of the reader.
const READER: &str = "mesh-reader";

/// Deletes a consumer, so that its name is free at once.
struct DeleteOnDrop {
    bus: Bus,
    stream: String,
    name: String,
    reader: Option<String>,
}

impl Drop for DeleteOnDrop {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (bus, stream, name) = (self.bus.clone(), self.stream.clone(), self.name.clone());
        let reader = self.reader.take();
        runtime.spawn(async move {
            let found: Result<PullConsumer, _> =
                bus.jetstream.get_consumer_from_stream(&name, &stream).await;
            // Another reader may have taken the name since.
            let is_own = found.is_ok_and(|found| {
                found.cached_info().config.metadata.get(READER) == reader.as_ref()
            });
            if is_own {
                // Otherwise the server deletes it later.
                drop(bus.delete_consumer(&stream, &name).await);
            }
        });
    }
}

/// Checks that a reader gets every message that the stream has.
struct Complete {
    bus: Bus,
    stream: String,
    /// Sequence of the last message.
    previous: Option<u64>,
    has_ended: bool,
}

impl Complete {
    /// The messages of a batch before the first one that follows another which is in the stream and was not sent, as by a changed filter: a
    /// new consumer gets it. Gaps of messages that were removed from the stream stay.
    async fn retain(&mut self, mut batch: Vec<Message>) -> Vec<Message> {
        let mut gaps = Vec::new();
        for (index, message) in batch.iter().enumerate() {
            let sequence = message.stream_sequence;
            let next = self.previous.map_or(sequence, |previous| previous + 1);
            if next != sequence {
                gaps.push((index, next, sequence));
            }
            self.previous = Some(sequence);
        }
        let mut explained = stream::iter(gaps)
            .map(|(index, next, sequence)| {
                let (bus, stream) = (&self.bus, &self.stream);
                async move { (index, bus.is_removed(stream, next, sequence).await) }
            })
            .buffered(MAX_CONCURRENT_READS);
        let mut end = None;
        while let Some((index, is_removed)) = explained.next().await {
            if !is_removed {
                end = Some(index);
                break;
            }
        }
        drop(explained);
        if let Some(end) = end {
            batch.truncate(end);
            self.has_ended = true;
        }
        batch
    }
}

impl Bus {
    /// True if the stream has no message from `next` to before `sequence`, according to its leader. False if that does not answer.
    async fn is_removed(&self, stream: &str, next: u64, sequence: u64) -> bool {
        match self.next_stored(stream, ">", next).await {
            Ok(found) => next <= sequence && found.is_none_or(|found| found.sequence >= sequence),
            Err(error) => {
                tracing::debug!(
                    stream,
                    next,
                    error = error.to_string(),
                    "gap of a stream not checked"
                );
                false
            }
        }
    }

    /// Streams the messages of a stream from a sequence on, in order and with none left out that the stream has, in batches of those that are
    /// there. Ends when the server is gone or a message was lost on the way: the caller begins again after the last message it got.
    ///
    /// # Errors
    /// If the stream does not exist or NATS does not answer.
    pub async fn messages_from(
        &self,
        stream: &str,
        first: u64,
    ) -> Result<impl Stream<Item = Vec<Message>> + use<>, Error> {
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: first.max(1),
            },
            ..self.ephemeral()
        };
        let messages = self.open_ephemeral(stream, config).await?;
        let consumer = ConsumerMetrics::of(stream, self.role());
        let mut expected = 1;
        // A message that is lost on the way leaves a gap in the consumer's sequence: the server never sends it again.
        let received = messages.take_while(move |message| {
            let follows = message.consumer_sequence == expected;
            expected += 1;
            future::ready(follows)
        });
        let complete = Complete {
            bus: self.clone(),
            stream: stream.to_owned(),
            previous: None,
            has_ended: false,
        };
        let batches = stream::unfold(
            (Box::pin(received.ready_chunks(BATCH_SIZE)), complete),
            async |(mut batches, mut complete)| {
                let batch = match complete.has_ended {
                    true => return None,
                    false => batches.next().await?,
                };
                let batch = complete.retain(batch).await;
                (!batch.is_empty()).then_some((batch, (batches, complete)))
            },
        );
        Ok(batches.inspect(move |batch| {
            for message in batch {
                metrics::consumed(&message.stream, "done");
            }
            if let Some(last) = batch.last() {
                consumer.pending(last.pending);
            }
        }))
    }

    /// A consumer that leaves no trace.
    pub(crate) fn ephemeral(&self) -> pull::Config {
        pull::Config {
            ack_policy: AckPolicy::None,
            inactive_threshold: INACTIVE_THRESHOLD,
            memory_storage: true,
            num_replicas: 1,
            // Different for each: the server would share one between two readers with the same configuration.
            metadata: HashMap::from([(
                READER.to_owned(),
                format!("{:016x}", rand::random::<u64>()),
            )]),
            ..Default::default()
        }
    }

    /// Reads by such a consumer, with the first free one of the names that the dispatcher may use.
    pub(crate) async fn open_ephemeral(
        &self,
        stream: &str,
        config: pull::Config,
    ) -> Result<impl Stream<Item = Message> + use<>, Error> {
        let failed = |source: BoxError| Error::jetstream("read stream", stream)(source);
        let reader = config.metadata.get(READER).cloned();
        for name in dispatcher_consumers() {
            let config = pull::Config {
                name: Some(name.clone()),
                ..config.clone()
            };
            let changed = Box::pin(self.clone().changed(stream.to_owned(), config.clone()));
            let created = self
                .jetstream
                .create_consumer_strict_on_stream(config, stream);
            let consumer = match Box::pin(created).await {
                Ok(consumer) => consumer,
                Err(error) if error.kind() == ConsumerCreateStrictErrorKind::AlreadyExists => {
                    continue;
                }
                Err(error) => return Err(failed(error.into())),
            };
            let end = DeleteOnDrop {
                bus: self.clone(),
                stream: stream.to_owned(),
                name,
                reader,
            };
            let messages = messages(consumer, BATCH_SIZE, self.declaring.clone()).await?;
            let messages = messages.take_until(changed);
            return Ok(messages.inspect(move |_| {
                let _held = &end;
            }));
        }
        Err(failed(
            format!("all {DISPATCHER_CONSUMERS} consumers of dispatchers are in use").into(),
        ))
    }

    /// Compares a consumer every minute with what was asked for. Returns once it is gone, as after a restart of the server or without a
    /// reader for a minute, or another one, which nobody but another client with the same rights can have done.
    async fn changed(self, stream: String, asked: pull::Config) {
        let name = asked.name.clone().unwrap_or_default();
        let asked = asked.into_consumer_config();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let found: Result<PullConsumer, _> = self
                .jetstream
                .get_consumer_from_stream(&name, &stream)
                .await;
            let is_same = match &found {
                Ok(found) => {
                    let config = &found.cached_info().config;
                    filters(config) == filters(&asked)
                        && config.metadata.get(READER) == asked.metadata.get(READER)
                        && config.headers_only == asked.headers_only
                }
                // The reader opens another one.
                Err(error) if is_absent(&error.kind()) => return,
                // No answer.
                Err(_) => true,
            };
            if !is_same {
                metrics::repaired(&stream);
                tracing::error!(
                    stream,
                    consumer = name,
                    "consumer replaced: it was changed by another client"
                );
                self.status
                    .repaired(format!("consumer {name} of {stream}: it was changed"));
                return;
            }
        }
    }

    /// Messages that a stream has on these subjects from `first` on, in order: up to `max` of each subject, and none left out before the
    /// last one of the page. Empty only if there is none up to `last`.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn stored_page(
        &self,
        stream: &str,
        subjects: &[String],
        first: u64,
        last: u64,
        max: u32,
    ) -> Result<Vec<Message>, Error> {
        let first = first.max(1);
        loop {
            let page = self.replica_page(stream, subjects, first, max).await?;
            // A replica that answered may lack the newest messages. The leader lacks none.
            if !page.is_empty() || !self.has_messages(stream, subjects, first, last).await? {
                return Ok(page);
            }
            tokio::time::sleep(REPLICA_LAG).await;
        }
    }

    async fn replica_page(
        &self,
        stream: &str,
        subjects: &[String],
        first: u64,
        max: u32,
    ) -> Result<Vec<Message>, Error> {
        let mut page: Vec<Message> = Vec::new();
        let mut read_to = Vec::with_capacity(subjects.len());
        for subject in subjects {
            let next = Next::Sequence(first);
            let mut reader = self.direct_reader(stream, subject.clone(), next, max);
            reader.fetch().await?;
            let last = reader.read.back().map(|last| last.stream_sequence);
            read_to.push(last.unwrap_or(first - 1));
            page.extend(reader.read);
        }
        page.sort_by_key(|message| message.stream_sequence);
        page.dedup_by_key(|message| message.stream_sequence);
        // Another replica may have answered each request, and one that is behind lacks messages which precede those of another subject.
        // The leader lacks none.
        for (subject, read_to) in subjects.iter().zip(read_to) {
            if page
                .last()
                .is_none_or(|last| last.stream_sequence <= read_to)
            {
                continue;
            }
            if let Some(next) = self.next_stored(stream, subject, read_to + 1).await? {
                page.retain(|message| message.stream_sequence < next.sequence);
            }
        }
        Ok(page)
    }

    /// True if the stream's leader has a message of one of these subjects from `first` to `last`.
    async fn has_messages(
        &self,
        stream: &str,
        subjects: &[String],
        first: u64,
        last: u64,
    ) -> Result<bool, Error> {
        for subject in subjects {
            let next = self.next_stored(stream, subject, first).await?;
            if next.is_some_and(|next| next.sequence <= last) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The sequence before the first message that the stream stored at or after this time; its last one if there is none.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn sequence_before(&self, stream: &str, time: DateTime<Utc>) -> Result<u64, Error> {
        loop {
            // The leader answers: if it has nothing that recent, nobody has.
            let state = self.stream_state(stream).await?;
            if state.last_stored < time {
                return Ok(state.last_sequence);
            }
            let mut reader = self.direct_reader(stream, ">".to_owned(), Next::Since(time), 1);
            reader.fetch().await?;
            if let Some(first) = reader.read.front() {
                return Ok(first.stream_sequence - 1);
            }
            tokio::time::sleep(REPLICA_LAG).await;
        }
    }
}
