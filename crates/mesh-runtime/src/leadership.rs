//! Services of which one replica works per cluster: a replica leads for a term and is on standby otherwise.

use std::time::Duration;

use futures_util::future::BoxFuture;
use mesh_bus::{Bus, LeadershipState};
use tokio_util::sync::CancellationToken;

use crate::Context;

/// Pause after a term that ended although no other instance leads.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Context {
    /// Calls `term` whenever this replica begins to lead, until shutdown. A term ends when its token is cancelled: the process stops, or
    /// another replica leads. It may also end by itself, after a write conflict with another writer. `standby` is called when another
    /// replica certainly leads, so that the conditions of a leader no longer affect readiness.
    ///
    /// # Errors
    /// The error of a term.
    pub async fn lead<E>(
        &self,
        bus: &Bus,
        standby: impl Fn(),
        term: impl Fn(CancellationToken) -> BoxFuture<'static, Result<(), E>>,
    ) -> Result<(), E> {
        let service = bus.role();
        let decided = self.health.condition(&format!("{service}.leadership"));
        let candidate = bus.candidate(&self.mesh.cluster);
        let mut role = candidate.role();
        let follow = async {
            let mut reported = LeadershipState::Starting;
            loop {
                let now = *role.borrow_and_update();
                self.health.set_role(service, now.as_str());
                match (reported, now) {
                    (was, now) if was == now => {}
                    (_, LeadershipState::Starting) => {}
                    (_, LeadershipState::Standby) => {
                        standby();
                        tracing::info!(service, "another replica leads, on standby");
                    }
                    (LeadershipState::Unsure, LeadershipState::Leader) => {
                        tracing::info!(
                            service,
                            "leadership confirmed: no other replica led in between"
                        );
                    }
                    (_, LeadershipState::Leader) => tracing::info!(service, "leading"),
                    (_, LeadershipState::Unsure) => {
                        tracing::warn!(
                            service,
                            "lease not readable or renewable, another replica may lead"
                        );
                    }
                }
                match now {
                    LeadershipState::Starting => {}
                    LeadershipState::Standby | LeadershipState::Leader => decided.ok(),
                    LeadershipState::Unsure => decided.fail(
                        "lease not readable or renewable: leader unknown, nothing is published",
                    ),
                }
                reported = now;
                if role.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let terms = async {
            loop {
                let Ok(lease) = candidate.lead(&self.shutdown).await else {
                    return Ok(());
                };
                let stop = CancellationToken::new();
                let ended = {
                    let mut work = term(stop.clone());
                    let ended = tokio::select! {
                        ended = &mut work => Some(ended),
                        () = self.shutdown.cancelled() => None,
                        () = lease.lost.cancelled() => None,
                    };
                    stop.cancel();
                    match ended {
                        Some(ended) => ended,
                        None => work.await,
                    }
                };
                // Released last: a standby must not begin while this replica still writes.
                lease.give_up().await;
                ended?;
                standby();
                tokio::select! {
                    () = self.shutdown.cancelled() => return Ok(()),
                    () = tokio::time::sleep(RETRY_INTERVAL) => {}
                }
            }
        };
        tokio::select! {
            ended = terms => ended,
            () = follow => Ok(()),
        }
    }
}
