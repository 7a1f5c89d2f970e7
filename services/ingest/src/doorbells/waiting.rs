//! Jobs that somebody rings for: who waits, and what the hooks' evidence adds to the controller's record.

use std::collections::HashMap;

use slurm_types::JobBaseState;
use tokio::time::Instant;

use super::Ring;
use crate::collector::Reading;
use crate::domain::{Book, Sighting, Tracked};

/// A job somebody waits for.
pub(super) struct Waiting {
    pub(super) rings: Vec<Ring>,
    pub(super) due: Instant,
    pub(super) looks: u32,
    /// Whether nobody had heard of it; `None` until it is looked up.
    pub(super) stranger: Option<bool>,
    /// The array on whose word it is asked for, until it is known whether that is true.
    pub(super) vouched_by: Option<u32>,
}

/// Whether all who ring came again with an end that was told meanwhile.
pub(super) fn is_settled(job: &Waiting, book: &Book) -> bool {
    let is_told = |end: &Sighting| book.get(&end.run).is_some_and(Tracked::over);
    let settled = |ring: &Ring| ring.comes_again && ring.end.as_deref().is_some_and(is_told);
    !job.rings.is_empty() && job.rings.iter().all(settled)
}

pub(super) fn note(waiting: &mut HashMap<u32, Waiting>, ring: Ring) {
    let job = waiting.entry(ring.job_id).or_insert_with(|| Waiting {
        rings: Vec::new(),
        due: Instant::now(),
        looks: 0,
        stranger: None,
        vouched_by: None,
    });
    job.due = Instant::now();
    job.looks = 0;
    job.rings.push(ring);
}

/// Puts the controller's records and jobcomp's evidence together, oldest run first. Also tells whether they contradict each other: then
/// the evidence counts for nothing, since slurmctld writes its own record before it calls jobcomp, and this one was read afterwards.
pub(super) fn merge(job: &mut Waiting, found: Vec<Sighting>) -> (Vec<Reading>, bool) {
    let mut contradicted = false;
    let mut sightings = found;
    for ring in &mut job.rings {
        // Used once: a later look must not meet it again.
        let Some(end) = ring.end.take() else { continue };
        let Some(position) = sightings
            .iter()
            .position(|sighting| sighting.run == end.run)
        else {
            // The job is already in another run; this is the end of the one before. A run that the controller
            // should still have is not there: not believed.
            if sightings
                .iter()
                .any(|sighting| sighting.run.submit_time > end.run.submit_time)
            {
                sightings.push(*end);
            } else {
                contradicted = true;
            }
            continue;
        };
        if sightings[position].in_flux() {
            let sighting = sightings.swap_remove(position);
            sightings.push(sighting.completed_by(&end));
        } else if sightings[position].end_kind().is_none() {
            // A run that was requeued in its first second may keep its submit time (22.05).
            let restarted = end.requeued
                && sightings[position]
                    .restarts
                    .is_some_and(|restarts| restarts > 0);
            match sightings[position].base {
                Some(JobBaseState::Pending) if restarted => sightings.insert(position, *end),
                _ => contradicted = true,
            }
        }
    }
    sightings.sort_by_key(|sighting| sighting.run.submit_time);
    let links = || job.rings.iter().map(|ring| ring.span.clone()).collect();
    let readings = sightings
        .into_iter()
        .map(|sighting| Reading {
            links: links(),
            ..Reading::new(sighting)
        })
        .collect();
    (readings, contradicted)
}
