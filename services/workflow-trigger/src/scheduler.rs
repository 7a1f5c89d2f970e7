//! Fires the rules that have a schedule.
//!
//! The id of a firing is made of its instant, so that two replicas, or a process that stopped between a firing and storing it, fire once.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_runtime::Condition;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::adapters::schedules::ScheduleState;
use crate::adapters::store::Store;
use crate::domain::firing;
use crate::domain::guards::SiteLimits;
use crate::domain::index::Rules;
use crate::domain::rule::{EventSelector, Rule};
use crate::driver;
use crate::error::Error;
use crate::handlers;

/// Longest wait: the clock may be set.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Delay after an error of the database.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Fires rules at their instants.
pub(crate) struct Scheduler {
    pub store: Store,
    pub rules: watch::Receiver<Arc<Rules>>,
    pub limits: SiteLimits,
    /// Cluster of this process.
    pub cluster: Arc<str>,
    /// Notify the driver and the outbox.
    pub due_runs: Arc<driver::DueRuns>,
    pub recorded: Arc<Notify>,
    /// Condition: the database accepts writes.
    pub database: Condition,
}

impl Scheduler {
    /// Fires rules until shutdown.
    pub async fn run(mut self, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            let rules = Arc::clone(&self.rules.borrow_and_update());
            let wait = match self.fire_due(&rules, Utc::now()).await {
                Ok(Some(next)) => (next - Utc::now()).to_std().unwrap_or_default(),
                Ok(None) => MAX_WAIT,
                Err(error) => {
                    let reason = mesh_runtime::error_chain(&error);
                    tracing::warn!(error = reason, "schedules not handled, retrying");
                    self.database.fail(reason);
                    RETRY_DELAY
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                Ok(()) = self.rules.changed() => {}
                () = tokio::time::sleep(wait.min(MAX_WAIT)) => {}
            }
        }
    }

    /// Fires all that is due. Returns the next instant.
    async fn fire_due(
        &self,
        rules: &Rules,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, Error> {
        let of_rule = |rule: &Arc<Rule>| match &rule.on {
            EventSelector::Cron(schedule) => Some((Arc::clone(rule), schedule.clone())),
            _ => None,
        };
        let scheduled: Vec<_> = rules.all().filter_map(of_rule).collect();
        if scheduled.is_empty() {
            return Ok(None);
        }
        let states = self.store.schedules().await?;
        let mut next: Option<DateTime<Utc>> = None;
        for (rule, schedule) in &scheduled {
            let text = schedule.to_string();
            let due = match states.get(&rule.id).filter(|state| state.schedule == text) {
                Some(state) => schedule.due(state.last, now),
                None => {
                    // Nothing was missed before the first sight of it.
                    let state = ScheduleState {
                        schedule: text.clone(),
                        last: now - schedule.delay(),
                    };
                    self.store.store_schedule(&rule.id, &state).await?;
                    Vec::new()
                }
            };
            if let Some(last) = due.last() {
                let firings: Vec<_> = due
                    .iter()
                    .map(|at| firing::of_instant(rule, schedule, &self.cluster, *at))
                    .collect();
                let planned = self.store.plan(&firings, &self.limits, now).await?;
                handlers::report(&firings, &planned);
                self.due_runs.notify();
                self.recorded.notify_one();
                let state = ScheduleState {
                    schedule: text,
                    last: *last,
                };
                self.store.store_schedule(&rule.id, &state).await?;
            }
            next = next.into_iter().chain(schedule.next_firing(now)).min();
        }
        Ok(next)
    }
}
