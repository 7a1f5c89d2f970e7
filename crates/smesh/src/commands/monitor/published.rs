//! The published checkpoints that a monitor follows.

use chrono::Utc;
use mesh_bus::Bus;
use mesh_runtime::Context;
use tokio_util::sync::CancellationToken;

use crate::cli::Global;
use crate::client::UnguardedClient;
use crate::error::Error;
use crate::known_ledgers::KnownLedgers;
use crate::known_ledgers::published::{self, CompareError, Compared};
use crate::reader::{self, READER};
use crate::settings;

/// How far published checkpoints were compared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Size of the largest one since the start.
    pub size: Option<u64>,
    /// Time of the last comparison, in seconds since 1970. Zero if there was none.
    pub compared_at: i64,
}

/// Reads published checkpoints as configured.
pub(super) struct Follower {
    context: Context,
    bus: Option<Bus>,
    pub progress: Progress,
}

impl Follower {
    /// # Errors
    /// If there is no configuration, which would name the server.
    pub(super) fn new(global: &Global) -> Result<Self, Error> {
        let context = settings::load(global, CancellationToken::new()).map_err(|error| {
            Error::Usage(format!(
                "published checkpoints cannot be compared: {}; [mesh.nats] in mesh.toml names the NATS server and the credentials of the role {READER}, or pass --api-only",
                mesh_runtime::error_chain(&error)
            ))
        })?;
        Ok(Self {
            context,
            bus: None,
            progress: Progress::default(),
        })
    }

    /// Compares what was published since the last time.
    pub(super) async fn compare(
        &mut self,
        client: &UnguardedClient,
        file: &KnownLedgers,
    ) -> Result<Compared, Error> {
        let unread =
            |why: String| Error::Failed(format!("published checkpoints not compared: {why}"));
        let bus = match self.bus.take() {
            Some(bus) => bus,
            None => reader::connect(&self.context, READER)
                .await
                .map_err(unread)?,
        };
        let compared = match published::compare(client, file, &bus).await {
            Ok(compared) => compared,
            Err(CompareError::Ledger(error)) => {
                self.bus = Some(bus);
                return Err(error);
            }
            // The next comparison connects again: the nats-server of `smesh up` may have another port.
            Err(error @ CompareError::Bus(_)) => {
                bus.close().await;
                return Err(unread(mesh_runtime::error_chain(&error)));
            }
        };
        self.bus = Some(bus);
        self.progress.compared_at = Utc::now().timestamp();
        if let Compared::Consistent { size, .. } = &compared {
            self.progress.size = self.progress.size.max(*size);
        }
        Ok(compared)
    }
}
