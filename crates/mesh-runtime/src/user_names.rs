//! Names of uids, from the system's user database, which may be remote and hang.
//!
//! A lookup blocks a thread until the database answers, even if every caller has given up. So callers of a uid share one lookup, few run
//! at once, answers are kept for a while, and once one has timed out, callers hardly wait for others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};

/// How long an answer, or that there was none, is used.
const CACHE_TTL: Duration = Duration::from_secs(60);
/// How long a known name is used if the database does not answer.
const STALE_TTL: Duration = Duration::from_secs(60 * 60);
/// Maximum number of blocked threads.
const MAX_LOOKUPS: usize = 8;
/// Wait for an answer after another lookup has timed out. Users in local files are found within it.
const SHORT_WAIT: Duration = Duration::from_millis(50);
/// Maximum number of stored uids. More users than any site has.
const MAX_USERS: usize = 100_000;

type Ask = dyn Fn(u32) -> Option<String> + Send + Sync;

/// The user database did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the user database did not answer")]
pub struct LookupTimeout;

/// Looks up names. Cheap to clone; clones share their state.
#[derive(Clone)]
pub struct UserNames(Arc<Shared>);

struct Shared {
    ask: Box<Ask>,
    timeout: Duration,
    threads: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    users: HashMap<u32, User>,
    /// Time of the last timeout.
    hung: Option<Instant>,
}

#[derive(Default)]
struct User {
    answer: Option<(Instant, Option<String>)>,
    /// When a caller waited in vain, since the last answer.
    gave_up: Option<Instant>,
    /// Closed when the lookup under way ends.
    running: Option<watch::Receiver<()>>,
}

impl fmt::Debug for UserNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserNames").finish_non_exhaustive()
    }
}

impl UserNames {
    /// Asks the system. A caller waits at most this long.
    pub fn new(timeout: Duration) -> Self {
        Self::asking(timeout, |uid| {
            let user = uzers::get_user_by_uid(uid)?;
            Some(user.name().to_string_lossy().into_owned())
        })
    }

    /// Asks a function, which may block.
    pub fn asking(
        timeout: Duration,
        ask: impl Fn(u32) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            ask: Box::new(ask),
            timeout,
            threads: Semaphore::new(MAX_LOOKUPS),
            state: Mutex::default(),
        }))
    }

    /// The name of a uid; `None` if no user has it.
    ///
    /// # Errors
    /// If the database did not answer in time, now or within the last minute.
    pub async fn get(&self, uid: u32) -> Result<Option<String>, LookupTimeout> {
        let (mut ended, wait) = {
            let mut state = self.lock();
            let wait = if is_recent(state.hung) {
                SHORT_WAIT.min(self.0.timeout)
            } else {
                self.0.timeout
            };
            if state.users.len() >= MAX_USERS && !state.users.contains_key(&uid) {
                state.users.retain(|_, user| user.running.is_some());
            }
            let user = state.users.entry(uid).or_default();
            if let Some((at, name)) = &user.answer
                && is_recent(Some(*at))
            {
                return Ok(name.clone());
            }
            if is_recent(user.gave_up) {
                return user.stale();
            }
            let ended = user.running.get_or_insert_with(|| self.start(uid));
            (ended.clone(), wait)
        };
        // Nothing is sent: the channel is closed.
        let in_time = tokio::time::timeout(wait, ended.changed()).await.is_ok();
        let mut state = self.lock();
        if !in_time && wait == self.0.timeout {
            state.hung = Some(Instant::now());
        }
        let user = state.users.entry(uid).or_default();
        match &user.answer {
            Some((_, name)) if in_time && user.gave_up.is_none() => Ok(name.clone()),
            _ => {
                user.gave_up = Some(Instant::now());
                user.stale()
            }
        }
    }

    fn start(&self, uid: u32) -> watch::Receiver<()> {
        let (end, ended) = watch::channel(());
        let names = self.clone();
        tokio::spawn(async move {
            let _thread = names.0.threads.acquire().await;
            let shared = Arc::clone(&names.0);
            let answer = tokio::task::spawn_blocking(move || (shared.ask)(uid)).await;
            let mut state = names.lock();
            let user = state.users.entry(uid).or_default();
            user.running = None;
            match answer {
                Ok(name) => {
                    user.answer = Some((Instant::now(), name));
                    user.gave_up = None;
                }
                Err(error) => {
                    tracing::warn!(uid, %error, "user lookup failed");
                    user.gave_up = Some(Instant::now());
                }
            }
            drop(end);
        });
        ended
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl User {
    fn stale(&self) -> Result<Option<String>, LookupTimeout> {
        match &self.answer {
            Some((at, Some(name))) if at.elapsed() < STALE_TTL => Ok(Some(name.clone())),
            _ => Err(LookupTimeout),
        }
    }
}

fn is_recent(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() < CACHE_TTL)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use futures_util::future::join_all;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);
    /// Unknown to the database.
    const UNKNOWN: u32 = 7;
    /// The database hangs for uids from here.
    const HANGING: u32 = 1_000;

    /// A database that hangs for some uids until the sender is dropped, with the number of its lookups.
    fn database() -> (UserNames, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let (go, gone) = mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let names = UserNames::asking(TIMEOUT, move |uid| {
            count.fetch_add(1, Ordering::SeqCst);
            if uid >= HANGING {
                gone.lock().unwrap().recv().ok();
            }
            (uid != UNKNOWN).then(|| format!("user-{uid}"))
        });
        (names, go, asked)
    }

    #[tokio::test]
    async fn an_answer_is_kept_also_that_there_is_no_such_user() {
        let (names, _go, asked) = database();
        for _ in 0..3 {
            assert_eq!(names.get(1).await, Ok(Some("user-1".into())));
            assert_eq!(names.get(UNKNOWN).await, Ok(None));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_uid_is_looked_up_once_and_nobody_waits_after_a_timeout() {
        let (names, go, asked) = database();
        let all = join_all((0..600).map(|_| names.get(HANGING))).await;
        assert!(all.iter().all(|answer| *answer == Err(LookupTimeout)));
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!(names.get(HANGING).await, Err(LookupTimeout));
        }
        assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // The late answer counts.
        drop(go);
        let found = tokio::time::timeout(24 * TIMEOUT, async {
            while names.get(HANGING).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        found.await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn after_one_timeout_others_hardly_wait_and_few_threads_hang() {
        let (names, go, asked) = database();
        assert_eq!(names.get(HANGING).await, Err(LookupTimeout));
        let local = tokio::time::timeout(24 * TIMEOUT, async {
            while names.get(1).await != Ok(Some("user-1".into())) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        local.await.expect("local users have answers");
        let began = Instant::now();
        for n in 1..=20 {
            assert_eq!(names.get(HANGING + n).await, Err(LookupTimeout));
        }
        assert!(began.elapsed() < 8 * TIMEOUT, "{:?}", began.elapsed());
        assert!(asked.load(Ordering::SeqCst) <= MAX_LOOKUPS + 1);
        drop(go);
    }

    #[tokio::test]
    async fn a_known_name_outlives_an_outage() {
        let (names, go, _) = database();
        let Some(minutes_ago) = Instant::now().checked_sub(2 * CACHE_TTL) else {
            return;
        };
        let user = User {
            answer: Some((minutes_ago, Some("alice".into()))),
            ..User::default()
        };
        names.lock().users.insert(HANGING, user);
        assert_eq!(names.get(HANGING).await, Ok(Some("alice".into())));
        drop(go);
    }
}
