//! Components of heterogeneous jobs that had nodes and returned them.

use std::collections::BTreeMap;

use mesh_events::RunKey;

use super::{Observation, Record};

/// slurmctld gives each component of a heterogeneous job a submit time of its own, in seconds.
const MAX_SUBMIT_SPREAD: i64 = 2;

/// Whether a component of a heterogeneous job got nodes before and had to return them, since another component could not start. slurmctld
/// counts no restart for it, but gives it a new submit time (seen on 22.05, 24.11 and 26.05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Returned {
    /// No component was submitted earlier.
    #[default]
    No,
    /// Another component was submitted a moment earlier, or is not known.
    Possibly,
    /// Another component was submitted so much earlier that they were not submitted together.
    Yes,
}

impl Returned {
    /// Compares the submit time of a component with the earliest known one of its heterogeneous job.
    fn of(submit_time: i64, earliest: Option<i64>) -> Self {
        match earliest.map(|earliest| submit_time - earliest) {
            None => Self::Possibly,
            Some(later) if later > MAX_SUBMIT_SPREAD => Self::Yes,
            Some(later) if later > 0 => Self::Possibly,
            Some(_) => Self::No,
        }
    }
}

/// Marks components of heterogeneous jobs that may have returned their nodes. A read by id may show a component without the others;
/// `submitted` has the submit time of a leader that is known from before.
pub fn mark_returned<'a>(
    observations: impl Iterator<Item = &'a mut Observation>,
    submitted: impl Fn(&RunKey) -> Option<i64>,
) {
    let mut components: BTreeMap<u32, Vec<&mut Observation>> = BTreeMap::new();
    for observation in observations.filter(|one| one.record == Record::Controller) {
        if let Some(het) = &observation.job.het {
            components.entry(het.job_id).or_default().push(observation);
        }
    }
    for (leader, components) in components {
        let is_leader = |one: &&mut Observation| one.run.job_id == leader;
        // A read of the leader has every component.
        let mut earliest = match components.iter().any(is_leader) {
            true => components.iter().map(|one| one.run.submit_time).min(),
            false => None,
        };
        if let Some(component) = components.first() {
            let known = submitted(&RunKey {
                job_id: leader,
                ..component.run.clone()
            });
            earliest = earliest.into_iter().chain(known).min();
        }
        for component in components {
            component.returned = Returned::of(component.run.submit_time, earliest);
        }
    }
}

#[cfg(test)]
mod tests {
    use slurm_client::JobRecord;
    use slurm_types::{JobId, UnixTime};

    use super::*;

    #[test]
    fn a_component_with_a_later_submit_time_has_returned_its_nodes() {
        let component = |id: u32, leader: Option<u32>, submit: i64| {
            let record = JobRecord {
                job_id: JobId::new(id),
                het_job_id: leader.and_then(JobId::new),
                het_job_offset: leader.map(|leader| id - leader),
                submit: Some(UnixTime::from_secs(submit)),
                ..JobRecord::default()
            };
            Observation::from_controller("c", &record).unwrap()
        };
        use Returned::{No, Possibly, Yes};
        let mut observations = [
            (component(10, Some(10), 107), Yes),
            (component(11, Some(10), 100), No),
            (component(12, Some(10), 101), Possibly),
            (component(13, None, 200), No),
            (component(20, Some(20), 200), No),
            // Read without their leaders, of which two are known from before.
            (component(31, Some(30), 300), No),
            (component(41, Some(40), 401), Possibly),
            (component(51, Some(50), 500), Possibly),
        ];
        let submitted = |leader: &RunKey| match leader.job_id {
            30 => Some(300),
            40 => Some(400),
            _ => None,
        };
        mark_returned(observations.iter_mut().map(|(one, _)| one), submitted);
        for (observation, expected) in observations {
            assert_eq!(observation.returned, expected, "{}", observation.raw_id);
        }
    }
}
