//! What commands print about the scheduler, for metrics: statistics, licenses, reservations, limits of accounts, and fairshare.
//!
//! Off unless configured. The newest state goes with the counts of jobs of each poll, so that exporters ask Slurm nothing.

use std::time::Duration;

use chrono::Utc;
use mesh_events::proto::mesh::metrics::v1::{Calls, Figure, SchedulerState, Share};
use mesh_events::timestamp;
use prost::Message as _;
use slurm_client::{CallStats, Error as SlurmError, ShareRecord, Slurm};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::config::StatisticsConfig;
use crate::scheduling::{license, limits, reservation};
use crate::sources::unless_stopped;

/// Largest size in bytes: it goes with every poll, and has to fit into the first chunk of the counts.
const MAX_BYTES: usize = 400_000;

/// Reads the state of the scheduler.
pub struct SchedulerStateReader {
    /// Slurm client.
    pub slurm: Slurm,
    /// Intervals.
    pub config: StatisticsConfig,
    /// Where the newest state goes.
    pub newest: watch::Sender<Option<SchedulerState>>,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

impl SchedulerStateReader {
    /// Reads until shutdown.
    ///
    /// # Errors
    /// None but on shutdown.
    pub async fn run(self) -> Result<(), Error> {
        let StatisticsConfig {
            interval,
            shares_interval,
        } = self.config;
        let mut state = SchedulerState {
            interval_seconds: seconds(interval),
            shares_interval_seconds: seconds(shares_interval),
            ..SchedulerState::default()
        };
        let mut due =
            [interval, shares_interval].map(|interval| (!interval.is_zero()).then(Instant::now));
        while let Some(next) = due.into_iter().flatten().min() {
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(next.saturating_duration_since(Instant::now())) => {}
            }
            let began = Instant::now();
            let is_due = due.map(|at| at.is_some_and(|at| at <= began));
            let read = async {
                if is_due[0] {
                    self.read(&mut state).await?;
                }
                if is_due[1] {
                    self.read_shares(&mut state).await?;
                }
                Ok::<_, Error>(())
            };
            match read.await {
                Ok(()) => {}
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            }
            self.newest
                .send_replace(Some(fitting(state.clone(), MAX_BYTES)));
            // At most a tenth of a slow controller's time.
            let pause = began.elapsed().saturating_mul(9);
            for (at, interval) in due.iter_mut().zip([interval, shares_interval]) {
                if at.is_some_and(|at| at <= began) {
                    *at = Some(began + interval.max(pause));
                }
            }
        }
        self.shutdown.cancelled().await;
        Ok(())
    }

    /// Reads everything but shares. What cannot be read is empty: it is unknown, not as before.
    async fn read(&self, state: &mut SchedulerState) -> Result<(), Error> {
        let slurm = &self.slurm;
        state.taken_at = Some(timestamp(Utc::now()));
        let stats = known(unless_stopped(&self.shutdown, slurm.statistics()).await?);
        let stats = stats.unwrap_or_default();
        let figures = stats.figures.into_iter();
        state.figures = figures
            .map(|(name, value)| Figure {
                name: name.to_owned(),
                value,
            })
            .collect();
        state.calls_by_type = calls(stats.calls_by_type);
        state.calls_by_user = calls(stats.calls_by_user);
        let found = known(unless_stopped(&self.shutdown, slurm.licenses()).await?);
        state.licenses = rows(found.unwrap_or_default(), license);
        let found = known(unless_stopped(&self.shutdown, slurm.reservations()).await?);
        state.reservations = rows(found.unwrap_or_default(), reservation);
        let found = known(unless_stopped(&self.shutdown, slurm.limits()).await?);
        let (_, found) = limits(found.unwrap_or_default());
        let of_accounts = found.into_iter().filter(|limit| {
            limit.qos.is_empty() && limit.user.is_empty() && limit.partition.is_empty()
        });
        state.limits = of_accounts.collect();
        Ok(())
    }

    /// Reads shares. If they cannot be read, the last ones stay with their time.
    async fn read_shares(&self, state: &mut SchedulerState) -> Result<(), Error> {
        let taken_at = Utc::now();
        let found = unless_stopped(&self.shutdown, self.slurm.shares()).await?;
        if let Some(mut found) = known(found) {
            // Accounts first: they stay if there is not room for all.
            found.sort_by_key(|record| !record.user.is_empty());
            state.shares = rows(found, share);
            state.shares_taken_at = Some(timestamp(taken_at));
        }
        Ok(())
    }
}

fn known<T>(result: Result<T, SlurmError>) -> Option<T> {
    if let Err(error) = &result {
        tracing::debug!(
            error = error as &dyn std::error::Error,
            "state of the scheduler not read"
        );
    }
    result.ok()
}

fn rows<T, U>(records: Vec<T>, convert: impl Fn(T) -> U) -> Vec<U> {
    records.into_iter().map(convert).collect()
}

/// The state with the ends of its lists cut off until it has at most `max` bytes.
fn fitting(mut state: SchedulerState, max: usize) -> SchedulerState {
    while state.encoded_len() > max {
        state.calls_by_user.truncate(state.calls_by_user.len() / 2);
        state.licenses.truncate(state.licenses.len() / 2);
        state.reservations.truncate(state.reservations.len() / 2);
        state.limits.truncate(state.limits.len() / 2);
        state.shares.truncate(state.shares.len() / 2);
        if state.shares.is_empty() && state.limits.is_empty() && state.reservations.is_empty() {
            break;
        }
    }
    state
}

fn seconds(interval: Duration) -> u32 {
    u32::try_from(interval.as_secs()).unwrap_or(u32::MAX)
}

/// The most frequent ones.
fn calls(mut stats: Vec<CallStats>) -> Vec<Calls> {
    stats.sort_by_key(|calls| std::cmp::Reverse(calls.count));
    rows(stats, |calls| Calls {
        name: calls.name,
        count: calls.count,
        average_micros: calls.average_micros,
        total_micros: calls.total_micros,
    })
}

fn share(record: ShareRecord) -> Share {
    Share {
        account: record.account,
        user: record.user,
        raw_shares: record.raw_shares,
        norm_shares: record.norm_shares,
        raw_usage: record.raw_usage,
        norm_usage: record.norm_usage,
        fairshare: record.fairshare,
        level_fairshare: record.level_fairshare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_state_keeps_its_figures_and_the_accounts() {
        let share = |number: usize| Share {
            account: format!("account-{number}"),
            user: if number < 100 {
                String::new()
            } else {
                format!("user-{number}")
            },
            norm_shares: 0.1,
            ..Share::default()
        };
        let state = SchedulerState {
            figures: vec![Figure {
                name: "agent_count".into(),
                value: 1,
            }],
            shares: (0..50_000).map(share).collect(),
            ..SchedulerState::default()
        };
        let small = fitting(state.clone(), MAX_BYTES);
        assert!(small.encoded_len() <= MAX_BYTES && small.shares.len() > 5_000);
        assert_eq!(small.figures, state.figures);
        assert_eq!(small.shares[..100], state.shares[..100]);
        let fits = SchedulerState {
            shares: (0..100).map(share).collect(),
            ..SchedulerState::default()
        };
        assert_eq!(fitting(fits.clone(), MAX_BYTES), fits);
    }
}
