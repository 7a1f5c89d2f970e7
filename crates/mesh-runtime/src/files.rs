//! The files of SQLite that services keep things in: read whole at the start and once a day, so that damage is known before it is met.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Condition, Context, Service};

/// Between two checks. A check reads all of a file.
const CHECK_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Before the next check where a file could not be read for now: it may be damaged all the same.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// What a check found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All can be read.
    Nothing,
    /// What is damaged, what is lost, and what to do.
    Damage(String),
    /// It cannot be read now.
    Unread,
}

/// Checks the file of a service, now and once a day. Never ends before the process does.
pub(crate) fn keep_checking<S: Service>(context: &Context, file: PathBuf) -> Condition {
    let condition = context.health.condition(&format!("{}.file", S::NAME));
    condition.ok();
    let (shutdown, shared) = (context.shutdown.clone(), condition.clone());
    let checks = async move {
        loop {
            let pause = match check::<S>(&file, &shared).await {
                Found::Unread => RETRY_INTERVAL,
                Found::Nothing | Found::Damage(_) => CHECK_INTERVAL,
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::spawn(shutdown.run_until_cancelled_owned(checks));
    condition
}

pub(crate) async fn check<S: Service>(file: &Path, condition: &Condition) -> Found {
    let path = file.display();
    match S::damage(file).await {
        Ok(None) => {
            condition.ok();
            Found::Nothing
        }
        Ok(Some(damage)) => {
            tracing::error!(service = S::NAME, file = %path, damage, "database file is damaged");
            let problem = format!("{path} is damaged ({damage}): {}", S::REMEDY);
            condition.fail(problem.clone());
            Found::Damage(problem)
        }
        Err(error) => {
            tracing::warn!(service = S::NAME, file = %path, %error, "read the whole database file, trying again");
            Found::Unread
        }
    }
}
