//! Performs the plan's actions, as the users and as root, and logs them with the states it reads.

mod clear;
mod hands;
mod jobs;
mod nodes;

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::plan::{ARENA, Kind, Work};
use super::testbed::Testbed;
use integration::Error;

/// Maximum number of concurrent works.
const AT_ONCE: usize = 16;
/// Time limit of a work. Its jobs are cancelled at the end.
const LONGEST: Duration = Duration::from_secs(600);
/// Options that keep a job off the failing nodes.
const STEADY: &str = "--exclude=n3,n4,n5";
const NOT_ARENA: &str = "--exclude=n5";
/// The first attempt runs until something happens to it. The next one ends at once.
const FIRST_RUN_SLEEPS: &str = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 600";
/// On 22.05, a job that is requeued in the second of its submission keeps its submit time, and accounting loses the attempt.
const MIN_RUN_AGE: Duration = Duration::from_millis(2_200);

/// Performs works.
pub(super) struct WorkloadRunner<'a> {
    testbed: &'a Testbed,
    places: Semaphore,
    /// Locks of the nodes: only one work at a time uses a node.
    nodes: [(&'static str, Mutex<()>); 5],
    /// The QOS allows each user one running job.
    limited: [(&'static str, Mutex<()>); 2],
    done: Cell<usize>,
    given_up: Cell<usize>,
}

impl<'a> WorkloadRunner<'a> {
    pub(super) fn new(testbed: &'a Testbed) -> Self {
        Self {
            testbed,
            places: Semaphore::new(AT_ONCE),
            nodes: ["n1", "n2", "n3", "n4", ARENA].map(|node| (node, Mutex::new(()))),
            limited: ["alice", "bob"].map(|user| (user, Mutex::new(()))),
            done: Cell::new(0),
            given_up: Cell::new(0),
        }
    }

    /// Number of finished works, and how many of them could not be done as planned.
    pub(super) fn done(&self) -> (usize, usize) {
        (self.done.get(), self.given_up.get())
    }

    /// Performs all works, each at its time or as soon as there is capacity.
    pub(super) async fn run(&self, began: Instant, works: &[Work]) {
        join_all(works.iter().map(|work| async move {
            sleep_until(began + work.at).await;
            let _place = self.places.acquire().await;
            self.testbed
                .note(format!("work #{}: {:?}", work.number, work.kind));
            let outcome = timeout(LONGEST, self.perform(work)).await;
            let problem = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.chain()),
                Err(_) => Some(format!("not done within {LONGEST:?}")),
            };
            if let Some(problem) = problem {
                self.given_up.set(self.given_up.get() + 1);
                self.testbed
                    .note(format!("work #{} given up: {problem}", work.number));
            }
            self.done.set(self.done.get() + 1);
        }))
        .await;
    }

    async fn perform(&self, work: &Work) -> Result<(), Error> {
        let low = |low: &bool| {
            if *low {
                "--partition=low"
            } else {
                "--partition=cpu"
            }
        };
        match &work.kind {
            Kind::Exit { code, low: is_low } => {
                // Some use more than a second of CPU, so that there is usage to compare.
                let script = match code % 3 {
                    0 if *code > 0 => format!("(ulimit -t 2; while :; do :; done); exit {code}"),
                    _ => format!("exit {code}"),
                };
                self.submit(work, &[NOT_ARENA, low(is_low)], &script)
                    .await?;
                Ok(())
            }
            Kind::Signal { signal } => {
                let script = format!("kill -{signal} $$");
                self.submit(work, &[NOT_ARENA], &script).await?;
                Ok(())
            }
            Kind::Array {
                tasks,
                throttle,
                low: is_low,
            } => {
                let array = match throttle {
                    0 => format!("--array=0-{}", tasks - 1),
                    _ => format!("--array=0-{}%{throttle}", tasks - 1),
                };
                let script = "exit $((SLURM_ARRAY_TASK_ID % 4 == 3))";
                let options = [NOT_ARENA, low(is_low), &array];
                self.submit_array(work, *tasks, &options, script)
                    .await
                    .map(drop)
            }
            Kind::ArrayCancelled { tasks } => self.array_cancelled(work, *tasks).await,
            Kind::TaskCancelled { tasks, task, after } => {
                let after = Duration::from_secs(u64::from(*after));
                self.task_cancelled(work, *tasks, *task, after).await
            }
            Kind::CancelledWaiting => self.cancelled_waiting(work).await,
            Kind::CancelledRunning => {
                let job = self.submit(work, &[STEADY], "sleep 600").await?;
                self.running(job).await?;
                self.run_as(work.user, &["scancel", &job.to_string()]).await
            }
            Kind::TimedOut => {
                // Slurm checks time limits every 30 s (seen on 22.05). An end time in the past is found within that time.
                let job = self.submit(work, &[STEADY], "sleep 600").await?;
                self.running(job).await?;
                self.update_job(job, "EndTime=now+1").await?;
                self.ended(job).await
            }
            Kind::Held {
                by_admin,
                at_submit,
                starts,
            } => self.held(work, *by_admin, *at_submit, *starts).await,
            Kind::Requeued { held } => self.requeued(work, *held).await,
            Kind::FinishedRequeued { code, unseen } => {
                self.finished_requeued(work, *code, *unseen).await
            }
            Kind::Preempted { requeue } => self.preempted(work, *requeue).await,
            Kind::NodeDown { node, requeue } => self.node_down(work, node, *requeue).await,
            Kind::NodeKilled { node } => self.node_killed(work, node).await,
            Kind::Drained { node } => self.drained(work, node).await,
            Kind::Suspended { twice, cancelled } => self.suspended(work, *twice, *cancelled).await,
            Kind::SuspendedBriefly { resumed, end } => {
                self.suspended_briefly(work, *resumed, *end).await
            }
            Kind::Dependent { succeeds } => self.dependent(work, *succeeds).await,
            Kind::Het => self.het(work).await,
            Kind::Resized => self.resized(work).await,
            Kind::Limited => self.limited(work).await,
            Kind::Refused => {
                let command = ["sbatch", "--mem=999G", "--wrap", "true"];
                let answer = self.testbed.ask(work.user, &command).await;
                match answer {
                    Err(Error::Command { .. }) => Ok(()),
                    Err(error) => Err(error),
                    Ok(printed) => Err(Error::Machine(format!("{printed}: it was to be refused"))),
                }
            }
        }
    }
}
