//! Reads a stream's state and stored messages, for services that must detect gaps.

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{RawMessageError, RawMessageErrorKind, Stream};
use bytes::Bytes;
use chrono::{DateTime, Utc};

use crate::{BoxError, Bus, Error};

/// State of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// When it was created: a recreated stream counts from 1 again.
    pub created: DateTime<Utc>,
    /// Sequence of its first message; one more than the last if it is empty.
    pub first_sequence: u64,
    /// Sequence of the last message it ever had.
    pub last_sequence: u64,
    /// When the last message was stored; 1970 if there never was one.
    pub last_stored: DateTime<Utc>,
    /// Bytes that it stores.
    pub bytes: u64,
    /// Bytes above which it refuses. `None`: no limit.
    pub max_bytes: Option<u64>,
}

/// A message as the stream stores it, independent of any consumer.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// Its sequence.
    pub sequence: u64,
    /// Subject it was published to.
    pub subject: String,
    /// Body, as it was published.
    pub body: Bytes,
    /// When the server stored it.
    pub stored: DateTime<Utc>,
}

/// How far a consumer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerProgress {
    /// Stream sequence up to which messages were delivered.
    pub delivered: u64,
    /// Stream sequence up to which all messages were acknowledged.
    pub acknowledged: u64,
    /// Messages that are still to be delivered or acknowledged.
    pub unhandled: u64,
}

impl Bus {
    /// Reads how far a consumer is.
    ///
    /// # Errors
    /// If it does not exist, or NATS does not answer.
    pub async fn consumer_progress(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<ConsumerProgress, Error> {
        let found: Result<PullConsumer, _> =
            self.jetstream.get_consumer_from_stream(name, stream).await;
        let found =
            found.map_err(|source| Error::jetstream("read consumer", name)(source.into()))?;
        let info = found.cached_info();
        Ok(ConsumerProgress {
            delivered: info.delivered.stream_sequence,
            acknowledged: info.ack_floor.stream_sequence,
            unhandled: info.num_pending + info.num_ack_pending as u64,
        })
    }

    /// Reads the state of a stream.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn stream_state(&self, stream: &str) -> Result<StreamState, Error> {
        let failed = || Error::jetstream("read state of stream", stream);
        let handle = self.stream(stream).await?;
        let info = handle.cached_info();
        Ok(StreamState {
            created: time(info.created).map_err(failed())?,
            first_sequence: info.state.first_sequence,
            last_sequence: info.state.last_sequence,
            // The server says year 1, which nanoseconds cannot.
            last_stored: time(info.state.last_timestamp).unwrap_or_default(),
            bytes: info.state.bytes,
            max_bytes: u64::try_from(info.config.max_bytes).ok(),
        })
    }

    /// The first message of a stream at or after this sequence; `None` if there is none.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn stored_from(
        &self,
        stream: &str,
        sequence: u64,
    ) -> Result<Option<StoredMessage>, Error> {
        self.next_stored(stream, ">", sequence).await
    }

    /// The newest message of a stream on a subject; `None` if there is none.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn last_stored(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, Error> {
        let handle = self.stream_without_info(stream).await?;
        let found = handle.get_last_raw_message_by_subject(subject);
        stored(stream, found.await)
    }

    /// The message of a stream with this sequence; `None` if it has been removed.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn stored_at(
        &self,
        stream: &str,
        sequence: u64,
    ) -> Result<Option<StoredMessage>, Error> {
        let handle = self.stream_without_info(stream).await?;
        stored(stream, handle.get_raw_message(sequence).await)
    }

    /// The first message of a stream on a subject at or after this sequence; `None` if there is none.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn next_stored(
        &self,
        stream: &str,
        subject: &str,
        sequence: u64,
    ) -> Result<Option<StoredMessage>, Error> {
        let handle = self.stream_without_info(stream).await?;
        let found = handle.get_first_raw_message_by_subject(subject, sequence);
        stored(stream, found.await)
    }

    /// Needs the right to read messages, but not the right to read stream info.
    async fn stream_without_info(&self, stream: &str) -> Result<Stream<()>, Error> {
        let handle = self.jetstream.get_stream_no_info(stream).await;
        handle.map_err(|source| Error::jetstream("read stream", stream)(source.into()))
    }

    async fn stream(&self, stream: &str) -> Result<Stream, Error> {
        self.jetstream
            .get_stream(stream)
            .await
            .map_err(|source| Error::jetstream("read state of stream", stream)(source.into()))
    }
}

fn stored(
    stream: &str,
    found: Result<StreamMessage, RawMessageError>,
) -> Result<Option<StoredMessage>, Error> {
    let failed = || Error::jetstream("read stream", stream);
    match found {
        Ok(message) => Ok(Some(StoredMessage {
            sequence: message.sequence,
            subject: message.subject.to_string(),
            body: message.payload,
            stored: time(message.time).map_err(failed())?,
        })),
        Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => Ok(None),
        Err(error) => Err(failed()(error.into())),
    }
}

fn time(time: time::OffsetDateTime) -> Result<DateTime<Utc>, BoxError> {
    let nanos = i64::try_from(time.unix_timestamp_nanos())?;
    Ok(DateTime::from_timestamp_nanos(nanos))
}
