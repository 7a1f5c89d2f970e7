//! Events about capture itself: sampled, so counted, stored and then published.

use chrono::Utc;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, Source, event::Payload};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, timestamp};

use super::{Collector, Core};
use crate::{Error, metrics};

impl Collector {
    /// Tells something about capture itself.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn capture(&self, kind: EventType, what: CaptureEvent) -> Result<(), Error> {
        let mut core = self.core.lock().await;
        self.capture_locked(&mut core, kind, what).await
    }

    /// Like [`Collector::capture`], for who has the books already.
    pub(super) async fn capture_locked(
        &self,
        core: &mut Core,
        kind: EventType,
        what: CaptureEvent,
    ) -> Result<(), Error> {
        let key = format!("capture/{}", what.source);
        let count = core
            .meta
            .counts
            .entry(format!("{kind} {}", what.source))
            .or_default();
        *count += 1;
        let n = *count;
        let now = timestamp(Utc::now());
        let event = Event {
            id: EventId::sampled(&self.cluster, &key, kind, n).to_string(),
            cluster: self.cluster.clone(),
            r#type: kind.to_string(),
            occurred_at: Some(now),
            observed_at: Some(now),
            source: Source::Derived.into(),
            confidence: Confidence::Observed.into(),
            entity: Some(Entity {
                kind: "cluster".to_owned(),
                key,
            }),
            run_seq: n,
            schema_version: SCHEMA_VERSION,
            payload: Some(Payload::Capture(what)),
            ..Event::default()
        };
        metrics::fact(kind);
        let Core { store, meta, .. } = core;
        store.write_meta(meta, std::slice::from_ref(&event)).await?;
        let span = tracing::info_span!(parent: None, "ingest.fact", event.id = event.id, event.r#type = %kind);
        self.bus
            .publish_all_traced(vec![(event, span)], &self.shutdown)
            .await?;
        Ok(())
    }
}
