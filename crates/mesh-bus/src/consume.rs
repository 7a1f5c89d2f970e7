//! Consuming: pulls messages, calls a handler, and acknowledges. No other module acknowledges messages.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::pull::MessagesErrorKind;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use chrono::Utc;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use mesh_events::proto::mesh::audit::v1::DeadLetter;
use mesh_events::subject;
use prost::Message as _;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::metrics::ConsumerMetrics;
use crate::repair::of_catalogue;
use crate::{Backoff, Bus, Error, Message, metrics};

/// Interval of progress acknowledgements: shorter than the shortest ack wait, the ledger's ten seconds.
const ACK_PROGRESS_INTERVAL: Duration = Duration::from_secs(7);

/// Maximum number of messages that a reader requests ahead.
const MAX_REQUESTED_MESSAGES: usize = 5_000;

/// Bytes of message bodies after which a batch takes no further message.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// A handler's decision about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Handled; never delivered again.
    Ack,
    /// Deliver again after this time. The message occupies a slot of its consumer meanwhile, so the wait should be seconds, not hours.
    Nak {
        /// How long to wait.
        after: Duration,
    },
    /// Cannot be processed: parked on the dead-letter subject with this reason.
    DeadLetter {
        /// The reason stored with the dead letter.
        reason: String,
    },
}

/// Handles messages one by one, several at the same time.
pub trait Handler: Send + Sync + 'static {
    /// Handles a message. May be called more than once with the same message.
    fn handle(&self, message: &Message) -> impl Future<Output = Disposition> + Send;
}

/// Handles messages in batches.
pub trait BatchHandler: Send + Sync + 'static {
    /// Maximum number of batches that are handled at the same time. They begin in the order of the stream.
    const CONCURRENT_BATCHES: usize = 1;

    /// Handles a batch; returns one disposition per message, in the same order.
    fn handle(&self, messages: &[Message]) -> impl Future<Output = Vec<Disposition>> + Send;
}

impl Bus {
    /// Reads a durable consumer until `shutdown` is cancelled, then finishes the messages in progress. Survives restarts of NATS.
    ///
    /// # Errors
    /// None at present; the signature leaves room for consumers that are gone for good.
    pub async fn consume<H: Handler>(
        &self,
        stream: &str,
        durable: &str,
        concurrency: usize,
        handler: H,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        let handler = Arc::new(handler);
        let permits = Arc::new(Semaphore::new(concurrency));
        let tasks = TaskTracker::new();
        let _checking = self.checking(stream, durable, shutdown);
        while let Some(mut messages) = self.reopen(stream, durable, concurrency, shutdown).await {
            loop {
                let permit = tokio::select! {
                    () = shutdown.cancelled() => break,
                    permit = Arc::clone(&permits).acquire_owned() => permit.expect("the semaphore is never closed"),
                };
                let message = tokio::select! {
                    () = shutdown.cancelled() => break,
                    message = messages.next() => match message { Some(message) => message, None => break },
                };
                let (bus, handler) = (self.clone(), Arc::clone(&handler));
                let span = message.span(self.role());
                tasks.spawn(
                    async move {
                        let one = std::slice::from_ref(&message);
                        let outcome = keep_alive(one, pin!(handler.handle(&message))).await;
                        bus.answer(&message, outcome).await;
                        drop(permit);
                    }
                    .instrument(span),
                );
            }
            self.hand_back(&mut messages).await;
        }
        tasks.close();
        tasks.wait().await;
        Ok(())
    }

    /// Returns messages that were pulled but not begun, so that another replica gets them now and not after the ack wait.
    async fn hand_back(&self, messages: &mut stream::BoxStream<'static, Message>) {
        let now = Disposition::Nak {
            after: Duration::ZERO,
        };
        while let Some(message) = available(messages) {
            self.answer(&message, now.clone()).await;
        }
    }

    /// Reads a durable consumer in batches of up to `max_messages` messages. A batch holds the messages available at once; it does not wait
    /// for more. It is acknowledged while the next one is handled, if the handler accepts several.
    ///
    /// # Errors
    /// None at present; see [`Bus::consume`].
    pub async fn consume_batches<H: BatchHandler>(
        &self,
        stream: &str,
        durable: &str,
        max_messages: usize,
        handler: H,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        let _checking = self.checking(stream, durable, shutdown);
        while let Some(mut messages) = self.reopen(stream, durable, max_messages, shutdown).await {
            let mut handled = FuturesUnordered::new();
            loop {
                let batch = tokio::select! {
                    biased;
                    // First: a batch begins before the next one is read.
                    Some(()) = handled.next() => continue,
                    () = shutdown.cancelled() => break,
                    batch = next_batch(&mut messages, max_messages), if handled.len() < H::CONCURRENT_BATCHES => {
                        match batch { Some(batch) => batch, None => break }
                    }
                };
                handled.push(self.handle_batch(batch, &handler));
            }
            handled.collect::<()>().await;
            self.hand_back(&mut messages).await;
        }
        Ok(())
    }

    /// Handles and acknowledges a batch.
    async fn handle_batch<H: BatchHandler>(&self, mut batch: Vec<Message>, handler: &H) {
        // One span per message, so that each event's trace shows this service.
        for message in &mut batch {
            message.handling = message.span(self.role());
        }
        let outcomes = keep_alive(&batch, pin!(handler.handle(&batch))).await;
        debug_assert_eq!(outcomes.len(), batch.len(), "one outcome per message");
        stream::iter(batch.iter().zip(outcomes))
            .for_each_concurrent(64, |(message, outcome)| {
                self.answer(message, outcome).instrument(message.handling())
            })
            .await;
    }

    /// Opens the consumer, checked against its declaration, and retries while NATS is unavailable; `None` on shutdown.
    async fn reopen(
        &self,
        stream: &str,
        durable: &str,
        max_messages: usize,
        shutdown: &CancellationToken,
    ) -> Option<stream::BoxStream<'static, Message>> {
        let mut backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(2));
        while !shutdown.is_cancelled() {
            match self.open(stream, durable, max_messages).await {
                Ok(messages) => {
                    self.status.readable(stream, durable);
                    return Some(messages);
                }
                Err(error) => {
                    self.status.unreadable(stream, durable, error.cause());
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        stream,
                        consumer = durable,
                        "open consumer"
                    );
                }
            }
            backoff.wait(shutdown).await;
        }
        None
    }

    /// The messages of a consumer, until the first sign that the server is gone.
    async fn open(
        &self,
        stream: &str,
        durable: &str,
        max_messages: usize,
    ) -> Result<stream::BoxStream<'static, Message>, Error> {
        let permit = self.declaring.acquire().await;
        let consumer = self.checked_consumer(stream, durable).await?;
        drop(permit);
        messages(consumer, max_messages, Arc::clone(&self.declaring)).await
    }

    async fn answer(&self, message: &Message, outcome: Disposition) {
        let (kind, name) = match outcome {
            Disposition::Ack => (AckKind::Ack, "done"),
            Disposition::Nak { after } => (AckKind::Nak(Some(after)), "retry"),
            Disposition::DeadLetter { reason } => match self.park(message, &reason).await {
                Ok(()) => (AckKind::Ack, "reject"),
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        subject = message.subject,
                        "dead letter not stored, retrying"
                    );
                    (AckKind::Nak(Some(Duration::from_secs(5))), "retry")
                }
            },
        };
        metrics::consumed(&message.stream, name);
        if let Err(error) = message.acknowledge(kind).await {
            // Not lost: the server delivers it again.
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                subject = message.subject,
                "acknowledge"
            );
        }
    }

    /// Stores a message that cannot be processed as a dead letter.
    ///
    /// # Errors
    /// If NATS does not store it.
    pub async fn park(&self, message: &Message, reason: &str) -> Result<(), Error> {
        tracing::error!(
            subject = message.subject,
            reason,
            "message cannot be processed, parked as a dead letter"
        );
        let id = format!(
            "{}-{}-{}",
            message.stream,
            self.role(),
            message.stream_sequence
        );
        let letter = DeadLetter {
            id: id.clone(),
            consumer: self.role().to_owned(),
            reason: reason.to_owned(),
            at: Some(mesh_events::timestamp(Utc::now())),
            subject: message.subject.clone(),
            body: message.body.to_vec(),
            stream: message.stream.clone(),
            stream_sequence: message.stream_sequence,
            attempts: u32::try_from(message.delivery).unwrap_or(u32::MAX),
            ..DeadLetter::default()
        };
        self.publish_raw(subject::dead(self.role()), &id, letter.encode_to_vec())
            .await
            .map(drop)
    }
}

/// The messages that are available at once, at least one. `None` at the end.
async fn next_batch(
    messages: &mut stream::BoxStream<'static, Message>,
    max_messages: usize,
) -> Option<Vec<Message>> {
    let first = messages.next().await?;
    let mut bytes = first.body.len();
    let mut batch = vec![first];
    while batch.len() < max_messages
        && bytes < MAX_BATCH_BYTES
        && let Some(message) = available(messages)
    {
        bytes += message.body.len();
        batch.push(message);
    }
    Some(batch)
}

/// The next message, if it was received already. Tokio's budget would end after 128 of them, as if there were no more.
fn available(messages: &mut stream::BoxStream<'static, Message>) -> Option<Message> {
    let next = tokio::task::unconstrained(messages.next());
    next.now_or_never().flatten()
}

/// The messages of an open consumer. Ends when the server is gone or no longer knows our pull request. `asking` limits concurrent requests
/// for consumer info.
pub(crate) async fn messages(
    consumer: PullConsumer,
    max_messages: usize,
    asking: Arc<Semaphore>,
) -> Result<stream::BoxStream<'static, Message>, Error> {
    let messages: pull::Stream = consumer
        .stream()
        .max_messages_per_batch(max_messages.clamp(1, MAX_REQUESTED_MESSAGES))
        .expires(Duration::from_secs(10))
        .heartbeat(Duration::from_secs(2))
        .messages()
        .await
        .map_err(|source| {
            let name = &consumer.cached_info().name;
            Error::jetstream("read consumer", name)(source.into())
        })?;
    let info = consumer.cached_info();
    let metrics = of_catalogue(&info.stream_name, &info.name)
        .map(|_| ConsumerMetrics::of(&info.stream_name, &info.name));
    let readable = stream::unfold((messages, consumer), move |(mut messages, consumer)| {
        let (asking, metrics) = (Arc::clone(&asking), metrics.clone());
        async move {
            let message = next(&mut messages, &consumer, &asking).await?;
            if let Some(metrics) = metrics {
                metrics.received(&message);
            }
            Some((message, (messages, consumer)))
        }
    });
    // Fused: on shutdown the caller polls once more for messages that are left.
    Ok(readable.fuse().boxed())
}

async fn next(
    messages: &mut pull::Stream,
    consumer: &PullConsumer,
    asking: &Semaphore,
) -> Option<Message> {
    loop {
        let failure: crate::BoxError = match messages.next().await? {
            Ok(message) => match Message::new(message) {
                Ok(message) => return Some(message),
                Err(error) => error,
            },
            Err(error)
                if error.kind() == MessagesErrorKind::MissingHeartbeat
                    && is_waited_for(consumer, asking).await =>
            {
                continue;
            }
            Err(error) => error.into(),
        };
        tracing::debug!(
            error = %failure,
            consumer = consumer.cached_info().name,
            "consumer interrupted, reopening it"
        );
        return None;
    }
}

/// True if the server still holds a pull request of ours. Then a missing heartbeat is only late, as on a busy machine. Giving up would
/// leave messages in flight to the ack wait.
async fn is_waited_for(consumer: &PullConsumer, asking: &Semaphore) -> bool {
    let _permit = asking.acquire().await;
    let info = consumer.get_info().await;
    info.is_ok_and(|info| info.num_waiting > 0)
}

/// Sends progress acknowledgements while a handler is slow, so that its messages are not delivered a second time. The work does not depend
/// on them: while NATS is unavailable, none are sent.
///
/// The caller pins the work: passed by value, the future would be stored twice.
async fn keep_alive<T>(messages: &[Message], work: Pin<&mut impl Future<Output = T>>) -> T {
    let reporting = async {
        loop {
            tokio::time::sleep(ACK_PROGRESS_INTERVAL).await;
            for message in messages {
                if let Err(error) = message.acknowledge(AckKind::Progress).await {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "ack deadline not extended"
                    );
                }
            }
        }
    };
    tokio::select! {
        outcome = work => outcome,
        () = reporting => unreachable!("the loop never ends"),
    }
}
