//! The newest payload of each run, compressed. With 100,000 jobs these are most of the memory of ingest, and few are read again before the
//! run ends.
//!
//! Payloads are short and similar, so each is compressed with a dictionary of earlier ones.

use std::collections::HashMap;
use std::sync::Arc;

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use mesh_events::RunKey;
use mesh_events::proto::mesh::job::v1::Job;
use prost::Message as _;

use crate::domain::{LocalRunKey, Owner};

/// Number of payloads in a dictionary.
const DICTIONARY_SAMPLES: usize = 8;
/// Maximum number of payloads compressed with one dictionary. The queue changes, and so does what its jobs have in common.
const MAX_PAYLOADS_PER_DICTIONARY: usize = 4_096;

#[derive(Default)]
pub(super) struct PayloadCache {
    runs: HashMap<LocalRunKey, CompressedPayload>,
    dictionary: Arc<Vec<u8>>,
    /// Collected for the next dictionary.
    samples: Vec<Vec<u8>>,
    inserted: usize,
    sampled: usize,
}

struct CompressedPayload {
    bytes: Box<[u8]>,
    dictionary: Arc<Vec<u8>>,
}

impl PayloadCache {
    /// Returns the last payload of a run, and its owner.
    pub(super) fn get(&self, run: &RunKey) -> Option<(Job, Owner)> {
        let packed = self.runs.get(&run.into())?;
        // Decompression fails only if the value was not written by `insert`.
        let bytes = decompress_size_prepended_with_dict(&packed.bytes, &packed.dictionary).ok()?;
        let (length, rest) = bytes.split_first_chunk()?;
        let (owner, job) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Some((Job::decode(job).ok()?, serde_json::from_slice(owner).ok()?))
    }

    /// Whether a payload of the run is stored.
    pub(super) fn has(&self, run: &RunKey) -> bool {
        self.runs.contains_key(&run.into())
    }

    pub(super) fn insert(&mut self, run: &RunKey, job: &Job, owner: &Owner) {
        let owner = serde_json::to_vec(owner).unwrap_or_default();
        let length = u32::try_from(owner.len()).unwrap_or_default();
        let mut bytes = Vec::with_capacity(4 + owner.len() + job.encoded_len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&owner);
        bytes.extend_from_slice(&job.encode_to_vec());
        let packed = compress_prepend_size_with_dict(&bytes, &self.dictionary);
        let packed = CompressedPayload {
            bytes: packed.into_boxed_slice(),
            dictionary: Arc::clone(&self.dictionary),
        };
        self.runs.insert(run.into(), packed);
        self.add_sample(bytes);
    }

    /// Samples payloads and builds a dictionary when there are enough. The first dictionaries follow soon, later ones at growing
    /// intervals.
    fn add_sample(&mut self, bytes: Vec<u8>) {
        self.inserted += 1;
        let apart = (self.inserted / DICTIONARY_SAMPLES)
            .clamp(1, MAX_PAYLOADS_PER_DICTIONARY / DICTIONARY_SAMPLES);
        if self.inserted - self.sampled < apart {
            return;
        }
        self.sampled = self.inserted;
        self.samples.push(bytes);
        if self.samples.len() == DICTIONARY_SAMPLES {
            self.dictionary = Arc::new(std::mem::take(&mut self.samples).concat());
        }
    }

    pub(super) fn remove(&mut self, run: &RunKey) {
        self.runs.remove(&run.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_come_back_and_are_small() {
        let run = |n| RunKey {
            cluster: "c".to_owned(),
            job_id: n,
            task_id: None,
            submit_time: 100,
            attempt: 0,
        };
        let seen = |n: u32| {
            let job = Job {
                job_id: n,
                run: run(n).entity_key(),
                name: format!("train-{}", n % 17),
                partition: "gpu".to_owned(),
                work_dir: format!("/home/user{}/projects/a-long-name/run-{n}", n % 5),
                std_out: format!("/home/user{}/projects/a-long-name/slurm-{n}.out", n % 5),
                reason: "Resources".to_owned(),
                ..Job::default()
            };
            let owner = Owner {
                user: format!("user{}", n % 5),
                uid: Some(20_000 + n % 5),
                account: "physics".to_owned(),
            };
            (job, owner)
        };
        let mut last = PayloadCache::default();
        let (mut plain, count) = (0, 10_000);
        for n in 0..count {
            let (job, owner) = seen(n);
            plain += job.encoded_len();
            last.insert(&run(n), &job, &owner);
        }
        for n in 0..count {
            assert_eq!(last.get(&run(n)), Some(seen(n)), "{n}");
        }
        let packed: usize = last.runs.values().map(|packed| packed.bytes.len()).sum();
        assert!(packed * 2 < plain, "{packed} of {plain}");
        last.remove(&run(7));
        assert!(!last.has(&run(7)) && last.get(&run(7)).is_none());
    }
}
