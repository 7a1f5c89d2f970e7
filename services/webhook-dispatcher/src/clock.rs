//! The time by which deliveries are planned and noted. Signatures alone have the host's own: they tell it to somebody else.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use chrono::{DateTime, Utc};

use crate::domain::clock::SteadyClock;

/// One for the process: it has one clock.
static CLOCK: Mutex<Option<SteadyClock>> = Mutex::new(None);

/// What time it is, without steps ahead that do not last.
pub fn now() -> DateTime<Utc> {
    let (host, at) = (Utc::now(), Instant::now());
    let mut clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    clock
        .get_or_insert_with(|| SteadyClock::new(host, at))
        .read(host, at)
}
