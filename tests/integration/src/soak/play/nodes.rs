//! Actions on nodes and on the jobs on them.

use tokio::sync::MutexGuard;
use tokio::time::{Instant, sleep};

use super::{FIRST_RUN_SLEEPS, MIN_RUN_AGE, Player};
use crate::Error;
use crate::soak::log::{NodeAct, now};
use crate::soak::plan::{ARENA, Work};
use crate::soak::stage::PATIENCE;

impl Player<'_> {
    async fn have(&self, node: &str) -> Result<MutexGuard<'_, ()>, Error> {
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
        let reason = format!("soak {}", work.number);
        self.act(node, "down", &reason).await?;
        self.act(node, "resume", &reason).await?;
        self.ended(job).await
    }

    pub(super) async fn node_killed(&self, work: &Work, node: &str) -> Result<(), Error> {
        let _node = self.have(node).await?;
        let job = self.on_node(work, node, true).await?;
        let slurmd = format!("slurmd:{node}");
        let from = now();
        self.stage.note(format!("kill {slurmd}"));
        self.stage.cluster.control("kill", &slurmd).await?;
        let outcome = self.node_state(node, "DOWN").await;
        let seen = outcome.is_ok() && self.stage.polled("node-watcher").await;
        self.note_node(node, "killed", "Not responding", from, seen);
        let from = now();
        self.stage.cluster.control("start", &slurmd).await?;
        outcome?;
        self.node_state(node, "IDLE").await?;
        let seen = self.stage.polled("node-watcher").await;
        self.note_node(node, "resume", "", from, seen);
        self.ended(job).await
    }

    /// A job that stays on a node.
    async fn on_node(&self, work: &Work, node: &str, requeue: bool) -> Result<u32, Error> {
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
        let seen = self.stage.polled("node-watcher").await;
        self.note_node(node, what, reason, from, seen);
        Ok(())
    }

    fn note_node(&self, node: &str, what: &'static str, reason: &str, from: i64, seen: bool) {
        self.stage.log.borrow_mut().nodes.push(NodeAct {
            node: node.to_owned(),
            what,
            reason: reason.to_owned(),
            from,
            seen,
        });
    }

    /// Waits until scontrol shows a node with this state and no flag.
    async fn node_state(&self, node: &str, state: &str) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            let text = self
                .stage
                .ask("root", &["scontrol", "-o", "show", "node", node])
                .await?;
            let mut tokens = text.split_whitespace();
            let found = tokens.find_map(|token| token.strip_prefix("State="));
            if found.is_some_and(|found| found.starts_with(state) && !found.contains("COMPLETING"))
                && (state == "DOWN" || found == Some(state) || found == Some("MIXED"))
            {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(Error::Deadline {
                    description: format!("node {node} is {state}, not {found:?}"),
                    patience: PATIENCE,
                });
            }
            sleep(std::time::Duration::from_secs(1)).await;
        }
    }
}
