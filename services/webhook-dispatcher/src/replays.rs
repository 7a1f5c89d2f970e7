//! An event that somebody had told once more, for one endpoint.
//!
//! The endpoint's filter counts, its greatest age does not, and what was delivered before is delivered again: it is remembered once for
//! each replay. Arrays are told as digests where they always are.

use chrono::Utc;

use crate::adapters::store::Delivery;
use crate::error::Error;
use crate::handlers::Read;
use crate::lane::Lane;

/// Tells it by itself, and remembers it under this id.
///
/// # Errors
/// If the database does not read or write, or the endpoint is not ours any more; the event comes again.
pub async fn take(lane: &Lane, read: &Read<'_>, id: String) -> Result<(), Error> {
    let (endpoint, kind, event) = (&lane.endpoint, read.kind, &read.event);
    let told_alone = !lane.companions.contains(&kind) && endpoint.format.takes(kind, event);
    if !told_alone || !endpoint.filter.matches(kind, event) {
        return Ok(());
    }
    if lane.shared.store.knows(&endpoint.name, &id).await? {
        return Ok(());
    }
    let delivery = Delivery::of(&endpoint.name, id, event, read.message, Utc::now());
    lane.deliver(delivery, None).await
}
