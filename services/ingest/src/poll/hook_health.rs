//! Determines whether hooks ring, from the starts they could have reported: a poll that finds unreported starts is the only sign of
//! silent hooks.

use std::sync::{Mutex, PoisonError};

use crate::metrics;

/// Minimum number of starts for a conclusion. Past eight times as many, earlier counts are halved.
const MIN_STARTS: u32 = 8;

/// How reliably hooks ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookStatus {
    /// Too few starts to tell.
    #[default]
    Unknown,
    /// They ring for nearly all jobs.
    Healthy,
    /// They ring for some jobs.
    Partial,
    /// They do not ring although jobs start.
    Silent,
}

/// Observed activity of hooks.
#[derive(Debug, Default)]
pub struct HookHealth(Mutex<HookCounts>);

#[derive(Debug, Default)]
struct HookCounts {
    /// Jobs that hooks rang for and that Slurm knew.
    doorbells: u32,
    /// Starts that only a poll found.
    found: u32,
    state: HookStatus,
}

impl HookHealth {
    /// Records that hooks rang for `jobs` jobs that Slurm knows.
    pub fn doorbells(&self, jobs: usize) {
        self.note(jobs, 0);
    }

    /// Records that a poll found `starts` unreported starts.
    pub fn found_by_poll(&self, starts: usize) {
        self.note(0, starts);
    }

    /// Whether hooks report nearly everything, so that polls are only a safety net.
    pub fn is_healthy(&self) -> bool {
        let health = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        health.state == HookStatus::Healthy
    }

    fn note(&self, doorbells: usize, found: usize) {
        if doorbells + found == 0 {
            return;
        }
        let (before, after) = {
            let mut health = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let before = health.state;
            health.note(doorbells, found);
            (before, health.state)
        };
        if before == after {
            return;
        }
        metrics::hooks_silent(after == HookStatus::Silent);
        match (before, after) {
            (_, HookStatus::Silent) => tracing::warn!(
                "jobs start but no doorbell arrives: starts and ends are found later, by polls; `smesh hooks print` prints the lines for slurm.conf, `smesh doctor` checks them"
            ),
            (HookStatus::Silent, _) => tracing::info!("hooks available again"),
            _ => tracing::debug!(?before, ?after, "hooks"),
        }
    }
}

impl HookCounts {
    fn note(&mut self, doorbells: usize, found: usize) {
        // One array must not outweigh everything before it.
        let count = |number| {
            u32::try_from(number)
                .unwrap_or(u32::MAX)
                .min(4 * MIN_STARTS)
        };
        self.doorbells = self.doorbells.saturating_add(count(doorbells));
        self.found = self.found.saturating_add(count(found));
        while self.doorbells.saturating_add(self.found) > 8 * MIN_STARTS {
            self.doorbells /= 2;
            self.found /= 2;
        }
        self.state = match (self.doorbells, self.found) {
            (doorbells, found) if doorbells.saturating_add(found) < MIN_STARTS => self.state,
            (0, _) => HookStatus::Silent,
            (doorbells, found) if doorbells >= found.saturating_mul(3) => HookStatus::Healthy,
            _ => HookStatus::Partial,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: &[(usize, usize)]) -> HookStatus {
        let mut health = HookCounts::default();
        for (doorbells, found) in steps {
            health.note(*doorbells, *found);
        }
        health.state
    }

    #[test]
    fn little_proves_nothing() {
        assert_eq!(after(&[(0, 7)]), HookStatus::Unknown);
        assert_eq!(after(&[(7, 0)]), HookStatus::Unknown);
    }

    #[test]
    fn hooks_that_never_ring_are_silent_and_those_that_mostly_ring_are_well() {
        assert_eq!(after(&[(0, 8)]), HookStatus::Silent);
        assert_eq!(after(&[(8, 0)]), HookStatus::Healthy);
        assert_eq!(after(&[(30, 10)]), HookStatus::Healthy);
        assert_eq!(after(&[(10, 10)]), HookStatus::Partial);
    }

    #[test]
    fn the_past_is_outweighed() {
        let mut steps = vec![(1_000, 0)];
        steps.extend([(0, 8); 60]);
        assert_eq!(after(&steps), HookStatus::Silent);
        steps.extend([(8, 0); 60]);
        assert_eq!(after(&steps), HookStatus::Healthy);
    }
}
