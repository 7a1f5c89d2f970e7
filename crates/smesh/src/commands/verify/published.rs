//! Compares the ledger with its published checkpoints. Write access to the database is not enough to take those back.

use ledger::{LedgerService, PUBLISHED, UnverifiedLedger, VerifyError, VerifyReport};
use mesh_bus::Bus;
use mesh_events::catalogue::MESH_CHECKPOINTS;
use mesh_events::subject;
use mesh_runtime::{Context, Service};

use crate::reader;

/// Compares every published checkpoint with the ledger. If NATS is unavailable, the report marks the class as unchecked.
pub(super) async fn compare(
    context: &Context,
    origin: &str,
    ledger: &UnverifiedLedger,
    report: &mut VerifyReport,
) -> Result<(), VerifyError> {
    let unchecked = match reader::connect(context, LedgerService::NAME).await {
        Ok(bus) => {
            let compared = all(&bus, origin, ledger).await;
            bus.close().await;
            compared?
        }
        Err(why) => Some(why),
    };
    report.classes.push(ledger::Class {
        name: PUBLISHED,
        unchecked,
    });
    Ok(())
}

/// Why the comparison is incomplete. `None` if the ledger contains all published checkpoints.
async fn all(
    bus: &Bus,
    origin: &str,
    ledger: &UnverifiedLedger,
) -> Result<Option<String>, VerifyError> {
    let mut stored = bus.stored_messages(MESH_CHECKPOINTS, subject::checkpoint(origin));
    let mut compared = false;
    loop {
        let messages = match stored.next().await {
            Ok(messages) => messages,
            Err(error) => return Ok(Some(mesh_runtime::error_chain(&error))),
        };
        if messages.is_empty() {
            return Ok((!compared).then(|| format!("{MESH_CHECKPOINTS} has none of {origin}")));
        }
        compared = true;
        let notes = messages.iter();
        let notes = notes.map(|message| String::from_utf8_lossy(&message.body).into_owned());
        ledger.check_published(notes.collect()).await?;
    }
}
