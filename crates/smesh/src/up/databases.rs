//! The files of SQLite that services keep things in: read whole at the start and once a day, so that damage is known before it is met.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_db::damage;
use mesh_runtime::{Condition, Context};

/// Between two looks. A look reads all of a file.
const CHECK_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Before the next look where a file could not be read for now: it may be damaged all the same.
const CHECK_AGAIN: Duration = Duration::from_secs(10);

/// What is lost with pages of a service's file, and how it comes back.
pub fn remedy(service: &str) -> &'static str {
    match service {
        "ledger" => {
            "what stands on damaged pages cannot be proven any more: stop `smesh up` and put a backup of the file back, the bus gives what came within 14 days; `smesh verify` says which entries are concerned"
        }
        "cost-engine" => {
            "costs on damaged pages are lost until they are computed again from the bus (14 days): stop `smesh up`, run `smesh recover cost-engine`, start it again"
        }
        _ => {
            "endpoints made by the API and deliveries on damaged pages are lost: stop `smesh up`, run `smesh recover webhook-dispatcher`, start it again"
        }
    }
}

/// Reads the file of a service whole, now and once a day. Never ends before the process does.
pub fn keep_checking(context: &Context, service: &'static str, path: PathBuf) {
    let condition = context.health.condition(&format!("{service}.file"));
    condition.ok();
    let shutdown = context.shutdown.clone();
    let checks = async move {
        loop {
            let pause = check(service, &path, &condition).await;
            tokio::time::sleep(pause).await;
        }
    };
    tokio::spawn(shutdown.run_until_cancelled_owned(checks));
}

/// Returns how long to wait before the next look.
async fn check(service: &'static str, path: &Path, condition: &Condition) -> Duration {
    match damage::damage(path).await {
        Ok(None) => {
            condition.ok();
            CHECK_INTERVAL
        }
        Ok(Some(damage)) => {
            let file = path.display();
            tracing::error!(service, %file, damage, "database file is damaged");
            condition.fail(format!("{file} is damaged ({damage}): {}", remedy(service)));
            CHECK_INTERVAL
        }
        Err(error) => {
            tracing::warn!(service, file = %path.display(), %error, "read the whole database file, trying again");
            CHECK_AGAIN
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_runtime::Health;

    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_read_now_is_looked_at_again_soon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let health = Health::default();
        let condition = health.condition("ledger.file");
        std::fs::create_dir(&path).unwrap();
        assert_eq!(check("ledger", &path, &condition).await, CHECK_AGAIN);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, [0xAA; 4096]).unwrap();
        assert_eq!(check("ledger", &path, &condition).await, CHECK_INTERVAL);
        let problems = health.problems();
        assert!(problems["ledger.file"].contains("ledger.db is damaged"));
    }
}
