//! What was published of budgets, from their events, so that no crossing is published again.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::user::v1::{Quota, UserEvent};
use mesh_events::{Event, EventType};

use crate::adapters::BudgetState;
use crate::budgets::crossing::PublishedState;
use crate::budgets::{Budget, files};
use crate::usage::seconds;

/// States of budgets by name and period.
#[derive(Debug)]
pub(super) struct PublishedBudgets {
    states: BTreeMap<(String, String), RecordedState>,
    of_files: Vec<Budget>,
}

#[derive(Debug)]
struct RecordedState {
    state: BudgetState,
    /// After a threshold was cleared: the use in percent. The highest threshold that it had passed is still published.
    cleared_at: Option<u64>,
}

impl PublishedBudgets {
    pub fn new(of_files: Vec<Budget>) -> Self {
        Self {
            states: BTreeMap::new(),
            of_files,
        }
    }

    /// Adds an event of a budget.
    pub fn add(&mut self, event: &Event, payload: &UserEvent) {
        let (Ok(kind), Some(quota)) = (event.kind(), &payload.quota) else {
            return;
        };
        if quota.source != "budget" {
            return;
        }
        let period = counted_period(event, quota);
        let is_over = period != quota.period;
        let others = self
            .states
            .iter()
            .filter(|((budget, other), _)| *budget == quota.budget && *other != period);
        let of_others: u64 = others.map(|(_, other)| other.state.events).sum();
        // The period that clears another one has a state, too.
        self.state(quota, &quota.period);
        let recorded = self.state(quota, &period);
        let state = &mut recorded.state;
        // The numbers of a budget's events go over all its periods.
        state.events = event.run_seq.saturating_sub(of_others).max(state.events);
        if kind == EventType::UserQuotaCleared {
            state.published = PublishedState {
                threshold: 0,
                forecast: false,
                crossing: quota.crossing + 1,
            };
            recorded.cleared_at = (!is_over).then_some(quota.percent());
            return;
        }
        recorded.cleared_at = None;
        state.published.crossing = quota.crossing;
        if quota.is_forecast {
            state.published.forecast = true;
        } else {
            state.published.threshold = state.published.threshold.max(quota.threshold);
        }
    }

    fn state(&mut self, quota: &Quota, period: &str) -> &mut RecordedState {
        let key = (quota.budget.clone(), period.to_owned());
        let start = quota.period_end.as_ref().and(quota.period_start.as_ref());
        self.states.entry(key).or_insert_with(|| RecordedState {
            state: BudgetState {
                budget: quota.budget.clone(),
                period: period.to_owned(),
                starts_at: seconds(start).unwrap_or_default(),
                published: PublishedState::default(),
                events: 0,
            },
            cleared_at: None,
        })
    }

    /// The states after the last event. `contents` are budgets of the API.
    pub fn states<'a>(self, contents: impl Iterator<Item = &'a str>) -> Vec<BudgetState> {
        let mut thresholds: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let of_api = contents.filter_map(|content| files::parse(content).ok());
        for budget in of_api.flatten().chain(self.of_files) {
            thresholds.insert(budget.name, budget.thresholds);
        }
        let state = |recorded: RecordedState| {
            let mut state = recorded.state;
            if let Some(percent) = recorded.cleared_at {
                let known = thresholds.get(&state.budget).into_iter().flatten();
                let passed = known.filter(|threshold| u64::from(**threshold) <= percent);
                state.published.threshold = passed.max().copied().unwrap_or_default();
            }
            state
        };
        self.states.into_values().map(state).collect()
    }
}

/// The period of the threshold. It is over if a new period cleared the threshold.
fn counted_period(event: &Event, quota: &Quota) -> String {
    let source = event.id_source.as_ref();
    let counted = source.and_then(|source| {
        let rest = source.entity.strip_prefix("budget/")?;
        let rest = rest
            .strip_prefix(quota.budget.as_str())?
            .strip_prefix('/')?;
        Some(rest.rsplit_once('/')?.0)
    });
    counted.unwrap_or(&quota.period).to_owned()
}

#[cfg(test)]
mod tests;
