//! Counts events: one transaction per batch, each event at most once.

use std::time::Duration;

use chrono::Utc;
use mesh_bus::{BatchHandler, Disposition, Message};
use mesh_runtime::Condition;

use crate::adapters::store::{CountedEvent, Store};
use crate::domain::exemplars::{Exemplar, SharedExemplars, sampled_trace};
use crate::domain::increments;
use crate::error::Error;
use crate::metrics;

/// Delay before a batch is retried after a database error.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit of one attempt, which detects a server that is gone silently. Well within the consumer's ack wait.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct EventCounter {
    pub store: Store,
    /// Cluster that the pages are about.
    pub cluster: String,
    /// Newest exemplars.
    pub exemplars: SharedExemplars,
    /// Condition: the database accepts writes.
    pub database: Condition,
}

impl BatchHandler for EventCounter {
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        let mut outcomes = vec![Disposition::Ack; messages.len()];
        let mut events = Vec::new();
        let mut traced = Vec::new();
        let (mut ignored, mut rejected) = (0, 0);
        for (message, outcome) in messages.iter().zip(&mut outcomes) {
            match message.event() {
                Ok(event) => {
                    let change = increments::of(&event);
                    if change.is_empty() {
                        ignored += 1;
                        continue;
                    }
                    let traceparent = message.header("traceparent").unwrap_or_default();
                    if let Some(trace_id) = sampled_trace(traceparent)
                        && event.cluster == self.cluster
                        && !change.observations.is_empty()
                    {
                        traced.push((trace_id.to_owned(), change.observations.clone()));
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
                self.set_exemplars(&traced);
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

/// A trace id, and what was observed within the trace.
type Traced = (String, Vec<(&'static str, String, i64)>);

impl EventCounter {
    fn set_exemplars(&self, traced: &[Traced]) {
        let at = Utc::now();
        self.exemplars.set(|exemplars| {
            for (trace_id, observations) in traced {
                for (buckets, labels, seconds) in observations {
                    let exemplar = Exemplar {
                        trace_id: trace_id.clone(),
                        seconds: *seconds,
                        at,
                    };
                    exemplars.set(buckets, labels, exemplar);
                }
            }
        });
    }

    async fn count(&self, events: &[CountedEvent]) -> Result<usize, Error> {
        if events.is_empty() {
            return Ok(0);
        }
        let counting = self.store.count(events, Utc::now().timestamp());
        let counted = tokio::time::timeout(ATTEMPT_TIMEOUT, counting).await;
        counted.unwrap_or(Err(Error::TooSlow(ATTEMPT_TIMEOUT)))
    }
}
