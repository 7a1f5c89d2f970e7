//! The loop: poll, compare, write, publish.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::Utc;
use mesh_bus::Bus;
use mesh_events::Event;
use mesh_events::catalogue::{self, MESH_HOOKS};
use mesh_runtime::Condition;
use slurm_client::Slurm;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::adapters::store::Store;
use crate::config::Config;
use crate::domain::downtimes::{apply_downtimes, skip_downtimes};
use crate::domain::pending_notices::{self, Notices};
use crate::domain::{TrackedNode, absence, event};
use crate::doorbells::{self, Doorbells, PollRequest};
use crate::downtimes::DowntimeReader;
use crate::error::Error;
use crate::node_list::NodeListPublisher;
use crate::{metrics, node_list, noticed_jobs};

/// Watches the nodes of one cluster.
#[derive(Clone)]
pub struct Watcher {
    /// Bus for events and state.
    pub bus: Bus,
    /// Client of Slurm.
    pub slurm: Slurm,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Intervals of the polls.
    pub config: Config,
    /// Condition: the state is usable.
    pub state_health: Condition,
    /// Condition: Slurm answers.
    pub slurm_health: Condition,
}

impl Watcher {
    /// Watches for one term of leadership. After any error of the state or the bus, the state is loaded again, because it is
    /// authoritative.
    ///
    /// # Errors
    /// None at present. Failures are retried.
    pub async fn term(self, stop: CancellationToken) -> Result<(), Error> {
        self.slurm_health.fail("not polled yet");
        let (requests, polls) = mpsc::channel(doorbells::CHANNEL_CAPACITY);
        let doorbells = Doorbells {
            cluster: self.cluster.clone(),
            requests,
        };
        let durable = catalogue::durable(MESH_HOOKS, self.bus.role(), &self.cluster);
        let consume = self.bus.consume(
            MESH_HOOKS,
            &durable,
            doorbells::MAX_WAITING_DOORBELLS,
            doorbells,
            &stop,
        );
        // Watching ends first and leaves its requests unanswered.
        let watch = async {
            self.watch(polls, &stop).await;
            stop.cancel();
        };
        let (consumed, ()) = tokio::join!(consume, watch);
        Ok(consumed?)
    }

    async fn watch(&self, mut polls: mpsc::Receiver<PollRequest>, stop: &CancellationToken) {
        // Consecutive polls whose results could not be stored.
        let mut wasted = 0;
        while !stop.is_cancelled() {
            match self.session(&mut wasted, &mut polls, stop).await {
                Ok(()) => break,
                Err(Error::Conflict { key }) => {
                    metrics::conflict();
                    tracing::info!(key, "leadership lost: another instance has taken over");
                    break;
                }
                Err(error) if stop.is_cancelled() => {
                    tracing::debug!(error = mesh_runtime::error_chain(&error), "stopped")
                }
                Err(error) => {
                    self.state_health.fail(mesh_runtime::error_chain(&error));
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "node watch failed, restarting"
                    );
                }
            }
            sleep(self.config.pause_after_session(wasted), stop).await;
        }
    }

    async fn session(
        &self,
        wasted: &mut u32,
        polls: &mut mpsc::Receiver<PollRequest>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let mut store = Store::load(&self.bus, &self.cluster).await?;
        let mut list = NodeListPublisher::take_over(&self.bus, &self.cluster).await?;
        // Events that were written before a crash, but may not have been published.
        self.bus.publish_outbox(store.outbox(), stop).await?;
        store.settle().await?;
        self.state_health.ok();
        let mut nodes = store.nodes();
        let mut downtimes = DowntimeReader::new(self.config.accounting_interval);
        let mut failures = 0;
        let mut before = Duration::ZERO;
        let mut requests: Vec<PollRequest> = Vec::new();
        let mut notices = Notices::default();
        while !stop.is_cancelled() {
            while let Ok(request) = polls.try_recv() {
                requests.push(request);
            }
            let given = requests.iter().filter_map(|request| request.notice.clone());
            notices.given = given.collect();
            let began = Instant::now();
            let (pause, after_ring) = match self
                .poll_nodes(
                    &mut store,
                    &mut nodes,
                    &mut list,
                    &mut downtimes,
                    &mut notices,
                    stop,
                )
                .await
            {
                Ok(answer) => {
                    if failures > 0 {
                        tracing::info!("slurm available again");
                    }
                    failures = 0;
                    *wasted = 0;
                    self.slurm_health.ok();
                    metrics::polled(&nodes, began.elapsed());
                    doorbells::answer_polled(&mut requests, &notices.postponed);
                    // A single slow answer does not indicate load. A longer pause after it would miss a booting cloud node.
                    let usual = answer.min(std::mem::replace(&mut before, answer));
                    let least = self.slurm.min_poll_interval(answer);
                    let pause = self.config.pause(usual).max(least);
                    (pause, self.config.pause_after_ring(usual).max(least))
                }
                Err(Error::Slurm(error)) => {
                    failures += 1;
                    downtimes.note_failed_poll();
                    metrics::failed();
                    self.slurm_health.fail(mesh_runtime::error_chain(&error));
                    // Logged once; readiness shows the rest.
                    if failures == 1 {
                        tracing::warn!(
                            error = mesh_runtime::error_chain(&error),
                            "node poll failed, retrying"
                        );
                    }
                    doorbells::leave_to_next(&mut requests);
                    let pause = self.config.pause_after_failures(failures);
                    (pause, pause)
                }
                Err(error) => {
                    *wasted = wasted.saturating_add(1);
                    return Err(error);
                }
            };
            let poll_duration = began.elapsed();
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
                Some(request) = polls.recv() => {
                    requests.push(request);
                    let passed = began.elapsed().saturating_sub(poll_duration);
                    sleep(after_ring.saturating_sub(passed), stop).await;
                }
            }
        }
        Ok(())
    }

    /// Polls all nodes once. Returns the time Slurm took to answer, without storing and publishing, which do not indicate Slurm's
    /// load.
    #[tracing::instrument(name = "sweep", skip_all, fields(cluster = %self.cluster))]
    async fn poll_nodes(
        &self,
        store: &mut Store,
        nodes: &mut BTreeMap<String, TrackedNode>,
        list: &mut NodeListPublisher,
        downtimes: &mut DowntimeReader,
        notices: &mut Notices,
        stop: &CancellationToken,
    ) -> Result<Duration, Error> {
        store.check().await?;
        let asked = Instant::now();
        let answer = tokio::select! {
            () = stop.cancelled() => return Ok(Duration::ZERO),
            answer = self.slurm.nodes() => answer,
        };
        let took = asked.elapsed();
        let source = match self.slurm.over_rest() {
            true => "slurmrestd",
            false => "scontrol show node",
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // Also if an unreadable row makes the whole answer unusable.
                self.publish_drifts(store, source, stop).await?;
                return Err(error.into());
            }
        };
        let taken_at = Utc::now();
        let summaries = answer.iter().map(node_list::summary).collect();
        let watermark = store.accounting_watermark();
        let accounted = downtimes
            .read(&self.slurm, &self.cluster, watermark, stop)
            .await;
        let unseen = match &accounted {
            Some(accounted) if !accounted.is_first => {
                apply_downtimes(nodes, &answer, &accounted.found, accounted.since)
            }
            _ => Vec::new(),
        };
        let mut events: Vec<Event> = unseen
            .iter()
            .flat_map(|seen| event::of_downtime(&self.cluster, taken_at, seen))
            .collect();
        let mut changed: Vec<_> = unseen
            .into_iter()
            .map(|seen| (seen.record.name, seen.after))
            .collect();
        let mut seen =
            absence::confirm_absence(nodes, |name| store.new_node(name), answer, taken_at);
        if let Some(accounted) = accounted.as_ref().filter(|accounted| accounted.is_first) {
            skip_downtimes(&mut seen, &accounted.found);
        }
        let noticed = pending_notices::apply(&mut seen, notices, taken_at);
        let of_poll = seen
            .iter()
            .flat_map(|seen| event::of(&self.cluster, source, seen));
        events.extend(of_poll);
        noticed_jobs::correlate(&self.slurm, &self.cluster, &noticed, &mut events).await;
        for seen in seen {
            let name = seen.record.name;
            let same = nodes.get(&name).is_some_and(|node| {
                seen.after
                    == TrackedNode {
                        missing: seen.after.missing,
                        ..node.clone()
                    }
            });
            if !same {
                changed.push((name.clone(), seen.after.clone()));
            }
            let reconciled = nodes.get(&name).map_or(0, |node| node.unreconciled);
            if seen.after.unreconciled > reconciled {
                downtimes.note_downtime();
            }
            nodes.insert(name, seen.after);
        }
        store.write_poll(changed, &events).await?;
        self.publish(events, stop).await?;
        let watermark = accounted.map(|accounted| accounted.watermark);
        if !store.started() || watermark > store.accounting_watermark() {
            store.mark_started(watermark).await?;
        }
        // One more write per change, so that a much later restart does not repeat events after the bus's deduplication window.
        store.settle().await?;
        list.publish(taken_at, summaries).await?;
        self.publish_drifts(store, source, stop).await?;
        Ok(took)
    }

    /// Publishes forms unknown to this version, each once a day.
    async fn publish_drifts(
        &self,
        store: &mut Store,
        asked: &str,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let drifts = self.slurm.take_drifts();
        if drifts.is_empty() {
            return Ok(());
        }
        let mut published = store.drifts();
        let events = published.events(&self.cluster, asked, drifts, Utc::now());
        if events.is_empty() {
            return Ok(());
        }
        store.write_drifts(published, &events).await?;
        self.publish(events, stop).await?;
        store.settle().await
    }

    /// Publishes events, each in its own trace.
    async fn publish(&self, events: Vec<Event>, stop: &CancellationToken) -> Result<(), Error> {
        let names: Vec<_> = events
            .iter()
            .filter_map(|event| event.kind().ok())
            .collect();
        let traced = events.into_iter().map(|event| {
            let span = tracing::info_span!(parent: None, "node.change", event.id = event.id, event.r#type = event.r#type, entity = event.entity_key());
            (event, span)
        });
        self.bus.publish_all_traced(traced.collect(), stop).await?;
        for kind in names {
            metrics::event(kind.event());
        }
        Ok(())
    }
}

async fn sleep(pause: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = tokio::time::sleep(pause) => {}
    }
}
