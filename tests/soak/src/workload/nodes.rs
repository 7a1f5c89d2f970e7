//! Actions on nodes and on the jobs on them.

use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::time::{Instant, sleep};

use super::{FIRST_RUN_SLEEPS, MIN_RUN_AGE, WorkloadRunner};
use crate::log::{NodeAct, now};
use crate::plan::{ARENA, Work};
use crate::testbed::PATIENCE;
use integration::Error;

/// How long scontrol may take to show what a node was set to.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

impl WorkloadRunner<'_> {
    pub(super) async fn have(&self, node: &str) -> Result<MutexGuard<'_, ()>, Error> {
        let found = self.nodes.iter().find(|(name, _)| *name == node);
        match found {
            Some((_, lock)) => Ok(lock.lock().await),
            None => Err(Error::Machine(format!("there is no node {node}"))),
        }
    }

    pub(super) async fn preempted(&self, work: &Work, requeue: bool) -> Result<(), Error> {
        let _arena = self.have(ARENA).await?;
        let on = format!("--nodelist={ARENA}");
        let requeue_option = if requeue { "--requeue" } else { "--no-requeue" };
        let options = ["--partition=low", &on, "--ntasks=4", requeue_option];
        let low = self.submit(work, &options, FIRST_RUN_SLEEPS).await?;
        self.running(low).await?;
        sleep(MIN_RUN_AGE).await;
        let options = ["--partition=cpu", &on, "--ntasks=1"];
        let better = self.submit(work, &options, "true").await?;
        self.ended(better).await?;
        self.ended(low).await
    }

    pub(super) async fn node_down(
        &self,
        work: &Work,
        node: &str,
        requeue: bool,
    ) -> Result<(), Error> {
        let _node = self.have(node).await?;
        let job = self.on_node(work, node, requeue).await?;
        self.down_and_resume(work, node).await?;
        self.ended(job).await
    }

    pub(super) async fn down_and_resume(&self, work: &Work, node: &str) -> Result<(), Error> {
        let reason = format!("soak {}", work.number);
        self.act(node, "down", &reason).await?;
        self.act(node, "resume", &reason).await
    }

    pub(super) async fn node_killed(&self, work: &Work, node: &str) -> Result<(), Error> {
        let _node = self.have(node).await?;
        let job = self.on_node(work, node, true).await?;
        let slurmd = format!("slurmd:{node}");
        let from = now();
        self.testbed.note(format!("kill {slurmd}"));
        self.testbed.cluster.control("kill", &slurmd).await?;
        let outcome = self.node_state(node, "DOWN").await;
        let seen = outcome.is_ok() && self.testbed.polled("node-watcher").await;
        self.note_node(node, "killed", "Not responding", from, seen);
        let from = now();
        self.testbed.cluster.control("start", &slurmd).await?;
        let outcome = match outcome {
            Ok(()) => self.node_state(node, "IDLE").await,
            failed => failed,
        };
        // Noted even if it was not shown as expected: its events are compared with what was done.
        let seen = outcome.is_ok() && self.testbed.polled("node-watcher").await;
        self.note_node(node, "resume", "", from, seen);
        outcome?;
        self.ended(job).await
    }

    /// A job that stays on a node.
    pub(super) async fn on_node(
        &self,
        work: &Work,
        node: &str,
        requeue: bool,
    ) -> Result<u32, Error> {
        let on = format!("--nodelist={node}");
        let requeue_option = if requeue { "--requeue" } else { "--no-requeue" };
        let job = self
            .submit(work, &[&on, requeue_option], FIRST_RUN_SLEEPS)
            .await?;
        self.running(job).await?;
        sleep(MIN_RUN_AGE).await;
        Ok(job)
    }

    pub(super) async fn drained(&self, work: &Work, node: &str) -> Result<(), Error> {
        let _node = self.have(node).await?;
        let reason = format!("soak {}", work.number);
        self.act(node, "drain", &reason).await?;
        self.act(node, "resume", &reason).await
    }

    /// Performs an action on a node, and waits until node-watcher must have seen it.
    async fn act(&self, node: &str, what: &'static str, reason: &str) -> Result<(), Error> {
        let node_name = format!("NodeName={node}");
        let state = format!("State={}", what.to_uppercase());
        let why = format!("Reason={reason}");
        let mut command = vec!["scontrol", "update", &node_name, &state];
        if what != "resume" {
            command.push(&why);
        }
        let from = now();
        match self.run_as("root", &command).await {
            // The first answer was lost and the command was retried, so there was nothing left to resume.
            Err(Error::Command { printed, .. })
                if what == "resume" && printed.contains("Invalid node state") => {}
            done => done?,
        }
        let outcome = match what {
            "resume" => self.node_responds(node).await,
            _ => Ok(()),
        };
        let is_shown = what != "down" || self.is_shown_down(node).await;
        let seen = outcome.is_ok() && is_shown && self.testbed.polled("node-watcher").await;
        self.note_node(node, what, reason, from, seen);
        outcome
    }

    fn note_node(&self, node: &str, what: &'static str, reason: &str, from: i64, seen: bool) {
        let mut log = self.testbed.log.borrow_mut();
        // A node that was not seen down does not recover.
        let before = log.nodes.iter().rev().find(|act| act.node == node);
        let seen = seen && (what != "resume" || before.is_some_and(|act| act.seen));
        log.nodes.push(NodeAct {
            node: node.to_owned(),
            what,
            reason: reason.to_owned(),
            from,
            seen,
        });
    }

    /// Waits until scontrol shows a node with this state and no flag.
    async fn node_state(&self, node: &str, state: &str) -> Result<(), Error> {
        self.node_shows(node, state, PATIENCE, |found| {
            found.starts_with(state)
                && !found.contains("COMPLETING")
                && (state == "DOWN" || found == state || found == "MIXED")
        })
        .await
    }

    /// Whether scontrol shows a node as down. 24.11.5 may leave a CPU of a node allocated to a requeued job ("Invalid batch host n3 for
    /// JobId=84; this should never happen"), and shows the node as MIXED from then on, whatever it is set to.
    async fn is_shown_down(&self, node: &str) -> bool {
        let is_down = |found: &str| found.starts_with("DOWN");
        let shown = self.node_shows(node, "DOWN", SHOWN_WITHIN, is_down).await;
        shown.is_ok()
    }

    /// Waits until the slurmd of a resumed node has answered. Before that, the node has not recovered.
    async fn node_responds(&self, node: &str) -> Result<(), Error> {
        self.node_shows(node, "responding", PATIENCE, |found| !is_silent(found))
            .await
    }

    /// Waits until the state that scontrol shows of a node fulfils a condition.
    async fn node_shows(
        &self,
        node: &str,
        description: &str,
        patience: Duration,
        condition: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            let text = self
                .testbed
                .ask("root", &["scontrol", "-o", "show", "node", node])
                .await?;
            let mut tokens = text.split_whitespace();
            let found = tokens.find_map(|token| token.strip_prefix("State="));
            if found.is_some_and(&condition) {
                return Ok(());
            }
            if began.elapsed() > patience {
                return Err(Error::Deadline {
                    description: format!("node {node} is {description}, not {found:?}"),
                    patience,
                });
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Whether slurmctld has no answer from a node: `IDLE+NOT_RESPONDING` by scontrol, `idle*` by sinfo (22.05 to 26.05).
fn is_silent(state: &str) -> bool {
    state.contains('*') || state.contains("NOT_RESPONDING")
}
