//! Integrity checks of the services' SQLite files: read whole at start and once a day, so that damage is found before a query meets it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Condition, Context, Service};

/// Interval of checks. A check reads all of a file.
const CHECK_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Pause before the next check if a file could not be read: it may still be damaged.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IntegrityCheck {
    /// The whole file was read without an error.
    Intact,
    /// What is damaged, what is lost, and what to do.
    Damaged(String),
    /// The file cannot be read now.
    Unreadable,
}

/// Checks a service's file now and once a day, until shutdown. Returns the condition that the checks keep up to date.
pub(crate) fn keep_checking<S: Service>(context: &Context, file: PathBuf) -> Condition {
    let condition = context.health.condition(&format!("{}.file", S::NAME));
    condition.ok();
    let (shutdown, shared) = (context.shutdown.clone(), condition.clone());
    let checks = async move {
        loop {
            let pause = match check::<S>(&file, &shared).await {
                IntegrityCheck::Unreadable => RETRY_INTERVAL,
                IntegrityCheck::Intact | IntegrityCheck::Damaged(_) => CHECK_INTERVAL,
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::spawn(shutdown.run_until_cancelled_owned(checks));
    condition
}

pub(crate) async fn check<S: Service>(file: &Path, condition: &Condition) -> IntegrityCheck {
    let path = file.display();
    match S::damage(file).await {
        Ok(None) => {
            condition.ok();
            IntegrityCheck::Intact
        }
        Ok(Some(damage)) => {
            tracing::error!(service = S::NAME, file = %path, damage, "database file is damaged");
            let problem = format!("{path} is damaged ({damage}): {}", S::REMEDY);
            condition.fail(problem.clone());
            IntegrityCheck::Damaged(problem)
        }
        Err(error) => {
            tracing::warn!(service = S::NAME, file = %path, %error, "database file not checked, retrying");
            IntegrityCheck::Unreadable
        }
    }
}
