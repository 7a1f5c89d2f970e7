//! Operations shared by all works: submit, release, and wait for states in the queue.

use std::path::PathBuf;

use super::{LONGEST, WorkloadRunner};
use crate::log::{Wait, now};
use crate::plan::Work;
use crate::testbed::{PATIENCE, Queue};
use integration::Error;

impl WorkloadRunner<'_> {
    /// A script that runs until a file exists, and the path of that file.
    pub(super) fn until_released(&self, work: &Work) -> (PathBuf, String) {
        let go = self.testbed.cluster.path(&format!("go-{}", work.number));
        let script = format!("until [ -e {} ]; do sleep 0.5; done", go.display());
        (go, script)
    }

    /// Submits a job as the user of a work.
    pub(super) async fn submit(
        &self,
        work: &Work,
        options: &[&str],
        script: &str,
    ) -> Result<u32, Error> {
        let fixed = ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null"];
        // The script comes last, because in accounting's submit line the words after it may be a part of it.
        let command = [&fixed[..], options, &["--wrap", script]].concat();
        let printed = self.testbed.ask(work.user, &command).await?;
        self.submitted(&printed)
    }

    pub(super) async fn submit_array(
        &self,
        work: &Work,
        tasks: u32,
        options: &[&str],
        script: &str,
    ) -> Result<u32, Error> {
        let job = self.submit(work, options, script).await?;
        self.testbed.log.borrow_mut().arrays.insert(job, tasks);
        Ok(job)
    }

    pub(super) fn submitted(&self, printed: &str) -> Result<u32, Error> {
        let id = printed.split(';').next().unwrap_or_default();
        let job = id
            .parse()
            .map_err(|_| Error::Machine(format!("sbatch answered {printed:?}, not a job id")))?;
        self.testbed.log.borrow_mut().jobs.insert(job);
        Ok(job)
    }

    pub(super) async fn run_as(&self, user: &str, command: &[&str]) -> Result<(), Error> {
        self.testbed.ask(user, command).await.map(drop)
    }

    pub(super) async fn update_job(&self, job: u32, change: &str) -> Result<(), Error> {
        let job = format!("JobId={job}");
        self.run_as("root", &["scontrol", "update", &job, change])
            .await
    }

    pub(super) async fn running(&self, job: u32) -> Result<(), Error> {
        self.testbed.see_state(&job.to_string(), &["RUNNING"]).await
    }

    /// Waits until a job is no longer pending, running or completing.
    pub(super) async fn ended(&self, job: u32) -> Result<(), Error> {
        const ALIVE: [&str; 6] = [
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "SUSPENDED",
            "COMPLETING",
            "REQUEUED",
        ];
        let id = job.to_string();
        self.testbed
            .see(&format!("job {job} ends"), PATIENCE, |queue| {
                let (state, _) = queue.get(&id)?;
                (!ALIVE.contains(&state.as_str())).then_some(())
            })
            .await
    }

    /// Waits until a job is pending for such a reason long enough for polls to have seen it, and logs that.
    pub(super) async fn see_wait(&self, job: u32, is: impl Fn(&str) -> bool) -> Result<(), Error> {
        if let Some(wait) = self.watch(job, is).await? {
            self.testbed.log.borrow_mut().waits.push(wait);
        }
        Ok(())
    }

    /// The same. `None` if the reason changed meanwhile.
    pub(super) async fn watch(
        &self,
        job: u32,
        is: impl Fn(&str) -> bool,
    ) -> Result<Option<Wait>, Error> {
        let waiting = |queue: &Queue| {
            let (state, reason) = row(queue, job)?;
            (state == "PENDING").then(|| reason.clone())
        };
        let description = format!("job {job} waits for its reason");
        let reason = self
            .testbed
            .see(&description, PATIENCE, |queue| {
                waiting(queue).filter(|reason| is(reason))
            })
            .await?;
        let from = now();
        let other = self.testbed.see("another reason", LONGEST, |queue| {
            let found = waiting(queue);
            (found.as_ref() != Some(&reason)).then_some(found)
        });
        tokio::select! {
            polled = self.testbed.polled("ingest") => {
                let until = now();
                Ok(polled.then_some(Wait { job, reason, from, until }))
            }
            found = other => {
                self.testbed.note(format!("job {job}: {reason} became {found:?} before two polls"));
                Ok(None)
            }
        }
    }
}

/// The row of a job, or of the pending part of an array.
pub(super) fn row(queue: &Queue, job: u32) -> Option<&(String, String)> {
    queue.get(&job.to_string()).or_else(|| {
        let array = format!("{job}_[");
        let mut rows = queue.iter();
        rows.find(|(id, _)| id.starts_with(&array))
            .map(|(_, row)| row)
    })
}

/// Releases a script, so that it ends.
pub(super) fn open(go: &PathBuf) -> Result<(), Error> {
    std::fs::write(go, "").map_err(Error::io("write", go))
}
