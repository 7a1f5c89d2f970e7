//! The end of the workload.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::testbed::{PATIENCE, Testbed};
use integration::Error;

impl Testbed {
    /// Ends the remaining jobs: those of abandoned works, and those that Slurm failed to start.
    pub(crate) async fn clear(&self, patience: Duration) -> Result<(), Error> {
        let began = Instant::now();
        let mut published = false;
        loop {
            let command = ["squeue", "-h", "-a", "-o", "%i|%T|%r"];
            let left = self.ask("root", &command).await?;
            if left.is_empty() {
                return Ok(());
            }
            if began.elapsed() > patience && !published {
                published = true;
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
                    description: format!("the queue is empty: {left}"),
                    patience: patience + PATIENCE,
                });
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}
