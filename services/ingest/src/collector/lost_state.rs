//! A slurmctld that is started with an older state runs ended jobs again, under the same ids and submit times (22.05 to 26.05). Each
//! repeated execution is published as a new run, between `capture.gap_opened` and `capture.gap_closed`.

use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::{Event, EventType, RunKey, timestamp};

use super::{Collector, CollectorState};
use crate::Error;
use crate::adapters::capture_state::LostState;
use crate::domain::Observation;

/// What cannot be recovered of the time that slurmctld has lost.
const NOT_RECOVERABLE: &str = "the fate of jobs that slurmctld lost with its state and that accounting does not have; slurmctld reuses their ids, and accounting overwrites the rows of jobs that run again";

impl LostState {
    pub(super) const fn first(from: i64, poll: u64) -> Self {
        Self {
            from,
            runs: 1,
            poll,
        }
    }
}

impl Collector {
    /// Records a run that had ended and runs again. Returns the event that opens the gap, for the first such run.
    pub(super) fn record_restart(
        &self,
        state: &mut CollectorState,
        run: &RunKey,
        observation: &Observation,
    ) -> Option<Event> {
        let ends = state.run_store.runs_of(run).rev();
        let end = ends
            .filter_map(|(_, tracked)| Some(tracked.end.as_ref()?.at))
            .next()
            .unwrap_or(observation.run.submit_time);
        let poll = state.capture.poll + 1;
        if let Some(lost) = &mut state.capture.lost_state {
            lost.from = lost.from.min(end);
            lost.runs += 1;
            lost.poll = poll;
            return None;
        }
        state.capture.lost_state = Some(LostState::first(end, poll));
        tracing::warn!(
            run = run.entity_key(),
            "ended run is running again: slurmctld restarted with an older state"
        );
        let event = CaptureEvent {
            source: "slurmctld".to_owned(),
            message: format!(
                "slurmctld restarted with an older state: {} had ended and is running again",
                observation.run.entity_key()
            ),
            from: at(end),
            not_recoverable: NOT_RECOVERABLE.to_owned(),
            ..CaptureEvent::default()
        };
        Some(self.counted(state, EventType::CaptureGapOpened, event))
    }

    /// Closes the gap once a poll has found no further run that slurmctld has started again.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn republished_message(&self, poll: u64) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        let Some(lost) = state.capture.lost_state.take_if(|lost| lost.poll < poll) else {
            return Ok(());
        };
        let event = CaptureEvent {
            source: "slurmctld".to_owned(),
            message: format!(
                "published runs that had ended and that slurmctld started again after a restart with an older state: {}",
                lost.runs
            ),
            from: at(lost.from),
            to: Some(timestamp(chrono::Utc::now())),
            recovered: lost.runs,
            not_recoverable: NOT_RECOVERABLE.to_owned(),
        };
        let closed = EventType::CaptureGapClosed;
        if !self.capture_locked(&mut state, closed, event, None).await? {
            state.capture.lost_state = Some(lost);
        }
        Ok(())
    }
}

fn at(seconds: i64) -> Option<pbjson_types::Timestamp> {
    chrono::DateTime::from_timestamp(seconds, 0).map(timestamp)
}
