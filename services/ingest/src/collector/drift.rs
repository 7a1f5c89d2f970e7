//! Schema drift: values printed by Slurm that this version does not know. Each form is published once a day.

use chrono::Utc;
use mesh_events::EventType;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use slurm_client::{Drift, Slurm};

use super::Collector;
use crate::{Error, metrics};

const SECONDS_PER_DAY: i64 = 86_400;

impl Collector {
    /// Publishes the drift found in Slurm's answers, until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over.
    pub async fn report_drifts(self, slurm: Slurm) -> Result<(), Error> {
        loop {
            let drifts = tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                drifts = slurm.next_drifts() => drifts,
            };
            self.drifted(drifts).await?;
        }
    }

    /// Counts drift and publishes each form once a day. A form that cannot be stored now is published when it is seen again.
    async fn drifted(&self, drifts: Vec<Drift>) -> Result<(), Error> {
        let day = Utc::now().timestamp().div_euclid(SECONDS_PER_DAY);
        let mut state = self.state.lock().await;
        for drift in drifts {
            metrics::drift(drift.what, drift.count);
            if !drift.note(&mut state.capture.drifts, day) {
                continue;
            }
            let message = drift.text();
            tracing::warn!(what = drift.what, source = drift.source, "{message}");
            let emitted = CaptureEvent {
                source: drift.source.to_owned(),
                message,
                ..CaptureEvent::default()
            };
            let kind = EventType::CaptureSchemaDrift;
            if !self.capture_locked(&mut state, kind, emitted, None).await? {
                state.capture.drifts.remove(&drift.message);
            }
        }
        Ok(())
    }
}
