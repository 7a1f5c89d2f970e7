//! Compares the ledger with its published checkpoints. Write access to the database is not enough to take those back.

use std::time::Duration;

use ledger::{LedgerService, PUBLISHED, UnverifiedLedger, VerifyError, VerifyReport};
use mesh_bus::Bus;
use mesh_events::catalogue::MESH_CHECKPOINTS;
use mesh_events::subject;
use mesh_runtime::{Context, Service};
use tokio::time::timeout;

/// How long NATS may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Role for reading from the nats-server of `smesh up`.
const READER: &str = "reader";

/// Compares every published checkpoint with the ledger. If NATS is unavailable, the report marks the class as unchecked.
pub(super) async fn compare(
    context: &Context,
    origin: &str,
    ledger: &UnverifiedLedger,
    report: &mut VerifyReport,
) -> Result<(), VerifyError> {
    let unchecked = match bus(context).await {
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

/// Connects as configured, or as a reader to the nats-server of `smesh up`.
async fn bus(context: &Context) -> Result<Bus, String> {
    let mut config = context.mesh.nats.clone();
    let mut role = <LedgerService as Service>::NAME;
    if config.url.is_empty() {
        let private = context.mesh.data_dir.join("private");
        let port = std::fs::read_to_string(private.join("nats.port"))
            .map_err(|_| "no NATS is known: mesh.nats.url is not set, and no `smesh up` runs")?;
        let password = private.join("nats-passwords").join(READER);
        config.url = format!("nats://127.0.0.1:{}", port.trim());
        config.user = Some(READER.to_owned());
        config.password_file = Some(password);
        role = READER;
    }
    config.provision = false;
    let url = config.redacted_url();
    let bus = Bus::connect(&config, role)
        .await
        .map_err(|error| mesh_runtime::error_chain(&error))?;
    let connected = async {
        while !bus.connected() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match timeout(ANSWER_TIMEOUT, connected).await {
        Ok(()) => Ok(bus),
        Err(_) => Err(bus
            .problem()
            .unwrap_or_else(|| format!("NATS at {url} does not answer"))),
    }
}
