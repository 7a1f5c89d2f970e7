//! Leases of endpoints as held by this process.
//!
//! The database enforces leases by their epochs on every write. A request, however, cannot be undone. So nothing is
//! sent unless this process sent a heartbeat recently: a process that was suspended notices before its next request.

use std::time::Instant;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Time until which this process may use its leases. `None` if no other process can take them.
pub type LeaseValidity = watch::Receiver<Option<Instant>>;

/// A lease held by this process.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Name of the endpoint.
    pub endpoint: String,
    /// Fencing token: the latest holder has the highest.
    pub epoch: i64,
    /// Cancelled when the lease is lost or must be given up immediately. Aborts the requests in flight.
    pub lost: CancellationToken,
    validity: LeaseValidity,
}

impl Lease {
    /// A newly acquired lease.
    pub fn new(endpoint: &str, epoch: i64, validity: LeaseValidity) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            epoch,
            lost: CancellationToken::new(),
            validity,
        }
    }

    /// Checks that the lease is valid. Called before each request.
    ///
    /// # Errors
    /// If it was released, or another dispatcher holds it or may hold it by now.
    pub fn check(&self) -> Result<(), Error> {
        let until = *self.validity.borrow();
        let is_valid = until.is_none_or(|until| Instant::now() < until);
        if is_valid && !self.lost.is_cancelled() {
            Ok(())
        } else {
            Err(Error::NotOurs(self.endpoint.clone()))
        }
    }
}
