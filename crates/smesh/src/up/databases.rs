//! The files of SQLite that services keep things in: read whole at the start and once a day, so that damage is known before it is met.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_db::damage;
use mesh_runtime::{Condition, Context};

/// Between two looks. A look reads all of a file.
const CHECK_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

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
            check(service, &path, &condition).await;
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    tokio::spawn(shutdown.run_until_cancelled_owned(checks));
}

async fn check(service: &'static str, path: &Path, condition: &Condition) {
    match damage::damage(path).await {
        Ok(None) => condition.ok(),
        Ok(Some(damage)) => {
            let file = path.display();
            tracing::error!(service, %file, damage, "database file is damaged");
            condition.fail(format!("{file} is damaged ({damage}): {}", remedy(service)));
        }
        Err(error) => {
            tracing::warn!(service, file = %path.display(), %error, "read the whole database file");
        }
    }
}
