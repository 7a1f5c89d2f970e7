//! Copies of what former writers of this process wrote, with which their successors restore a bucket that was lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An older copy may be outdated: another process may have written since.
const WRITE_CACHE_TTL: Duration = Duration::from_secs(60);

/// Values written by a writer, by key, compressed.
pub(super) type Written = BTreeMap<String, Vec<u8>>;

/// Values written by former writers of this process, by bucket and cluster, and when each stopped writing.
#[derive(Default)]
pub(crate) struct FormerStates(Mutex<HashMap<(String, String), (Instant, Written)>>);

impl FormerStates {
    pub(super) fn record_written(&self, bucket: &str, cluster: &str, written: Written) {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (bucket.to_owned(), cluster.to_owned());
        states.insert(key, (Instant::now(), written));
    }

    pub(super) fn take(&self, bucket: &str, cluster: &str) -> Option<Written> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, written) = states.remove(&(bucket.to_owned(), cluster.to_owned()))?;
        (at.elapsed() < WRITE_CACHE_TTL && !written.is_empty()).then_some(written)
    }
}
