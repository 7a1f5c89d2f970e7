//! Reads from NATS, without the rights of a service where those of a reader are enough.

use std::time::Duration;

use mesh_bus::Bus;
use mesh_runtime::Context;
use tokio::time::timeout;

/// Role for reading.
pub const READER: &str = "reader";
/// How long NATS may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects as configured, with the credentials of this role, or as a reader to the nats-server of `smesh up`.
///
/// # Errors
/// Why NATS cannot be reached, as text.
pub async fn connect(context: &Context, configured_role: &str) -> Result<Bus, String> {
    connect_with(context, configured_role, READER).await
}

/// As [`connect`], with the credentials of the role in both cases.
///
/// # Errors
/// Why NATS cannot be reached, as text.
pub async fn connect_as(context: &Context, role: &str) -> Result<Bus, String> {
    connect_with(context, role, role).await
}

async fn connect_with(
    context: &Context,
    configured_role: &str,
    role_of_up: &str,
) -> Result<Bus, String> {
    let mut config = context.mesh.nats.clone();
    let mut role = configured_role;
    if config.url.is_empty() {
        let private = context.mesh.data_dir.join("private");
        let port = std::fs::read_to_string(private.join("nats.port"))
            .map_err(|_| "no NATS is known: mesh.nats.url is not set, and no `smesh up` runs")?;
        let password = private.join("nats-passwords").join(role_of_up);
        config.url = format!("nats://127.0.0.1:{}", port.trim());
        config.user = Some(role_of_up.to_owned());
        config.password_file = Some(password);
        role = role_of_up;
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
