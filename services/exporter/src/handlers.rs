//! Counts events: one transaction per batch, each event at most once.

use std::time::Duration;

use chrono::Utc;
use mesh_bus::{BatchHandler, Disposition, Message};
use mesh_runtime::Condition;

use crate::adapters::store::{CountedEvent, Store};
use crate::domain::increments;
use crate::error::Error;
use crate::metrics;

/// Delay before a batch is retried after a database error.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit of one attempt, which detects a server that is gone silently. Well within the consumer's ack wait.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct EventCounter {
    pub store: Store,
    /// Condition: the database accepts writes.
    pub database: Condition,
}

impl BatchHandler for EventCounter {
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        let mut outcomes = vec![Disposition::Ack; messages.len()];
        let mut events = Vec::new();
        let (mut ignored, mut rejected) = (0, 0);
        for (message, outcome) in messages.iter().zip(&mut outcomes) {
            match message.event() {
                Ok(event) => {
                    let change = increments::of(&event);
                    if change.is_empty() {
                        ignored += 1;
                        continue;
                    }
                    events.push(CountedEvent {
                        id: event.id,
                        cluster: event.cluster,
                        change,
                    });
                }
                Err(error) => {
                    rejected += 1;
                    *outcome = Disposition::DeadLetter {
                        reason: mesh_runtime::error_chain(&error),
                    };
                }
            }
        }
        match self.count(&events).await {
            Ok(counted) => {
                self.database.ok();
                metrics::events("counted", counted as u64);
                metrics::events("repeated", (events.len() - counted) as u64);
                metrics::events("ignored", ignored);
                metrics::events("rejected", rejected);
                outcomes
            }
            Err(error) => {
                // Nothing of the batch was counted, so all of it is redelivered.
                let reason = mesh_runtime::error_chain(&error);
                tracing::warn!(error = reason, "events not counted, retrying");
                self.database.fail(reason);
                vec![Disposition::Nak { after: RETRY_DELAY }; messages.len()]
            }
        }
    }
}

impl EventCounter {
    async fn count(&self, events: &[CountedEvent]) -> Result<usize, Error> {
        if events.is_empty() {
            return Ok(0);
        }
        let counting = self.store.count(events, Utc::now().timestamp());
        let counted = tokio::time::timeout(ATTEMPT_TIMEOUT, counting).await;
        counted.unwrap_or(Err(Error::TooSlow(ATTEMPT_TIMEOUT)))
    }
}
