//! The right to be at work on an endpoint, as it is known here.
//!
//! The database has the last word: what is written shows the lease's epoch. But a request cannot be taken back, so nothing is sent unless
//! this process said lately enough that it is at work; one that was paused finds that out before it sends anything.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Until when this process may act on its leases. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LeaseValidity(Arc<Mutex<Option<Instant>>>);

impl LeaseValidity {
    /// They hold until then; `None` if nobody else could take them.
    pub fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    fn holds(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_none_or(|until| Instant::now() < until)
    }
}

/// A lease of this process.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Endpoint.
    pub endpoint: String,
    /// Its number: the last holder has the highest.
    pub epoch: i64,
    /// Cancelled when it is another's, or given back at once: what is under way is cut off.
    pub lost: CancellationToken,
    validity: LeaseValidity,
}

impl Lease {
    /// A lease that was taken.
    pub fn new(endpoint: &str, epoch: i64, validity: LeaseValidity) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            epoch,
            lost: CancellationToken::new(),
            validity,
        }
    }

    /// Checked before anything is sent.
    ///
    /// # Errors
    /// If it is given back or another's, or may be by now.
    pub fn check(&self) -> Result<(), Error> {
        if self.validity.holds() && !self.lost.is_cancelled() {
            Ok(())
        } else {
            Err(Error::NotOurs(self.endpoint.clone()))
        }
    }
}
