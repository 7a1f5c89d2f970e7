//! The clock for scheduling and storing deliveries. Only signatures use the host's clock, as receivers compare them
//! with theirs.

pub mod steady;

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use chrono::{DateTime, Utc};

use steady::SteadyClock;

/// One per process, as there is one host clock.
static CLOCK: LazyLock<Mutex<SteadyClock>> =
    LazyLock::new(|| Mutex::new(SteadyClock::new(Utc::now(), Instant::now())));

/// The current time. Ignores a step ahead until it has lasted.
pub fn now() -> DateTime<Utc> {
    let (host, at) = (Utc::now(), Instant::now());
    let mut clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    clock.read(host, at)
}
