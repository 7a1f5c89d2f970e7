//! Actors on other users' jobs: names of uids, and the accounts that users coordinate.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mesh_runtime::UserNames;

/// Timeout for the user database to resolve a uid. After that, the uid stands for itself.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of stored names. More users than any site has that act on other users' jobs.
const MAX_NAMES: usize = 10_000;

/// Resolves actors.
#[derive(Debug)]
pub struct Actors {
    database: UserNames,
    names: Mutex<HashMap<u32, String>>,
    coordinators: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

impl Default for Actors {
    fn default() -> Self {
        Self::with(UserNames::new(LOOKUP_TIMEOUT))
    }
}

impl Actors {
    fn with(database: UserNames) -> Self {
        Self {
            database,
            names: Mutex::default(),
            coordinators: Mutex::default(),
        }
    }

    /// Looks up the name of a uid, once. A user database that hangs costs [`LOOKUP_TIMEOUT`] a minute, and the lookup is retried then.
    pub async fn look_up(&self, uid: u32) {
        if lock(&self.names).contains_key(&uid) {
            return;
        }
        match self.database.get(uid).await {
            Ok(Some(name)) => {
                let mut names = lock(&self.names);
                if names.len() < MAX_NAMES {
                    names.insert(uid, name);
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(uid, %error, "user lookup timed out"),
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_user_database_that_hangs_delays_only_the_first_of_many_readings() {
        const TIMEOUT: Duration = Duration::from_millis(500);
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        let actors = Actors::with(UserNames::asking(TIMEOUT, move |_| {
            lock(&gone).recv().ok();
            None
        }));
        let began = Instant::now();
        for n in 0..40 {
            actors.look_up(4_711 + n % 4).await;
        }
        assert!(began.elapsed() < 4 * TIMEOUT, "{:?}", began.elapsed());
        assert_eq!(actors.name(4_711), "4711");
        drop(go);
    }
}
