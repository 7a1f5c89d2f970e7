//! Consuming: one place that pulls, calls a handler, and answers the server.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::pull::MessagesErrorKind;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use chrono::Utc;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use mesh_events::proto::mesh::audit::v1::DeadLetter;
use mesh_events::subject;
use prost::Message as _;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::metrics::Pending;
use crate::repair::of_catalogue;
use crate::{Bus, Error, Message, metrics};

/// Interval of progress acknowledgements: shorter than the shortest ack wait, the ledger's ten seconds.
const ACK_PROGRESS_INTERVAL: Duration = Duration::from_secs(7);

/// What a handler decided about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Handled; never to be delivered again.
    Ack,
    /// To be delivered again after this time. The message keeps a slot of its consumer meanwhile: for seconds, not for hours.
    Nak {
        /// How long to wait.
        after: Duration,
    },
    /// Cannot be processed: parked on the dead-letter subject with this reason.
    DeadLetter {
        /// Why.
        reason: String,
    },
}

/// Handles messages one by one, several at the same time.
pub trait Handler: Send + Sync + 'static {
    /// Handles a message. May be called again with the same one.
    fn handle(&self, message: &Message) -> impl Future<Output = Disposition> + Send;
}

/// Handles messages in batches, one batch at a time.
pub trait BatchHandler: Send + Sync + 'static {
    /// Handles a batch; returns one outcome per message, in the same order.
    fn handle(&self, messages: &[Message]) -> impl Future<Output = Vec<Disposition>> + Send;
}

impl Bus {
    /// Consumes a durable consumer until told to stop; then finishes what it holds. Survives restarts of NATS.
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

    /// What was pulled and not begun is handed to whoever goes on, now and not after the ack wait.
    async fn hand_back(&self, messages: &mut stream::BoxStream<'static, Message>) {
        let now = Disposition::Nak {
            after: Duration::ZERO,
        };
        while let Some(Some(message)) = messages.next().now_or_never() {
            self.answer(&message, now.clone()).await;
        }
    }

    /// Consumes a durable consumer in batches of up to `max_messages` messages: whatever is there, without waiting for more.
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
        while let Some(messages) = self.reopen(stream, durable, max_messages, shutdown).await {
            let mut batches = messages.ready_chunks(max_messages);
            loop {
                let mut batch = tokio::select! {
                    () = shutdown.cancelled() => break,
                    batch = batches.next() => match batch { Some(batch) => batch, None => break },
                };
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
            self.hand_back(batches.get_mut()).await;
        }
        Ok(())
    }

    /// Opens the consumer, in order as it was declared, trying again while NATS is away; `None` when told to stop.
    async fn reopen(
        &self,
        stream: &str,
        durable: &str,
        max_messages: usize,
        shutdown: &CancellationToken,
    ) -> Option<stream::BoxStream<'static, Message>> {
        let mut delay = Duration::from_millis(100);
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
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(delay) => delay = (delay * 2).min(Duration::from_secs(2)),
            }
        }
        None
    }

    /// The messages of a consumer, up to the first sign that the server is gone.
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

    /// Puts a message that cannot be processed where an operator finds it.
    async fn park(&self, message: &Message, reason: &str) -> Result<(), Error> {
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

/// The messages of a consumer that was opened, until the server is gone or does not know our request any more. As many as `asking` has room for
/// ask it for that at a time.
pub(crate) async fn messages(
    consumer: PullConsumer,
    max_messages: usize,
    asking: Arc<Semaphore>,
) -> Result<stream::BoxStream<'static, Message>, Error> {
    let messages: pull::Stream = consumer
        .stream()
        .max_messages_per_batch(max_messages.clamp(1, 1_000))
        .expires(Duration::from_secs(10))
        .heartbeat(Duration::from_secs(2))
        .messages()
        .await
        .map_err(|source| {
            let name = &consumer.cached_info().name;
            Error::jetstream("read consumer", name)(source.into())
        })?;
    let info = consumer.cached_info();
    let pending = of_catalogue(&info.stream_name, &info.name)
        .map(|_| Pending::of(&info.stream_name, &info.name));
    let readable = stream::unfold((messages, consumer), move |(mut messages, consumer)| {
        let (asking, pending) = (Arc::clone(&asking), pending.clone());
        async move {
            let message = next(&mut messages, &consumer, &asking).await?;
            if let Some(pending) = pending {
                pending.set(message.pending);
            }
            Some((message, (messages, consumer)))
        }
    });
    // Who is told to stop looks once more for what is left.
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
            "consumer interrupted, opening it again"
        );
        return None;
    }
}

/// Whether the server still has a request of ours. Then what it does not say is late, as on a busy machine: who gave up would leave what is on
/// its way to the ack wait.
async fn is_waited_for(consumer: &PullConsumer, asking: &Semaphore) -> bool {
    let _permit = asking.acquire().await;
    let info = consumer.get_info().await;
    info.is_ok_and(|info| info.num_waiting > 0)
}

/// Tells the server that work goes on while a handler is slow, so that the messages are not delivered a second time meanwhile. The work
/// does not wait for that: while NATS is away, nothing is told.
///
/// The work is pinned where it is called for: given by value it would be kept twice.
async fn keep_alive<T>(messages: &[Message], work: Pin<&mut impl Future<Output = T>>) -> T {
    let reporting = async {
        loop {
            tokio::time::sleep(ACK_PROGRESS_INTERVAL).await;
            for message in messages {
                if let Err(error) = message.acknowledge(AckKind::Progress).await {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "tell that work goes on"
                    );
                }
            }
        }
    };
    tokio::select! {
        outcome = work => outcome,
        () = reporting => unreachable!("it goes on for ever"),
    }
}
