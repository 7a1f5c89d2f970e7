//! Services of which one replica works per cluster: a replica leads for a term and is on standby otherwise.

use std::time::Duration;

use futures_util::future::BoxFuture;
use mesh_bus::{Bus, Candidate, LeadershipState};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Condition, Context};

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
        let candidate = bus.candidate(&self.mesh.cluster);
        tokio::select! {
            ended = self.run_terms(bus, &candidate, &standby, term) => ended,
            () = self.report_leadership(bus.role(), candidate.state(), &standby) => Ok(()),
        }
    }

    /// Leads for one term after the other, until shutdown.
    async fn run_terms<E>(
        &self,
        bus: &Bus,
        candidate: &Candidate,
        standby: &impl Fn(),
        term: impl Fn(CancellationToken) -> BoxFuture<'static, Result<(), E>>,
    ) -> Result<(), E> {
        loop {
            let Ok(lease) = candidate.lead(&self.shutdown).await else {
                return Ok(());
            };
            let stop = CancellationToken::new();
            let mut work = term(stop.clone());
            let ended_by_itself = tokio::select! {
                result = &mut work => Some(result),
                () = self.shutdown.cancelled() => None,
                () = lease.lost.cancelled() => None,
            };
            stop.cancel();
            let result = match ended_by_itself {
                Some(result) => result,
                None => work.await,
            };
            // Released last: a standby must not begin while this replica still writes.
            lease.give_up().await;
            bus.drop_publish_failures();
            result?;
            standby();
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
        }
    }

    /// Reports every change of this replica's leadership in log and readiness. Never returns.
    async fn report_leadership(
        &self,
        service: &str,
        mut states: watch::Receiver<LeadershipState>,
        standby: &impl Fn(),
    ) {
        let condition = self.health.condition(&format!("{service}.leadership"));
        let mut reported = LeadershipState::Starting;
        loop {
            let state = *states.borrow_and_update();
            self.health.set_leadership(service, state.as_str());
            set_condition(&condition, state);
            if state != reported {
                if state == LeadershipState::Standby {
                    standby();
                }
                log_transition(service, reported, state);
                reported = state;
            }
            if states.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

fn set_condition(condition: &Condition, state: LeadershipState) {
    match state {
        LeadershipState::Starting => {}
        LeadershipState::Standby | LeadershipState::Leader => condition.ok(),
        LeadershipState::Unsure => {
            condition.fail("lease not readable or renewable: leader unknown, nothing is published")
        }
    }
}

fn log_transition(service: &str, from: LeadershipState, to: LeadershipState) {
    match (from, to) {
        (_, LeadershipState::Starting) => {}
        (_, LeadershipState::Standby) => {
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
}
