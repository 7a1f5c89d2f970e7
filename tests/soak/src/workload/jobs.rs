//! Actions on jobs.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::hands::{open, row};
use super::{FIRST_RUN_SLEEPS, MIN_RUN_AGE, NOT_ARENA, STEADY, WorkloadRunner};
use crate::log::{Hold, Pause, now};
use crate::plan::{BriefEnd, Work};
use crate::testbed::PATIENCE;
use integration::Error;

/// Two polls see a job that is pending longer than this, without other faults.
const SEEN_TWICE: Duration = Duration::from_secs(15);

impl WorkloadRunner<'_> {
    pub(super) async fn array_cancelled(&self, work: &Work, tasks: u32) -> Result<(), Error> {
        let array = format!("--array=0-{}%2", tasks - 1);
        let options = [STEADY, &array];
        let job = self
            .submit_array(work, tasks, &options, "sleep 600")
            .await?;
        self.testbed
            .see_state(&format!("{job}_0"), &["RUNNING"])
            .await?;
        self.run_as(work.user, &["scancel", &job.to_string()]).await
    }

    pub(super) async fn task_cancelled(
        &self,
        work: &Work,
        tasks: u32,
        task: u32,
        after: Duration,
    ) -> Result<(), Error> {
        let array = format!("--array=0-{}", tasks - 1);
        let options = [NOT_ARENA, &array, "--begin=now+1hour"];
        let job = self.submit_array(work, tasks, &options, "true").await?;
        let submitted = Instant::now();
        if after >= SEEN_TWICE {
            self.see_wait(job, |reason| reason == "BeginTime").await?;
        }
        sleep_until(submitted + after).await;
        let one = format!("{job}_{task}");
        self.run_as(work.user, &["scancel", &one]).await?;
        self.testbed
            .log
            .borrow_mut()
            .cancelled_tasks
            .push((job, task));
        self.testbed.polled("ingest").await;
        self.cancel_waiting(work.user, job).await
    }

    pub(super) async fn cancelled_waiting(&self, work: &Work) -> Result<(), Error> {
        let options = [NOT_ARENA, "--begin=now+1hour"];
        let job = self.submit(work, &options, "true").await?;
        self.see_wait(job, |reason| reason == "BeginTime").await?;
        self.cancel_waiting(work.user, job).await
    }

    /// Accounting may never list a job that was cancelled before it could run, so slurmctld must have shown it.
    pub(super) async fn cancel_waiting(&self, user: &str, job: u32) -> Result<(), Error> {
        self.run_as(user, &["scancel", &job.to_string()]).await?;
        let description = format!("job {job} is cancelled");
        self.testbed
            .see(&description, PATIENCE, |queue| {
                (row(queue, job)?.0 == "CANCELLED").then_some(())
            })
            .await
    }

    pub(super) async fn held(
        &self,
        work: &Work,
        by_admin: bool,
        at_submit: bool,
        starts: bool,
    ) -> Result<(), Error> {
        let mut options = vec![NOT_ARENA];
        if at_submit {
            options.push("--hold");
        }
        if !at_submit || !starts {
            options.push("--begin=now+1hour");
        }
        let job = self.submit(work, &options, "true").await?;
        let id = job.to_string();
        if !at_submit {
            let holder = if by_admin { "root" } else { work.user };
            self.run_as(holder, &["scontrol", "hold", &id]).await?;
        }
        let polled = self
            .watch(job, |reason| reason.starts_with("JobHeld"))
            .await?
            .is_some();
        self.run_as("root", &["scontrol", "release", &id]).await?;
        if starts && !at_submit {
            self.update_job(job, "StartTime=now").await?;
        }
        let released = if starts {
            self.ended(job).await?;
            true
        } else {
            self.watch(job, |reason| reason == "BeginTime")
                .await?
                .is_some()
        };
        self.testbed.log.borrow_mut().holds.push(Hold {
            job,
            polled,
            released,
        });
        if starts {
            Ok(())
        } else {
            self.cancel_waiting(work.user, job).await
        }
    }

    pub(super) async fn requeued(&self, work: &Work, held: bool) -> Result<(), Error> {
        let job = self.submit(work, &[STEADY], FIRST_RUN_SLEEPS).await?;
        self.running(job).await?;
        sleep(MIN_RUN_AGE).await;
        let id = job.to_string();
        if !held {
            return self.run_as("root", &["scontrol", "requeue", &id]).await;
        }
        self.run_as("root", &["scontrol", "requeuehold", &id])
            .await?;
        self.requeued_and_held(job).await
    }

    /// Releases a job that was requeued and is held then.
    async fn requeued_and_held(&self, job: u32) -> Result<(), Error> {
        let id = job.to_string();
        self.testbed.see_state(&id, &["PENDING"]).await?;
        let polled = self
            .watch(job, |reason| reason.to_lowercase().contains("held"))
            .await?
            .is_some();
        self.run_as("root", &["scontrol", "release", &id]).await?;
        self.ended(job).await?;
        self.testbed.log.borrow_mut().holds.push(Hold {
            job,
            polled,
            released: true,
        });
        Ok(())
    }

    /// Accounting of 22.05 and 24.11 loses the end of the first run.
    pub(super) async fn finished_requeued(
        &self,
        work: &Work,
        code: u32,
        unseen: bool,
    ) -> Result<(), Error> {
        let (go, script) = self.until_released(work);
        let script =
            format!("[ \"${{SLURM_RESTART_COUNT:-0}}\" -gt 0 ] || {{ {script}; exit {code}; }}");
        let job = self.submit(work, &[STEADY], &script).await?;
        self.running(job).await?;
        let end_and_requeue = async {
            open(&go)?;
            self.ended(job).await?;
            // Not in the second of its end or the next one, because no record could show the order.
            sleep(MIN_RUN_AGE * 2).await;
            self.testbed.log.borrow_mut().requeued.insert(job);
            let id = job.to_string();
            self.run_as("root", &["scontrol", "requeue", &id]).await
        };
        if unseen {
            self.testbed.without("ingest", end_and_requeue).await?;
        } else {
            end_and_requeue.await?;
        }
        self.ended(job).await
    }

    pub(super) async fn suspended(
        &self,
        work: &Work,
        twice: bool,
        cancelled: bool,
    ) -> Result<(), Error> {
        let (go, script) = self.until_released(work);
        let job = self.submit(work, &[STEADY], &script).await?;
        let id = job.to_string();
        self.running(job).await?;
        for time in 0..=u8::from(twice) {
            sleep(MIN_RUN_AGE).await;
            if time > 0 {
                // Slurm stores only the time of the last suspend or resume, so each one must be seen by a poll.
                self.testbed.polled("ingest").await;
            }
            self.pause(job, "suspended", true).await?;
            self.testbed.see_state(&id, &["SUSPENDED"]).await?;
            sleep(MIN_RUN_AGE).await;
            if twice {
                self.testbed.polled("ingest").await;
            }
            self.pause(job, "resumed", true).await?;
            self.running(job).await?;
        }
        if twice {
            self.testbed.polled("ingest").await;
        }
        // Of a run that ends in the second of its resume, no record shows the resume.
        sleep(MIN_RUN_AGE).await;
        if cancelled {
            self.run_as(work.user, &["scancel", &id]).await?;
        }
        open(&go)?;
        self.ended(job).await
    }

    /// It ends so soon that Slurm's record of the end may contradict the suspension, or give it another time.
    pub(super) async fn suspended_briefly(
        &self,
        work: &Work,
        resumed: bool,
        end: BriefEnd,
    ) -> Result<(), Error> {
        let (go, script) = self.until_released(work);
        let mut reserved = None;
        let job = if let BriefEnd::NodeDown(node) = end {
            reserved = Some(self.have(node).await?);
            self.on_node(work, node, false).await?
        } else {
            let script = format!("[ \"${{SLURM_RESTART_COUNT:-0}}\" -gt 0 ] || {{ {script}; }}");
            let job = self.submit(work, &[STEADY], &script).await?;
            self.running(job).await?;
            sleep(MIN_RUN_AGE).await;
            job
        };
        self.pause(job, "suspended", false).await?;
        if resumed {
            sleep(MIN_RUN_AGE).await;
            if end == BriefEnd::Completed {
                open(&go)?;
            }
            self.pause(job, "resumed", false).await?;
        }
        let id = job.to_string();
        match end {
            BriefEnd::Completed => {}
            BriefEnd::Cancelled => self.run_as(work.user, &["scancel", &id]).await?,
            BriefEnd::Requeued => {
                self.run_as("root", &["scontrol", "requeue", &id]).await?;
                if !resumed {
                    // Its priority is 0 since the suspension, so Slurm holds it (JobHeldAdmin; seen on 22.05, 24.11 and 26.05).
                    return self.requeued_and_held(job).await;
                }
            }
            BriefEnd::NodeDown(node) => self.down_and_resume(work, node).await?,
        }
        drop(reserved);
        self.ended(job).await
    }

    async fn pause(&self, job: u32, event_name: &'static str, proven: bool) -> Result<(), Error> {
        let command = if event_name == "resumed" {
            "resume"
        } else {
            "suspend"
        };
        let from = now();
        self.run_as("root", &["scontrol", command, &job.to_string()])
            .await?;
        self.testbed.log.borrow_mut().pauses.push(Pause {
            job,
            event_name,
            proven,
            from,
            until: now(),
        });
        Ok(())
    }

    pub(super) async fn dependent(&self, work: &Work, succeeds: bool) -> Result<(), Error> {
        let (go, script) = self.until_released(work);
        let script = format!("{script}; exit {}", u8::from(!succeeds));
        let first = self.submit(work, &[STEADY], &script).await?;
        let dependency = format!("--dependency=afterok:{first}");
        let second = self.submit(work, &[NOT_ARENA, &dependency], "true").await?;
        self.see_wait(second, |reason| reason == "Dependency")
            .await?;
        open(&go)?;
        self.ended(first).await?;
        if succeeds {
            return self.ended(second).await;
        }
        let description = format!("job {second} can never run");
        let id = second.to_string();
        self.testbed
            .see(&description, PATIENCE, |queue| {
                (queue.get(&id)?.1 == "DependencyNeverSatisfied").then_some(())
            })
            .await?;
        self.cancel_waiting(work.user, second).await
    }

    pub(super) async fn het(&self, work: &Work) -> Result<(), Error> {
        let command = [
            "sbatch",
            "--parsable",
            "--chdir=/tmp",
            "--output=/dev/null",
            "--ntasks=1",
            NOT_ARENA,
            "--wrap=true",
            ":",
            "--ntasks=1",
            NOT_ARENA,
        ];
        let printed = self.testbed.ask(work.user, &command).await?;
        self.submitted(&printed).map(drop)
    }

    pub(super) async fn resized(&self, work: &Work) -> Result<(), Error> {
        let (go, script) = self.until_released(work);
        let options = [STEADY, "--nodes=2", "--ntasks=2"];
        let job = self.submit(work, &options, &script).await?;
        self.running(job).await?;
        sleep(MIN_RUN_AGE).await;
        self.update_job(job, "NumNodes=1").await?;
        sleep(MIN_RUN_AGE).await;
        open(&go)?;
        self.ended(job).await
    }

    pub(super) async fn limited(&self, work: &Work) -> Result<(), Error> {
        let of = self.limited.iter().find(|(user, _)| *user == work.user);
        let Some((_, lock)) = of else {
            return Err(Error::Machine(format!("{} has no such QOS", work.user)));
        };
        let _guard = lock.lock().await;
        let (go, script) = self.until_released(work);
        let options = [STEADY, "--qos=limited"];
        let first = self.submit(work, &options, &script).await?;
        self.running(first).await?;
        let second = self.submit(work, &options, "true").await?;
        self.see_wait(second, |reason| reason.starts_with("QOS"))
            .await?;
        open(&go)?;
        self.ended(second).await
    }
}
