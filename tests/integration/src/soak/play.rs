//! Does what the plan says, as the users and as root, and notes what it did and read back.

mod nodes;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::log::{Hold, Pause, Wait, Witness, now};
use super::plan::{ARENA, Kind, Work};
use super::stage::{PATIENCE, Queue, Stage};
use crate::Error;

/// How many works go on at the same time.
const AT_ONCE: usize = 16;
/// When a work is given up; its jobs are cancelled at the end.
const LONGEST: Duration = Duration::from_secs(300);
/// Options that keep a job where nothing fails.
const STEADY: &str = "--exclude=n3,n4,n5";
const NOT_ARENA: &str = "--exclude=n5";
/// The first attempt runs until something happens to it, the next one ends at once.
const FIRST_STAYS: &str = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 600";
/// On 22.05 a job that is requeued in the second of its submission keeps its submit time, and accounting loses the attempt.
const OLD_ENOUGH: Duration = Duration::from_millis(2_200);

/// Plays works.
pub(super) struct Player<'a> {
    stage: &'a Stage,
    places: Semaphore,
    /// Who has the node: only one at a time does something to it.
    nodes: [(&'static str, Mutex<()>); 5],
    /// The QOS lets each user run one job.
    limited: [(&'static str, Mutex<()>); 2],
    done: Cell<usize>,
    given_up: Cell<usize>,
}

impl<'a> Player<'a> {
    pub(super) fn new(stage: &'a Stage) -> Self {
        Self {
            stage,
            places: Semaphore::new(AT_ONCE),
            nodes: ["n1", "n2", "n3", "n4", ARENA].map(|node| (node, Mutex::new(()))),
            limited: ["alice", "bob"].map(|user| (user, Mutex::new(()))),
            done: Cell::new(0),
            given_up: Cell::new(0),
        }
    }

    /// Works done, and how many of them could not be done as planned.
    pub(super) fn done(&self) -> (usize, usize) {
        (self.done.get(), self.given_up.get())
    }

    /// Plays all of them, each at its time or as soon as there is a place.
    pub(super) async fn play(&self, began: Instant, works: &[Work]) {
        join_all(works.iter().map(|work| async move {
            sleep_until(began + work.at).await;
            let _place = self.places.acquire().await;
            self.stage
                .note(format!("work #{}: {:?}", work.number, work.kind));
            let outcome = timeout(LONGEST, self.perform(work)).await;
            let problem = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.chain()),
                Err(_) => Some(format!("not done within {LONGEST:?}")),
            };
            if let Some(problem) = problem {
                self.given_up.set(self.given_up.get() + 1);
                self.stage
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
                let script = format!("exit {code}");
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
            Kind::TaskCancelled { tasks, task } => self.task_cancelled(work, *tasks, *task).await,
            Kind::CancelledWaiting => self.cancelled_waiting(work).await,
            Kind::CancelledRunning => {
                let job = self.submit(work, &[STEADY], "sleep 600").await?;
                self.running(job).await?;
                self.tell(work.user, &["scancel", &job.to_string()]).await
            }
            Kind::TimedOut => {
                // Slurm looks at time limits every 30 s (seen on 22.05): an end time in the past is found within that time.
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
            Kind::Preempted { requeue } => self.preempted(work, *requeue).await,
            Kind::NodeDown { node, requeue } => self.node_down(work, node, *requeue).await,
            Kind::NodeKilled { node } => self.node_killed(work, node).await,
            Kind::Drained { node } => self.drained(work, node).await,
            Kind::Suspended { twice, cancelled } => self.suspended(work, *twice, *cancelled).await,
            Kind::Dependent { succeeds } => self.dependent(work, *succeeds).await,
            Kind::Het => self.het(work).await,
            Kind::Resized => self.resized(work).await,
            Kind::Limited => self.limited(work).await,
            Kind::Refused => {
                let command = ["sbatch", "--mem=999G", "--wrap", "true"];
                let answer = self.stage.ask(work.user, &command).await;
                match answer {
                    Err(Error::Command { .. }) => Ok(()),
                    Err(error) => Err(error),
                    Ok(said) => Err(Error::Machine(format!("{said}: it was to be refused"))),
                }
            }
        }
    }

    async fn array_cancelled(&self, work: &Work, tasks: u32) -> Result<(), Error> {
        let array = format!("--array=0-{}%2", tasks - 1);
        let options = [STEADY, &array];
        let job = self
            .submit_array(work, tasks, &options, "sleep 600")
            .await?;
        self.stage
            .see_state(&format!("{job}_0"), &["RUNNING"])
            .await?;
        self.tell(work.user, &["scancel", &job.to_string()]).await
    }

    async fn task_cancelled(&self, work: &Work, tasks: u32, task: u32) -> Result<(), Error> {
        let array = format!("--array=0-{}", tasks - 1);
        let options = [NOT_ARENA, &array, "--begin=now+1hour"];
        let job = self.submit_array(work, tasks, &options, "true").await?;
        self.stay(job, |reason| reason == "BeginTime").await?;
        let one = format!("{job}_{task}");
        self.tell(work.user, &["scancel", &one]).await?;
        self.stage
            .log
            .borrow_mut()
            .cancelled_tasks
            .push((job, task));
        self.stage.swept("ingest").await;
        self.cancel_waiting(work.user, job).await
    }

    async fn cancelled_waiting(&self, work: &Work) -> Result<(), Error> {
        let options = [NOT_ARENA, "--begin=now+1hour"];
        let job = self.submit(work, &options, "true").await?;
        self.stay(job, |reason| reason == "BeginTime").await?;
        self.cancel_waiting(work.user, job).await
    }

    /// Accounting may never list what was cancelled before it could run, so slurmctld is read at once.
    async fn cancel_waiting(&self, user: &str, job: u32) -> Result<(), Error> {
        let id = job.to_string();
        self.tell(user, &["scancel", &id]).await?;
        let what = format!("job {job} is cancelled");
        self.stage
            .see(&what, PATIENCE, |queue| {
                (row(queue, job)?.0 == "CANCELLED").then_some(())
            })
            .await?;
        let command = [
            "env",
            "SLURM_TIME_FORMAT=%s",
            "squeue",
            "-h",
            "-a",
            "-t",
            "all",
            "-j",
            &id,
            "-o",
            "%u|%V|%e|%T",
        ];
        let line = self.stage.ask("root", &command).await?;
        let columns: Vec<&str> = line.split('|').collect();
        let [user, submit, end, state] = columns[..] else {
            return Err(Error::Machine(format!("squeue printed {line:?}")));
        };
        let number = |text: &str| {
            text.parse()
                .map_err(|_| Error::Machine(format!("squeue printed the time {text:?}")))
        };
        let witness = Witness {
            job,
            user: user.to_owned(),
            submit: number(submit)?,
            end: number(end)?,
            state: state.to_owned(),
        };
        self.stage.log.borrow_mut().witnesses.push(witness);
        Ok(())
    }

    async fn held(
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
            self.tell(holder, &["scontrol", "hold", &id]).await?;
        }
        let swept = self
            .watch(job, |reason| reason.starts_with("JobHeld"))
            .await?
            .is_some();
        self.tell("root", &["scontrol", "release", &id]).await?;
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
        self.stage.log.borrow_mut().holds.push(Hold {
            job,
            swept,
            released,
        });
        if starts {
            Ok(())
        } else {
            self.cancel_waiting(work.user, job).await
        }
    }

    async fn requeued(&self, work: &Work, held: bool) -> Result<(), Error> {
        let job = self.submit(work, &[STEADY], FIRST_STAYS).await?;
        self.running(job).await?;
        sleep(OLD_ENOUGH).await;
        let id = job.to_string();
        if !held {
            return self.tell("root", &["scontrol", "requeue", &id]).await;
        }
        self.tell("root", &["scontrol", "requeuehold", &id]).await?;
        self.stage.see_state(&id, &["PENDING"]).await?;
        let swept = self
            .watch(job, |reason| reason.to_lowercase().contains("held"))
            .await?
            .is_some();
        self.tell("root", &["scontrol", "release", &id]).await?;
        self.ended(job).await?;
        self.stage.log.borrow_mut().holds.push(Hold {
            job,
            swept,
            released: true,
        });
        Ok(())
    }

    async fn suspended(&self, work: &Work, twice: bool, cancelled: bool) -> Result<(), Error> {
        let (go, script) = self.until_told(work);
        let job = self.submit(work, &[STEADY], &script).await?;
        let id = job.to_string();
        self.running(job).await?;
        for time in 0..=u8::from(twice) {
            sleep(OLD_ENOUGH).await;
            if time > 0 {
                // Slurm keeps the time of the last suspend or resume only: what is to be told has to be seen.
                self.stage.swept("ingest").await;
            }
            self.pause(job, "suspended", &["scontrol", "suspend", &id])
                .await?;
            self.stage.see_state(&id, &["SUSPENDED"]).await?;
            sleep(OLD_ENOUGH).await;
            if twice {
                self.stage.swept("ingest").await;
            }
            self.pause(job, "resumed", &["scontrol", "resume", &id])
                .await?;
            self.running(job).await?;
        }
        if twice {
            self.stage.swept("ingest").await;
        }
        if cancelled {
            self.tell(work.user, &["scancel", &id]).await?;
        }
        open(&go)?;
        self.ended(job).await
    }

    async fn pause(&self, job: u32, word: &'static str, command: &[&str]) -> Result<(), Error> {
        let from = now();
        self.tell("root", command).await?;
        self.stage.log.borrow_mut().pauses.push(Pause {
            job,
            word,
            from,
            until: now(),
        });
        Ok(())
    }

    async fn dependent(&self, work: &Work, succeeds: bool) -> Result<(), Error> {
        let (go, script) = self.until_told(work);
        let script = format!("{script}; exit {}", u8::from(!succeeds));
        let first = self.submit(work, &[STEADY], &script).await?;
        let dependency = format!("--dependency=afterok:{first}");
        let second = self.submit(work, &[NOT_ARENA, &dependency], "true").await?;
        self.stay(second, |reason| reason == "Dependency").await?;
        open(&go)?;
        self.ended(first).await?;
        if succeeds {
            return self.ended(second).await;
        }
        let what = format!("job {second} can never run");
        let id = second.to_string();
        self.stage
            .see(&what, PATIENCE, |queue| {
                (queue.get(&id)?.1 == "DependencyNeverSatisfied").then_some(())
            })
            .await?;
        self.cancel_waiting(work.user, second).await
    }

    async fn het(&self, work: &Work) -> Result<(), Error> {
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
        let said = self.stage.ask(work.user, &command).await?;
        self.submitted(&said).map(drop)
    }

    async fn resized(&self, work: &Work) -> Result<(), Error> {
        let (go, script) = self.until_told(work);
        let options = [STEADY, "--nodes=2", "--ntasks=2"];
        let job = self.submit(work, &options, &script).await?;
        self.running(job).await?;
        sleep(OLD_ENOUGH).await;
        self.update_job(job, "NumNodes=1").await?;
        sleep(OLD_ENOUGH).await;
        open(&go)?;
        self.ended(job).await
    }

    async fn limited(&self, work: &Work) -> Result<(), Error> {
        let of = self.limited.iter().find(|(user, _)| *user == work.user);
        let Some((_, turn)) = of else {
            return Err(Error::Machine(format!("{} has no such QOS", work.user)));
        };
        let _turn = turn.lock().await;
        let (go, script) = self.until_told(work);
        let options = [STEADY, "--qos=limited"];
        let first = self.submit(work, &options, &script).await?;
        self.running(first).await?;
        let second = self.submit(work, &options, "true").await?;
        self.stay(second, |reason| reason.starts_with("QOS"))
            .await?;
        open(&go)?;
        self.ended(second).await
    }

    /// A script that runs until the file is there, and the file.
    fn until_told(&self, work: &Work) -> (PathBuf, String) {
        let go = self.stage.cluster.path(&format!("go-{}", work.number));
        let script = format!("until [ -e {} ]; do sleep 0.5; done", go.display());
        (go, script)
    }

    /// Submits a job as the user of a work.
    async fn submit(&self, work: &Work, options: &[&str], script: &str) -> Result<u32, Error> {
        let fixed = [
            "sbatch",
            "--parsable",
            "--chdir=/tmp",
            "--output=/dev/null",
            "--wrap",
            script,
        ];
        let command = [&fixed[..], options].concat();
        let said = self.stage.ask(work.user, &command).await?;
        self.submitted(&said)
    }

    async fn submit_array(
        &self,
        work: &Work,
        tasks: u32,
        options: &[&str],
        script: &str,
    ) -> Result<u32, Error> {
        let job = self.submit(work, options, script).await?;
        self.stage.log.borrow_mut().arrays.insert(job, tasks);
        Ok(job)
    }

    fn submitted(&self, said: &str) -> Result<u32, Error> {
        let id = said.split(';').next().unwrap_or_default();
        let job = id
            .parse()
            .map_err(|_| Error::Machine(format!("sbatch answered {said:?}, not a job id")))?;
        self.stage.log.borrow_mut().jobs.insert(job);
        Ok(job)
    }

    async fn tell(&self, user: &str, command: &[&str]) -> Result<(), Error> {
        self.stage.ask(user, command).await.map(drop)
    }

    async fn update_job(&self, job: u32, change: &str) -> Result<(), Error> {
        let job = format!("JobId={job}");
        self.tell("root", &["scontrol", "update", &job, change])
            .await
    }

    async fn running(&self, job: u32) -> Result<(), Error> {
        self.stage.see_state(&job.to_string(), &["RUNNING"]).await
    }

    /// Waits until a job waits, runs and is cleaned up no more, however it ended.
    async fn ended(&self, job: u32) -> Result<(), Error> {
        const ALIVE: [&str; 6] = [
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "SUSPENDED",
            "COMPLETING",
            "REQUEUED",
        ];
        let id = job.to_string();
        self.stage
            .see(&format!("job {job} ends"), PATIENCE, |queue| {
                let (state, _) = queue.get(&id)?;
                (!ALIVE.contains(&state.as_str())).then_some(())
            })
            .await
    }

    /// Waits until a job waits for such a reason and sweeps must have seen it, and notes that.
    async fn stay(&self, job: u32, is: impl Fn(&str) -> bool) -> Result<(), Error> {
        if let Some(wait) = self.watch(job, is).await? {
            self.stage.log.borrow_mut().waits.push(wait);
        }
        Ok(())
    }

    /// The same; `None` if the reason was another at some look meanwhile.
    async fn watch(&self, job: u32, is: impl Fn(&str) -> bool) -> Result<Option<Wait>, Error> {
        let waiting = |queue: &Queue| {
            let (state, reason) = row(queue, job)?;
            (state == "PENDING").then(|| reason.clone())
        };
        let what = format!("job {job} waits for its reason");
        let reason = self
            .stage
            .see(&what, PATIENCE, |queue| {
                waiting(queue).filter(|reason| is(reason))
            })
            .await?;
        let from = now();
        let other = self.stage.see("another reason", LONGEST, |queue| {
            let found = waiting(queue);
            (found.as_ref() != Some(&reason)).then_some(found)
        });
        tokio::select! {
            swept = self.stage.swept("ingest") => {
                let until = now();
                Ok(swept.then_some(Wait { job, reason, from, until }))
            }
            found = other => {
                self.stage.note(format!("job {job}: {reason} became {found:?} before two sweeps"));
                Ok(None)
            }
        }
    }
}

/// The row of a job, or of what waits of an array.
fn row(queue: &Queue, job: u32) -> Option<&(String, String)> {
    queue.get(&job.to_string()).or_else(|| {
        let array = format!("{job}_[");
        let mut rows = queue.iter();
        rows.find(|(id, _)| id.starts_with(&array))
            .map(|(_, row)| row)
    })
}

/// Tells a script to end.
fn open(go: &PathBuf) -> Result<(), Error> {
    std::fs::write(go, "").map_err(Error::io("write", go))
}

impl Stage {
    /// Ends what is still there: jobs whose work was given up, and what Slurm has forgotten to start.
    pub(super) async fn clear(&self, patience: Duration) -> Result<(), Error> {
        let began = Instant::now();
        let mut told = false;
        loop {
            let command = ["squeue", "-h", "-a", "-o", "%i|%T|%r"];
            let left = self.ask("root", &command).await?;
            if left.is_empty() {
                return Ok(());
            }
            if began.elapsed() > patience && !told {
                told = true;
                self.note(format!("still there: {}", left.replace('\n', ", ")));
                self.ask(
                    "root",
                    &[
                        "scancel",
                        "--user=alice,bob,carol",
                        "--state=PENDING,RUNNING,SUSPENDED",
                    ],
                )
                .await
                .ok();
                for user in ["alice", "bob", "carol"] {
                    self.ask("root", &["scancel", "--user", user]).await?;
                }
            }
            if began.elapsed() > patience + PATIENCE {
                return Err(Error::Deadline {
                    what: format!("the queue is empty: {left}"),
                    patience: patience + PATIENCE,
                });
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}
