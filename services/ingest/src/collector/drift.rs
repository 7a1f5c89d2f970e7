//! What Slurm printed and this version does not know: published once per form and day.

use std::collections::BTreeSet;

use chrono::Utc;
use mesh_events::EventType;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use slurm_client::Drift;

use super::Collector;
use crate::{Error, metrics};

const SECONDS_PER_DAY: i64 = 86_400;

impl Collector {
    /// Counts what is not known, and reports each form once a day. What cannot be stored now is published when it is seen next.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn drifted(&self, drifts: impl IntoIterator<Item = Drift>) -> Result<(), Error> {
        let mut forms = BTreeSet::new();
        for drift in drifts {
            metrics::drift(drift.what);
            forms.insert(drift);
        }
        if forms.is_empty() {
            return Ok(());
        }
        let day = Utc::now().timestamp().div_euclid(SECONDS_PER_DAY);
        let mut core = self.core.lock().await;
        for drift in forms {
            if !drift.note(&mut core.meta.drifts, day) {
                continue;
            }
            tracing::warn!(
                what = drift.what,
                source = drift.source,
                "{}",
                drift.message
            );
            let emitted = CaptureEvent {
                source: drift.source.to_owned(),
                message: drift.message.clone(),
                ..CaptureEvent::default()
            };
            let kind = EventType::CaptureSchemaDrift;
            if !self.capture_locked(&mut core, kind, emitted, None).await? {
                core.meta.drifts.remove(&drift.message);
            }
        }
        Ok(())
    }
}
