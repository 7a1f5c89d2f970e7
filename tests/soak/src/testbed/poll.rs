//! A shared poll of the queue: pending and running jobs, and ended ones with slurmctld's own state.

use std::time::Duration;

use tokio::time::sleep;

use super::{PATIENCE, Queue, Testbed};
use crate::Run;
use crate::log::Witness;
use integration::Error;

/// Interval of the polls.
const POLL_INTERVAL: Duration = Duration::from_millis(400);

impl Testbed {
    /// Polls the queue until stopped.
    pub(crate) async fn poll(&self) {
        let command = [
            "env",
            "SLURM_TIME_FORMAT=%s",
            "squeue",
            "-h",
            "-a",
            "-t",
            "all",
            "-o",
            "%i|%T|%r|%A|%u|%V|%e|%S|%N",
        ];
        while self.polling.get() {
            if let Ok(text) = self.ask("root", &command).await {
                let mut queue = Queue::new();
                for line in text.lines() {
                    let columns: Vec<&str> = line.split('|').collect();
                    let [id, state, reason, ..] = columns[..] else {
                        continue;
                    };
                    queue.insert(id.to_owned(), (state.to_owned(), reason.to_owned()));
                    if let Some((run, witness)) = witness(&columns) {
                        self.log.borrow_mut().witnesses.insert(run, witness);
                    }
                }
                self.queue.send_replace(queue);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends [`Testbed::poll`].
    pub(crate) fn stop_polling(&self) {
        self.polling.set(false);
    }

    /// Waits until a poll of the queue gives a value.
    pub(crate) async fn see<T>(
        &self,
        description: &str,
        patience: Duration,
        mut condition: impl FnMut(&Queue) -> Option<T>,
    ) -> Result<T, Error> {
        let mut polls = self.queue.subscribe();
        let seen = async {
            loop {
                if polls.changed().await.is_err() {
                    // Cannot happen: the sender lives as long as self.
                    std::future::pending::<()>().await;
                }
                if let Some(value) = condition(&polls.borrow_and_update()) {
                    return value;
                }
            }
        };
        tokio::time::timeout(patience, seen)
            .await
            .map_err(|_| Error::Deadline {
                description: description.to_owned(),
                patience,
            })
    }

    /// Waits until a job is in one of these states.
    pub(crate) async fn see_state(&self, job: &str, states: &[&str]) -> Result<(), Error> {
        let description = format!("job {job} is {}", states.join(" or "));
        self.see(&description, PATIENCE, |queue| {
            let (state, _) = queue.get(job)?;
            states.contains(&state.as_str()).then_some(())
        })
        .await
    }
}

/// Parses a line of the queue, if the run has ended.
fn witness(columns: &[&str]) -> Option<(Run, Witness)> {
    const OVER: [&str; 9] = [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    ];
    let [id, state, _, job, user, submit, end, start, nodes] = *columns else {
        return None;
    };
    if !OVER.contains(&state) {
        return None;
    }
    // The remainder of an array has the id of the array: `12_[4-7]`.
    let (job, task) = match id.split_once('_') {
        Some((array, task)) => (array, task.parse().ok()),
        None => (job, None),
    };
    let witness = Witness {
        user: user.to_owned(),
        start: start.parse().ok(),
        end: end.parse().ok()?,
        state: state.to_owned(),
        nodes: nodes.to_owned(),
    };
    Some(((job.parse().ok()?, task, submit.parse().ok()?), witness))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ended_runs_are_witnesses() {
        let witness = |line: &str| witness(&line.split('|').collect::<Vec<_>>());
        let of_task = "12_3|FAILED|NonZeroExitCode|14|alice|100|120|110|n1";
        let (run, seen) = witness(of_task).unwrap();
        assert_eq!(run, (12, Some(3), 100));
        assert_eq!(
            (seen.start, seen.end, seen.nodes.as_str()),
            (Some(110), 120, "n1")
        );
        let of_rest = "12_[4-7]|CANCELLED|None|12|alice|100|120|N/A|";
        assert_eq!(witness(of_rest).unwrap().0, (12, None, 100));
        let of_component = "12+1|COMPLETED|None|13|alice|100|120|110|n1";
        assert_eq!(witness(of_component).unwrap().0, (13, None, 100));
        assert_eq!(witness("12|RUNNING|None|12|alice|100|N/A|110|n1"), None);
        assert_eq!(witness("12|COMPLETING|None|12|alice|100|120|110|n1"), None);
    }
}
