//! Actors on other users' jobs: names of uids, and the accounts that users coordinate.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Timeout for the user database to resolve a uid. After that, the uid stands for itself.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of stored names. More users than any site has that act on other users' jobs.
const MAX_NAMES: usize = 10_000;

/// Resolves actors.
#[derive(Debug, Default)]
pub struct Actors {
    names: Mutex<HashMap<u32, String>>,
    coordinators: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

impl Actors {
    /// Looks up the name of a uid, once. A user database that hangs costs [`LOOKUP_TIMEOUT`], and the lookup is retried next time.
    pub async fn look_up(&self, uid: u32) {
        if lock(&self.names).contains_key(&uid) {
            return;
        }
        let name = tokio::task::spawn_blocking(move || {
            let user = uzers::get_user_by_uid(uid)?;
            Some(user.name().to_string_lossy().into_owned())
        });
        match tokio::time::timeout(LOOKUP_TIMEOUT, name).await {
            Ok(Ok(Some(name))) => {
                let mut names = lock(&self.names);
                if names.len() < MAX_NAMES {
                    names.insert(uid, name);
                }
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(uid, %error, "user lookup failed"),
            Err(_) => tracing::debug!(uid, "user lookup timed out"),
        }
    }

    /// Returns the name of a uid if it was looked up, else the uid in digits, as Slurm prints it.
    pub fn name(&self, uid: u32) -> String {
        let name = lock(&self.names).get(&uid).cloned();
        name.unwrap_or_else(|| uid.to_string())
    }

    /// Sets the accounts of each coordinator, without administrators, who act as such.
    pub fn set_coordinators(&self, coordinators: BTreeMap<String, BTreeSet<String>>) {
        *lock(&self.coordinators) = coordinators;
    }

    /// Whether a user coordinates an account.
    pub fn coordinates(&self, user: &str, account: &str) -> bool {
        let coordinators = lock(&self.coordinators);
        coordinators
            .get(user)
            .is_some_and(|accounts| accounts.contains(account))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
