//! A loop that runs only while it has something to do: an endpoint for which nothing happens has no task.

use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const REQUESTED: u8 = 2;

/// Whether a loop runs. No request is lost: one that comes while the loop ends makes it go on.
#[derive(Debug, Default)]
pub struct OnDemand(AtomicU8);

impl OnDemand {
    /// Requests a run. True if the caller has to start the loop.
    pub fn request(&self) -> bool {
        let next = |state| Some(if state == IDLE { RUNNING } else { REQUESTED });
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        before == Ok(IDLE)
    }

    /// Called by the loop when it has nothing to do. False if it was requested again, and goes on.
    pub fn ends(&self) -> bool {
        let next = |state| Some(if state == REQUESTED { RUNNING } else { IDLE });
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        before != Ok(REQUESTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_during_a_run_makes_one_more() {
        let task = OnDemand::default();
        assert!(task.request(), "started");
        assert!(!task.request() && !task.request(), "it runs");
        assert!(!task.ends(), "once more");
        assert!(task.ends());
        assert!(task.request(), "started again");
    }
}
