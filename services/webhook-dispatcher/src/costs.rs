//! Costs that came a moment before the message they complete was stored.
//!
//! Messages of one endpoint are handled several at a time, so a cost may overtake the event it follows from. Whoever comes second
//! finds the other: the message looks here after it was stored, the cost looks into the database after it was put here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Long enough for any overtaking.
const KEPT: Duration = Duration::from_secs(60);

/// Recent costs by pair.
#[derive(Default)]
pub struct Costs {
    recent: Mutex<HashMap<String, (Instant, Vec<u8>)>>,
}

impl Costs {
    /// Keeps a cost for a while.
    pub fn put(&self, pair: String, cost: Vec<u8>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= 1_024 {
            recent.retain(|_, (since, _)| since.elapsed() < KEPT);
        }
        // A storm of more than this within a minute: those messages go without.
        if recent.len() < 16_384 {
            recent.insert(pair, (Instant::now(), cost));
        }
    }

    /// Takes a cost out.
    pub fn take(&self, pair: &str) -> Option<Vec<u8>> {
        self.recent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(pair)
            .map(|(_, cost)| cost)
    }
}
