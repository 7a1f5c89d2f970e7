//! Reads a stream in order without a consumer, by batches of direct gets (ADR-31 of NATS).
//!
//! The right to create a consumer includes taking the name of an existing one, and a push consumer publishes to any subject its creator
//! names. Permissions by subject can forbid neither. A role that only reads needs no consumer.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::message::StreamMessage;
use chrono::{DateTime, Utc};
use futures_util::stream;
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;

use crate::follow::StartPosition;
use crate::{Bus, Error, Message};

/// Messages per request of a reader of a whole subject.
const BATCH_SIZE: u32 = 256;
/// A request without an answer in this time is retried.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of polls without any sign of a new message.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Subscribers receive a message before the stream has stored it.
const STORE_DELAY: Duration = Duration::from_millis(20);
/// Number of reads after a wake-up: a message that the stream refused never appears.
const READS_AFTER_WAKE_UP: u32 = 10;

/// Body of a batched direct get, as the server reads it.
#[derive(Debug, Serialize)]
struct BatchRequest<'a> {
    batch: u32,
    next_by_subj: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
}

/// Where the next read begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    Sequence(u64),
    Since(DateTime<Utc>),
}

pub(crate) struct DirectReader {
    bus: Bus,
    stream: String,
    filter: String,
    batch_size: u32,
    next: Next,
    /// Creation time of the stream being read.
    created: Option<time::OffsetDateTime>,
    pub(crate) read: VecDeque<Message>,
    /// `None` for a reader that never waits.
    wake_ups: Option<Subscriber>,
    reads_left: u32,
}

/// The messages that a stream has now on a subject.
pub struct StoredMessages(DirectReader);

impl StoredMessages {
    /// The next messages, in order; empty after the last.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn next(&mut self) -> Result<Vec<Message>, Error> {
        self.0.fetch().await?;
        let messages = Vec::from(std::mem::take(&mut self.0.read));
        if let Some(last) = messages.last() {
            self.0.next = Next::Sequence(last.stream_sequence + 1);
        }
        Ok(messages)
    }
}

impl Bus {
    /// Reads every message that a stream has now on a subject, without a consumer.
    pub fn stored_messages(&self, stream: &str, subject: String) -> StoredMessages {
        self.stored_messages_from(stream, subject, 1)
    }

    /// Like [`Self::stored_messages`], from a sequence on.
    pub fn stored_messages_from(
        &self,
        stream: &str,
        subject: String,
        sequence: u64,
    ) -> StoredMessages {
        let next = Next::Sequence(sequence.max(1));
        StoredMessages(self.direct_reader(stream, subject, next, BATCH_SIZE))
    }

    /// Like [`Self::stored_messages`], without the messages until a stream sequence.
    pub fn stored_messages_after(
        &self,
        stream: &str,
        subject: String,
        sequence: u64,
    ) -> StoredMessages {
        StoredMessages(self.direct_reader(
            stream,
            subject,
            Next::Sequence(sequence + 1),
            BATCH_SIZE,
        ))
    }

    /// Like [`Self::stored_messages`], without what the server stored before a time.
    pub fn stored_messages_since(
        &self,
        stream: &str,
        subject: String,
        since: DateTime<Utc>,
    ) -> StoredMessages {
        StoredMessages(self.direct_reader(stream, subject, Next::Since(since), BATCH_SIZE))
    }

    pub(crate) fn direct_reader(
        &self,
        stream: &str,
        filter: String,
        next: Next,
        batch_size: u32,
    ) -> DirectReader {
        DirectReader {
            bus: self.clone(),
            stream: stream.to_owned(),
            filter,
            batch_size,
            next,
            created: None,
            read: VecDeque::new(),
            wake_ups: None,
            reads_left: 0,
        }
    }

    /// Streams every message of a stream on a subject, in order and without end. Survives disconnects; a recreated stream is
    /// read from its beginning.
    ///
    /// One subject only: each request may be answered by another replica. One that is behind says that nothing is pending, and a message of
    /// another subject that a second replica has already would then hide an earlier one of the first subject.
    pub(crate) async fn read_stream(
        &self,
        stream: &str,
        filter: String,
        start: StartPosition,
    ) -> Result<impl Stream<Item = Result<Message, Error>> + use<>, Error> {
        let next = match start {
            StartPosition::Sequence(sequence) => Next::Sequence(sequence.max(1)),
            StartPosition::Since(time) => Next::Since(time),
            StartPosition::New => Next::Sequence(1),
        };
        let mut reader = self.direct_reader(stream, filter, next, BATCH_SIZE);
        let last = reader.read_last_sequence().await?;
        if matches!(start, StartPosition::New) {
            reader.next = Next::Sequence(last + 1);
        }
        reader.subscribe().await?;
        Ok(stream::unfold(reader, |mut reader| async move {
            let message = reader.message().await;
            Some((Ok(message), reader))
        }))
    }
}

impl DirectReader {
    fn failed(&self) -> impl FnOnce(crate::BoxError) -> Error + use<> {
        Error::jetstream("read stream", &self.stream)
    }

    /// Reads the stream's last sequence. A recreated stream counts from 1 again.
    async fn read_last_sequence(&mut self) -> Result<u64, Error> {
        let stream = self.bus.jetstream.get_stream(&self.stream).await;
        let stream = stream.map_err(|source| self.failed()(source.into()))?;
        let info = stream.cached_info();
        if self
            .created
            .replace(info.created)
            .is_some_and(|before| before != info.created)
        {
            self.next = Next::Sequence(1);
        }
        Ok(info.state.last_sequence)
    }

    /// Subscribes to the subject. A message there is only a sign that there is more to read.
    async fn subscribe(&mut self) -> Result<(), Error> {
        let subscribed = self.bus.client.subscribe(self.filter.clone()).await;
        self.wake_ups = Some(subscribed.map_err(|source| self.failed()(source.into()))?);
        Ok(())
    }

    async fn message(&mut self) -> Message {
        loop {
            if let Some(message) = self.read.pop_front() {
                self.next = Next::Sequence(message.stream_sequence + 1);
                return message;
            }
            match self.fetch().await {
                Ok(()) if !self.read.is_empty() => self.reads_left = 0,
                Ok(()) => self.wait().await,
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        stream = self.stream,
                        "stream not read, retrying"
                    );
                    tokio::time::sleep(STORE_DELAY * 10).await;
                }
            }
        }
    }

    async fn wait(&mut self) {
        if self.reads_left > 0 {
            self.reads_left -= 1;
            return tokio::time::sleep(STORE_DELAY).await;
        }
        let wake_up = async {
            match &mut self.wake_ups {
                Some(wake_ups) => wake_ups.next().await,
                None => None,
            }
        };
        let heard = tokio::time::timeout(IDLE_POLL_INTERVAL, wake_up).await;
        match heard {
            Ok(Some(_)) => self.reads_left = READS_AFTER_WAKE_UP,
            Ok(None) => tokio::time::sleep(IDLE_POLL_INTERVAL).await,
            Err(_) => {
                if let Err(error) = self.read_last_sequence().await {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        stream = self.stream,
                        "stream state not read, retrying"
                    );
                }
            }
        }
    }

    /// Fetches the next messages that exist now.
    pub(crate) async fn fetch(&mut self) -> Result<(), Error> {
        let request = BatchRequest {
            batch: self.batch_size,
            next_by_subj: &self.filter,
            seq: match self.next {
                Next::Sequence(sequence) => Some(sequence),
                Next::Since(_) => None,
            },
            start_time: match self.next {
                Next::Sequence(_) => None,
                Next::Since(time) => Some(time.to_rfc3339()),
            },
        };
        let request =
            serde_json::to_vec(&request).map_err(|source| self.failed()(source.into()))?;
        let inbox = self.bus.client.new_inbox();
        let subscribed = self.bus.client.subscribe(inbox.clone()).await;
        let mut answers = subscribed.map_err(|source| self.failed()(source.into()))?;
        let subject = format!("$JS.API.DIRECT.GET.{}", self.stream);
        let client = &self.bus.client;
        let sent = client
            .publish_with_reply(subject, inbox, request.into())
            .await;
        sent.map_err(|source| self.failed()(source.into()))?;
        let mut messages = VecDeque::new();
        loop {
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, answers.next()).await;
            let Ok(Some(answer)) = answer else {
                return Err(self.failed()("no answer in time".into()));
            };
            match answer.status.map(|status| status.as_u16()) {
                None => messages.push_back(self.decode(answer)?),
                // End of the batch, or no messages at all.
                Some(204 | 404) => {
                    self.read = messages;
                    return Ok(());
                }
                Some(status) => {
                    let text = answer.description.unwrap_or_default();
                    return Err(self.failed()(format!("{status} {text}").into()));
                }
            }
        }
    }

    fn decode(&self, answer: async_nats::Message) -> Result<Message, Error> {
        let stored = StreamMessage::try_from(answer.clone());
        let stored = stored.map_err(|source| self.failed()(source.into()))?;
        Message::read(&self.stream, stored, answer, &self.bus.jetstream)
            .map_err(|source| self.failed()(source))
    }
}
