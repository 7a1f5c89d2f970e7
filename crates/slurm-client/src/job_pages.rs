//! Full records of many jobs, in pages.

use std::collections::{BTreeMap, HashMap};
use std::{fmt, io, vec};

use slurm_types::JobId;

use crate::parse::DUPLICATE_ID;
use crate::spill::Spill;
use crate::{Error, JobLookup, JobRecord};

/// Full records of jobs in the requested order. For 100,000 jobs it holds their offsets in memory, not the records.
#[derive(Debug)]
pub struct JobPages {
    order: vec::IntoIter<JobId>,
    stored: SpilledJobs,
    /// Records that were looked up individually.
    asked: HashMap<JobId, JobRecord>,
    unclear: Vec<(JobId, String)>,
}

impl JobPages {
    /// Pages of a lookup that is in memory.
    pub fn of(order: Vec<JobId>, answer: JobLookup) -> Self {
        Self::new(order, SpilledJobs::default(), answer)
    }

    /// Pages of spilled records and individual lookups.
    pub(crate) fn new(order: Vec<JobId>, stored: SpilledJobs, answer: JobLookup) -> Self {
        let asked = answer.found.into_iter();
        Self {
            order: order.into_iter(),
            stored,
            asked: asked
                .filter_map(|record| Some((record.job_id?, record)))
                .collect(),
            unclear: answer.unclear,
        }
    }

    /// The records of the next jobs; none after the last. Jobs without a clear record are left out.
    ///
    /// # Errors
    /// If spilled records cannot be read.
    pub fn next(&mut self, limit: usize) -> Result<Vec<JobRecord>, Error> {
        let mut records = Vec::new();
        while records.len() < limit
            && let Some(id) = self.order.next()
        {
            match self.asked.remove(&id) {
                Some(record) => records.push(record),
                None => records.extend(self.stored.get(id).map_err(unreadable)?),
            }
        }
        Ok(records)
    }

    /// Jobs for which the response proves nothing, with the reason.
    pub fn unclear(&self) -> &[(JobId, String)] {
        &self.unclear
    }
}

fn unreadable(source: io::Error) -> Error {
    Error::Io {
        command: "scontrol",
        source,
    }
}

/// Spilled records, by job.
#[derive(Default)]
pub(crate) struct SpilledJobs {
    spill: Spill,
    /// Offset and length of each record, sorted by job after [`Self::finish`]. Length 0 if it is unclear.
    places: Vec<(JobId, usize, usize)>,
    problems: BTreeMap<JobId, &'static str>,
}

impl fmt::Debug for SpilledJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpilledJobs")
            .field("jobs", &self.places.len())
            .finish_non_exhaustive()
    }
}

impl SpilledJobs {
    /// Adds a record.
    pub(crate) fn push(
        &mut self,
        id: JobId,
        record: Result<&JobRecord, &'static str>,
    ) -> io::Result<()> {
        let from = self.spill.len();
        match record {
            Ok(record) => self.spill.push(&serde_json::to_vec(record)?),
            Err(problem) => {
                self.problems.insert(id, problem);
            }
        }
        self.places.push((id, from, self.spill.len() - from));
        Ok(())
    }

    /// Call after the last record: an id that occurs twice is unclear.
    pub(crate) fn finish(&mut self) {
        self.places.sort_unstable_by_key(|(id, ..)| *id);
        let twice = self.places.windows(2).filter(|two| two[0].0 == two[1].0);
        self.problems
            .extend(twice.map(|two| (two[0].0, DUPLICATE_ID)));
        let problems = &self.problems;
        self.places.retain(|(id, ..)| !problems.contains_key(id));
    }

    /// True if there is a clear record.
    pub(crate) fn has(&self, id: JobId) -> bool {
        self.place(id).is_some()
    }

    /// Why there is no clear record.
    pub(crate) fn problem(&self, id: JobId) -> Option<&'static str> {
        self.problems.get(&id).copied()
    }

    fn place(&self, id: JobId) -> Option<(usize, usize)> {
        let at = self.places.binary_search_by_key(&id, |(id, ..)| *id).ok()?;
        Some((self.places[at].1, self.places[at].2))
    }

    fn get(&self, id: JobId) -> io::Result<Option<JobRecord>> {
        let Some((from, len)) = self.place(id) else {
            return Ok(None);
        };
        Ok(Some(serde_json::from_slice(&self.spill.read(from, len)?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_in_the_order_they_were_asked_for_and_doubtful_ones_do_not() {
        let id = |id| JobId::new(id).unwrap();
        let record = |n| JobRecord {
            job_id: Some(id(n)),
            name: format!("job {n}"),
            ..JobRecord::default()
        };
        let mut stored = SpilledJobs::default();
        for n in [5, 1, 9, 3, 9] {
            stored.push(id(n), Ok(&record(n))).unwrap();
        }
        stored.push(id(7), Err("odd")).unwrap();
        stored.finish();
        assert!(stored.has(id(5)) && !stored.has(id(9)) && !stored.has(id(7)));
        assert_eq!(
            [9, 7, 2].map(|n| stored.problem(id(n))),
            [Some(DUPLICATE_ID), Some("odd"), None]
        );
        let asked = JobLookup {
            found: vec![record(9)],
            ..JobLookup::default()
        };
        let order = [9, 3, 7, 1, 2, 5].map(id).to_vec();
        let mut parts = JobPages::new(order, stored, asked);
        let mut next = || {
            let records = parts.next(2).unwrap();
            records
                .into_iter()
                .map(|record| record.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(next(), ["job 9", "job 3"]);
        assert_eq!(next(), ["job 1", "job 5"]);
        assert!(next().is_empty());
    }
}
