//! What ingest last read about the scheduler.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::metrics::v1::{Calls, SchedulerState, Share};
use mesh_events::proto::mesh::queue::v1::{License, Limit, Reservation};

/// The state of the scheduler. What was not read, or is stale, is empty.
#[derive(Clone, Debug, Default)]
pub struct Scheduler {
    figures: BTreeMap<String, i64>,
    /// Remote procedure calls by message type.
    pub calls_by_type: Vec<Calls>,
    /// Remote procedure calls by user.
    pub calls_by_user: Vec<Calls>,
    /// Licenses.
    pub licenses: Vec<License>,
    /// Reservations.
    pub reservations: Vec<Reservation>,
    /// Limits of accounts.
    pub limits: Vec<Limit>,
    /// Fairshare of accounts and users.
    pub shares: Vec<Share>,
}

impl Scheduler {
    /// The parts of a state that are recent: its shares, and everything else.
    pub fn recent(state: SchedulerState, is_recent: bool, has_recent_shares: bool) -> Self {
        let mut scheduler = Self::default();
        if has_recent_shares {
            scheduler.shares = state.shares;
        }
        if is_recent {
            let figures = state.figures.into_iter();
            scheduler.figures = figures.map(|figure| (figure.name, figure.value)).collect();
            scheduler.calls_by_type = state.calls_by_type;
            scheduler.calls_by_user = state.calls_by_user;
            scheduler.licenses = state.licenses;
            scheduler.reservations = state.reservations;
            scheduler.limits = state.limits;
        }
        scheduler
    }

    /// A figure of slurmctld. sdiag prints no mean before the first cycle, which slurmctld has as 0.
    pub fn figure(&self, name: &str) -> Option<i64> {
        let is_mean = name.contains("mean") || name == "schedule_cycle_per_minute";
        let cycles = match name.starts_with("bf_") {
            true => "bf_cycle_counter",
            false => "schedule_cycle_total",
        };
        let of_none = || (is_mean && self.figures.get(cycles) == Some(&0)).then_some(0);
        self.figures.get(name).copied().or_else(of_none)
    }

    /// Shares of accounts, without those of their users.
    pub fn account_shares(&self) -> impl Iterator<Item = &Share> {
        self.shares.iter().filter(|share| share.user.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_events::proto::mesh::metrics::v1::Figure;

    fn state(cycles: i64) -> SchedulerState {
        SchedulerState {
            figures: vec![Figure {
                name: "bf_cycle_counter".into(),
                value: cycles,
            }],
            shares: vec![Share::default()],
            ..SchedulerState::default()
        }
    }

    #[test]
    fn only_a_mean_of_no_cycles_is_0() {
        let scheduler = Scheduler::recent(state(0), true, false);
        assert_eq!(scheduler.figure("bf_depth_mean"), Some(0));
        assert_eq!(scheduler.figure("bf_cycle_sum"), None);
        assert_eq!(scheduler.figure("schedule_cycle_mean"), None, "not read");
        let scheduler = Scheduler::recent(state(3), true, false);
        assert_eq!(scheduler.figure("bf_depth_mean"), None);
    }

    #[test]
    fn stale_parts_are_left_out_on_their_own() {
        let scheduler = Scheduler::recent(state(3), false, true);
        assert_eq!(scheduler.figure("bf_cycle_counter"), None);
        assert_eq!(scheduler.shares.len(), 1);
        let scheduler = Scheduler::recent(state(3), true, false);
        assert!(scheduler.figure("bf_cycle_counter").is_some() && scheduler.shares.is_empty());
    }
}
