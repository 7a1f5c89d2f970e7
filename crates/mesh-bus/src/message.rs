//! A received message.

use async_nats::jetstream;
use async_nats::jetstream::message::StreamMessage;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use mesh_events::catalogue::{MESH_IN, SLURM_EVENTS};
use mesh_events::{DecodeError, Event};
use opentelemetry::trace::TraceContextExt as _;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{BoxError, Error, trace};

/// A message of a stream. Only this crate acknowledges it; handlers return a [`crate::Disposition`].
pub struct Message {
    /// Subject it was published to.
    pub subject: String,
    /// Body, as it was published.
    pub body: Bytes,
    /// Name of its stream.
    pub stream: String,
    /// Its sequence in the stream.
    pub stream_sequence: u64,
    /// Number of deliveries to this consumer, from 1.
    pub delivery: u64,
    /// When the server stored it.
    pub published: DateTime<Utc>,
    /// Messages that its consumer had still to deliver.
    pub(crate) pending: u64,
    /// Number of messages that its consumer has delivered, with this one.
    pub(crate) consumer_sequence: u64,
    pub(crate) inner: jetstream::Message,
    /// Span of handling the message as part of a batch.
    pub(crate) handling: Span,
}

impl Message {
    pub(crate) fn new(inner: jetstream::Message) -> Result<Self, BoxError> {
        let info = inner.info()?;
        let nanos = i64::try_from(info.published.unix_timestamp_nanos())?;
        Ok(Self {
            subject: inner.subject.to_string(),
            body: inner.payload.clone(),
            stream: info.stream.to_owned(),
            stream_sequence: info.stream_sequence,
            delivery: u64::try_from(info.delivered).unwrap_or(1),
            published: DateTime::from_timestamp_nanos(nanos),
            pending: info.pending,
            consumer_sequence: info.consumer_sequence,
            inner,
            handling: Span::none(),
        })
    }

    /// A message that was read from a stream without a consumer and needs no acknowledgement.
    pub(crate) fn read(
        stream: &str,
        stored: StreamMessage,
        answer: async_nats::Message,
        context: &jetstream::Context,
    ) -> Result<Self, BoxError> {
        let nanos = i64::try_from(stored.time.unix_timestamp_nanos())?;
        Ok(Self {
            subject: stored.subject.to_string(),
            body: stored.payload,
            stream: stream.to_owned(),
            stream_sequence: stored.sequence,
            delivery: 1,
            published: DateTime::from_timestamp_nanos(nanos),
            pending: 0,
            consumer_sequence: 0,
            inner: jetstream::Message {
                message: async_nats::Message {
                    reply: None,
                    ..answer
                },
                context: context.clone(),
            },
            handling: Span::none(),
        })
    }

    /// Decodes the event in the body.
    ///
    /// # Errors
    /// If the body is not an event of the contract.
    pub fn event(&self) -> Result<Event, DecodeError> {
        Event::from_bytes(&self.body)
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.inner
            .headers
            .as_ref()?
            .get(name)
            .map(async_nats::HeaderValue::as_str)
    }

    /// Links the sender's span to the current one: for a cause that is not the parent.
    pub fn link_current_span(&self) {
        if let Some(headers) = &self.inner.headers {
            let sender = trace::extract(headers).span().span_context().clone();
            if sender.is_valid() {
                Span::current().add_link(sender);
            }
        }
    }

    /// The span of handling this message in a batch. Publish its consequences inside, so that they stay in the event's trace. Outside of
    /// batches the current span is the message's.
    pub fn handling(&self) -> Span {
        self.handling.clone()
    }

    /// A span of handling this message by the service `role`: part of the event's trace where there is one, else the root of a new trace.
    pub fn span(&self, role: &str) -> Span {
        let id = self.header("Nats-Msg-Id").unwrap_or_default();
        let span = tracing::info_span!(
            "consume",
            otel.name = format!("{role} consume"),
            otel.kind = "consumer",
            messaging.system = "nats",
            subject = %self.subject,
            event.id = id,
            delivery = self.delivery,
        );
        if [SLURM_EVENTS, MESH_IN].contains(&self.stream.as_str())
            && let Some(headers) = &self.inner.headers
            && let Err(error) = span.set_parent(trace::extract(headers))
        {
            tracing::trace!(%error, "span cannot have a parent");
        }
        span
    }

    pub(crate) async fn acknowledge(&self, kind: jetstream::AckKind) -> Result<(), Error> {
        self.inner
            .ack_with(kind)
            .await
            .map_err(Error::jetstream("acknowledge message of", &self.stream))
    }
}
