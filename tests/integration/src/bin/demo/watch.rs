//! Observes the bus and the receiver as a user would, records arrival times, and shows the events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use integration::scenario::Expected;
use integration::{Delivery, Error, Fact, Mesh, Receiver};
use mesh_bus::StartPosition;
use mesh_events::Event;
use tokio::task::JoinHandle;

use crate::feed::Feed;
use crate::{CHAT, PIPELINE};

/// Observed events and requests.
#[derive(Debug, Default)]
pub struct Seen {
    /// Events in the order of the bus, with their arrival times.
    pub events: Vec<(Instant, Event)>,
    /// Requests in the order of arrival.
    pub deliveries: Vec<Delivery>,
    arrivals: BTreeMap<String, Instant>,
}

impl Seen {
    /// Time when an event was first seen on the bus.
    pub fn on_bus(&self, id: &str) -> Option<Instant> {
        self.arrivals.get(id).copied()
    }
}

/// The observer. Stops on drop.
#[derive(Debug)]
pub struct Watch {
    feed: Feed,
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Follows the mesh's bus and the receiver.
    ///
    /// # Errors
    /// If the bus cannot be followed.
    pub async fn start(mesh: &Mesh, receiver: &Receiver, feed: Feed) -> Result<Self, Error> {
        let bus = mesh.bus().await?;
        bus.ready(&tokio_util::sync::CancellationToken::new())
            .await?;
        let events = bus.follow("slurm.>", StartPosition::Sequence(1)).await?;
        let seen = Arc::<Mutex<Seen>>::default();
        let requests = receiver.requests();
        let shared = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            // Held here, so that the connection lives as long as this task.
            let _bus = bus;
            let mut events = Box::pin(events);
            let mut interval = tokio::time::interval(Duration::from_millis(20));
            loop {
                tokio::select! {
                    Some(message) = events.next() => {
                        let at = Instant::now();
                        if let Some(event) = message.ok().and_then(|message| message.event().ok()) {
                            feed.event(at, &event);
                            lock(&shared).event(at, event);
                        }
                    }
                    _ = interval.tick() => {
                        let known = lock(&shared).deliveries.len();
                        for delivery in requests.since(known) {
                            let bus = lock(&shared).on_bus(&delivery.id);
                            feed.delivery(&delivery, bus);
                            lock(&shared).deliveries.push(delivery);
                        }
                    }
                }
            }
        });
        Ok(Self { feed, seen, task })
    }

    /// The feed for output.
    pub const fn feed(&self) -> Feed {
        self.feed
    }

    /// Observations so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Missing or invalid deliveries: every fact about the expected jobs must have arrived, signed.
    pub fn complaints(&self, expected: &[Expected], facts: &[Fact]) -> Vec<String> {
        let seen = self.seen();
        let here = |delivery: &&Delivery| delivery.path.trim_start_matches('/') == PIPELINE;
        let came: BTreeSet<&str> = seen
            .deliveries
            .iter()
            .filter(here)
            .filter(|delivery| delivery.signature == Some(Ok(())))
            .map(|delivery| delivery.id.as_str())
            .collect();
        let jobs: BTreeSet<u32> = expected.iter().map(|part| part.job).collect();
        let due = facts
            .iter()
            .filter(|fact| fact.run().is_some_and(|run| jobs.contains(&run.0)))
            .filter(|fact| !came.contains(fact.event.id.as_str()));
        let mut complaints: Vec<_> = due
            .map(|fact| {
                format!(
                    "no webhook for {} of {}",
                    fact.kind,
                    fact.event.entity_key()
                )
            })
            .collect();
        let wrong = seen.deliveries.iter().filter(here);
        complaints.extend(wrong.filter_map(|delivery| match &delivery.signature {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(format!("webhook {}: {error}", delivery.id)),
            None => Some(format!("webhook {} is not signed", delivery.id)),
        }));
        complaints
    }
}

impl Watch {
    /// Jobs without a chat message. Their owners cancel jobs themselves, which is no news to them.
    pub fn chat_complaints(&self, expected: &[Expected]) -> Vec<String> {
        let seen = self.seen();
        let path = format!("/{CHAT}");
        let texts: Vec<&str> = seen
            .deliveries
            .iter()
            .filter(|delivery| delivery.path == path)
            .filter_map(|delivery| delivery.body["text"].as_str())
            .collect();
        let silent = expected.iter().filter(|part| {
            let names = ["Job", "Array"].map(|word| format!("{word} {}", part.job));
            let is_named = |text: &&str| names.iter().any(|name| text.contains(name));
            let ends = part.runs.last().and_then(|run| run.last());
            ends != Some(&"cancelled") && !texts.iter().any(is_named)
        });
        silent
            .map(|part| format!("no chat message about job {}", part.job))
            .collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    fn event(&mut self, at: Instant, event: Event) {
        self.arrivals.entry(event.id.clone()).or_insert(at);
        self.events.push((at, event));
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
