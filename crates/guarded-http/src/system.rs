//! The system's resolver. A lookup blocks a thread until it returns, even if every caller has given up, and some
//! never return. The threads are limited and shared. Therefore the number of lookups is limited, and concurrent callers
//! of a name share [one](super::resolver).

use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Maximum concurrent lookups: half of tokio's blocking threads.
const MAX_LOOKUPS: usize = 256;

/// The addresses, or the error.
type Found = Result<Vec<IpAddr>, String>;

/// Resolves names through a blocking function.
pub struct System {
    ask: Box<dyn Fn(&str) -> Found + Send + Sync>,
    slots: Semaphore,
}

/// Calls `getaddrinfo`.
pub(super) fn ask(name: &str) -> Found {
    let found = (name, 0)
        .to_socket_addrs()
        .map_err(|error| error.to_string())?;
    Ok(found.map(|address| address.ip()).collect())
}

impl System {
    /// A resolver that calls a blocking function.
    pub fn new(ask: impl Fn(&str) -> Found + Send + Sync + 'static) -> Self {
        Self {
            ask: Box::new(ask),
            slots: Semaphore::new(MAX_LOOKUPS),
        }
    }

    /// The addresses of a name, when a thread is free for it.
    pub(super) async fn look_up(self: &Arc<Self>, name: &str) -> Found {
        let _slot = self.slots.acquire().await.map_err(|e| e.to_string())?;
        let (system, name) = (Arc::clone(self), name.to_owned());
        let asked = tokio::task::spawn_blocking(move || (system.ask)(&name));
        asked.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;
    use crate::resolver::Names;

    const RETRY_INTERVAL: Duration = Duration::from_millis(100);

    /// A system resolver that blocks until released, with the number of its calls.
    fn hanging() -> (Names, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let (go, gone) = mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let system = System::new(move |name: &str| {
            count.fetch_add(1, Ordering::SeqCst);
            if name.starts_with("hangs") {
                // Blocks until the test releases it or ends.
                gone.lock().unwrap().recv().ok();
            }
            Ok(vec![IpAddr::from([127, 0, 0, 1])])
        });
        (Names::of_system(system), go, asked)
    }

    #[tokio::test]
    async fn a_name_that_hangs_holds_one_thread_however_often_it_is_asked_for() {
        let (resolver, go, asked) = hanging();
        // More callers than tokio has blocking threads. All of them give up.
        let waits =
            (0..600).map(|_| tokio::time::timeout(RETRY_INTERVAL, resolver.addresses("hangs")));
        assert!(join_all(waits).await.iter().all(Result::is_err));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let other = tokio::time::timeout(60 * RETRY_INTERVAL, resolver.addresses("other"));
        assert_eq!(other.await.unwrap().unwrap().len(), 1, "others go on");
        go.send(()).unwrap();
        let found = tokio::time::timeout(60 * RETRY_INTERVAL, resolver.addresses("hangs"));
        assert_eq!(found.await.unwrap().unwrap().len(), 1);
        assert_eq!(resolver.unanswered("hangs"), None, "the next asks anew");
    }

    #[tokio::test]
    async fn threads_are_left_for_others_however_many_names_hang() {
        let (resolver, go, asked) = hanging();
        let names: Vec<String> = (0..600).map(|n| format!("hangs-{n}")).collect();
        let waits = names
            .iter()
            .map(|name| tokio::time::timeout(RETRY_INTERVAL, resolver.addresses(name)));
        assert!(join_all(waits).await.iter().all(Result::is_err));
        assert!(asked.load(Ordering::SeqCst) <= MAX_LOOKUPS);
        let other = tokio::task::spawn_blocking(|| 7);
        let other = tokio::time::timeout(60 * RETRY_INTERVAL, other).await;
        assert_eq!(other.unwrap().unwrap(), 7, "a thread is left");
        drop(go);
    }
}
