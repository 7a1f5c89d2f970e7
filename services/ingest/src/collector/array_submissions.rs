//! Arrays of which accounting is to be asked which tasks they were submitted with: each once, soon after its first sight.

use std::collections::HashMap;
use std::time::Duration;

use mesh_events::RunKey;
use slurm_client::ArraySubmission;
use slurm_types::JobId;
use tokio::time::Instant;

use super::{Collector, Core};
use crate::Error;
use crate::adapters::store::Store;
use crate::domain::{RunState, RunStore, compare_submitted};

/// slurmctld reports slurmdbd of an array within some seconds.
const INITIAL_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause between two questions about one array.
const MAX_PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct PendingArrayLookup {
    due: Instant,
    since: Instant,
    pause: Duration,
}

/// When they are due.
#[derive(Debug, Default)]
pub(super) struct ArraySubmissionBacklog(HashMap<RunKey, PendingArrayLookup>);

impl ArraySubmissionBacklog {
    /// Of the stored runs.
    pub(super) fn of(run_store: &RunStore) -> Self {
        let mut array_submission_backlog = Self::default();
        for (run, tracked) in run_store.iter() {
            array_submission_backlog.note(&run, tracked);
        }
        array_submission_backlog
    }

    /// Notes what is stored of a run now.
    pub(super) fn note(&mut self, run: &RunKey, tracked: &RunState) {
        if !tracked.ask_submitted {
            self.0.remove(run);
            return;
        }
        let now = Instant::now();
        self.0.entry(run.clone()).or_insert(PendingArrayLookup {
            due: now + INITIAL_PAUSE,
            since: now,
            pause: INITIAL_PAUSE,
        });
    }
}

impl Collector {
    /// Arrays to ask accounting about now.
    pub async fn arrays_due(&self, most: usize) -> Vec<RunKey> {
        let core = self.core.lock().await;
        let now = Instant::now();
        let due = core
            .array_submission_backlog
            .0
            .iter()
            .filter(|(_, asked)| asked.due <= now);
        due.map(|(run, _)| run.clone()).take(most).collect()
    }

    /// Takes in what accounting has of arrays that were due. What it does not have is asked for again, for as long as anything is waited for.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn submitted(&self, due: &[RunKey], answer: &[ArraySubmission]) -> Result<(), Error> {
        let mut core = self.core.lock().await;
        core.must_not_be_ahead()?;
        for run in due {
            let is_last = core.postpone(run, self.config.resolution_timeout);
            let found = answer.iter().find(|array| {
                JobId::new(run.job_id) == Some(array.array)
                    && array.submit.as_secs() == run.submit_time
            });
            let next =
                found.and_then(|found| compare_submitted(&core.run_store, run, found, is_last));
            let next = next.or_else(|| {
                let mut known = core.run_store.get(run)?.clone();
                known.ask_submitted = !is_last;
                Some(known)
            });
            let Some(next) = next.filter(|next| !next.ask_submitted) else {
                continue;
            };
            core.array_submission_backlog.0.remove(run);
            if next.closed() {
                core.last.remove(run);
            }
            core.dirty.insert(Store::shard_of(&next));
            core.run_store.put(run.clone(), next);
        }
        drop(core);
        self.flush().await
    }
}

impl Core {
    /// Notes a question about an array. Returns whether it was the last one.
    fn postpone(&mut self, run: &RunKey, within: Duration) -> bool {
        let now = Instant::now();
        let Some(asked) = self.array_submission_backlog.0.get_mut(run) else {
            return true;
        };
        asked.pause = (asked.pause * 2).min(MAX_PAUSE);
        asked.due = now + asked.pause;
        now - asked.since >= within
    }
}
