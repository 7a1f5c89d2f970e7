//! Unknown words in Slurm's node output. Each form is published once a day.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::Source;
use mesh_events::{Event, EventType, sampled_capture_event};
use serde::{Deserialize, Serialize};
use slurm_client::Drift;

const SECONDS_PER_DAY: i64 = 86_400;
/// Source of the events: slurmctld's list of nodes. Not `slurmctld`, whose events ingest counts.
const SOURCE: &str = "nodes";
/// Entity of the events.
pub const ENTITY: &str = "capture/nodes";

/// The published drifts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedDrifts {
    /// Forms, with the day (since 1970) on which each was last published.
    forms: BTreeMap<String, i64>,
    /// Number of the last event.
    count: u64,
}

impl PublishedDrifts {
    /// Nothing, after a loss: numbers continue after `count`.
    pub fn counting_from(count: u64) -> Self {
        Self {
            count,
            ..Self::default()
        }
    }

    /// Number of the next event of the entity.
    pub const fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The events for the forms that were not published today.
    pub fn events(
        &mut self,
        cluster: &str,
        asked: &str,
        drifts: Vec<Drift>,
        now: DateTime<Utc>,
    ) -> Vec<Event> {
        let day = now.timestamp().div_euclid(SECONDS_PER_DAY);
        let mut events = Vec::new();
        for drift in drifts {
            if drift.note(&mut self.forms, day) {
                let n = self.next_number();
                events.push(event(cluster, asked, drift.text(), n, now));
            }
        }
        events
    }
}

fn event(cluster: &str, asked: &str, message: String, n: u64, now: DateTime<Utc>) -> Event {
    let drift = CaptureEvent {
        source: SOURCE.to_owned(),
        message,
        ..CaptureEvent::default()
    };
    Event {
        source: Source::Sweep.into(),
        source_detail: asked.to_owned(),
        ..sampled_capture_event(
            cluster,
            EventType::CaptureSchemaDrift,
            ENTITY,
            n,
            now,
            drift,
        )
    }
}
