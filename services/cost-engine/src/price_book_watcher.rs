//! Watches the price book file. A faulty book is reported, and the last valid one remains in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_runtime::{ReloadTimer, WatchedFiles};
use tokio::sync::watch;

use crate::adapters::Store;
use crate::error::Error;
use crate::metrics;
use crate::price_book::{PriceBook, PriceBookError};

/// The price book in use, and its file.
pub(crate) struct PriceBookWatcher {
    pub book: watch::Sender<Arc<PriceBook>>,
    path: PathBuf,
    files: WatchedFiles,
}

/// Result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReloadOutcome {
    Unchanged,
    Used,
    Refused,
}

impl PriceBookWatcher {
    /// Loads the book for the first time.
    pub fn new(path: PathBuf) -> Result<Self, PriceBookError> {
        let mut files = WatchedFiles::default();
        files.add(path.clone());
        let book = watch::Sender::new(Arc::new(PriceBook::load(&path)?));
        Ok(Self { book, path, files })
    }

    /// Stores the content of the book in use under its name and version.
    ///
    /// # Errors
    /// If another content is already stored under them, or the database refuses.
    pub async fn admit(&self, store: &Store) -> Result<(), Error> {
        let book = Arc::clone(&self.book.borrow());
        admitted(store, &book, &self.path).await
    }

    /// Checks whenever the timer is due, until shutdown.
    pub async fn follow(&mut self, mut timer: ReloadTimer, store: &Store) {
        while timer.due().await {
            self.check(store).await;
        }
    }

    /// Reloads the file if it has changed.
    async fn check(&mut self, store: &Store) -> ReloadOutcome {
        if !self.files.changed() {
            return ReloadOutcome::Unchanged;
        }
        match self.reread(store).await {
            Ok(book) => {
                tracing::info!(price_book = book.label(), "price book reloaded");
                metrics::reloaded(true);
                self.book.send_replace(Arc::new(book));
                ReloadOutcome::Used
            }
            Err(error) => {
                if matches!(error, Error::Database(_)) {
                    // The book is not at fault. It is read again at the next poll.
                    self.files.read_again();
                }
                let current = self.book.borrow().label();
                tracing::error!(
                    error = mesh_runtime::error_chain(&error),
                    price_book = current,
                    "price book invalid, last valid one still in use"
                );
                metrics::reloaded(false);
                ReloadOutcome::Refused
            }
        }
    }

    async fn reread(&self, store: &Store) -> Result<PriceBook, Error> {
        let book = PriceBook::load(&self.path)?;
        admitted(store, &book, &self.path).await?;
        Ok(book)
    }
}

async fn admitted(store: &Store, book: &PriceBook, path: &Path) -> Result<(), Error> {
    match store.admit(book).await? {
        true => Ok(()),
        false => Err(Error::from(PriceBookError::VersionReused {
            path: path.to_owned(),
            label: book.name_and_version(),
        })),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_db::Location;
    use tokio_util::sync::CancellationToken;

    use super::*;

    const EXAMPLE: &str = include_str!("../examples/price-book.toml");

    /// The example in a folder, admitted to a new database.
    async fn watched(folder: &Path) -> (Store, PathBuf, PriceBookWatcher) {
        let database = Location::Sqlite(folder.join("costs.db"));
        let store = Store::open(&database).await.unwrap();
        let path = folder.join("prices.toml");
        std::fs::write(&path, EXAMPLE).unwrap();
        let watcher = PriceBookWatcher::new(path.clone()).unwrap();
        watcher.admit(&store).await.unwrap();
        (store, path, watcher)
    }

    #[tokio::test]
    async fn a_faulty_book_is_refused_and_the_last_valid_one_is_used() {
        let good = EXAMPLE;
        let folder = tempfile::tempdir().unwrap();
        let (store, path, mut follower) = watched(folder.path()).await;
        assert_eq!(follower.check(&store).await, ReloadOutcome::Unchanged);
        let label = |follower: &PriceBookWatcher| follower.book.borrow().name_and_version();

        std::fs::write(&path, "name = ").unwrap();
        assert_eq!(
            (follower.check(&store).await, label(&follower)),
            (ReloadOutcome::Refused, "example 2026-07".to_owned())
        );
        assert_eq!(follower.check(&store).await, ReloadOutcome::Unchanged);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            (follower.check(&store).await, label(&follower)),
            (ReloadOutcome::Refused, "example 2026-07".to_owned())
        );
        std::fs::write(&path, good.replace("2026-07\"", "2026-08-b\"")).unwrap();
        assert_eq!(
            (follower.check(&store).await, label(&follower)),
            (ReloadOutcome::Used, "example 2026-08-b".to_owned())
        );

        // Comments may change under the same version, prices may not.
        let newer = good.replace("2026-07\"", "2026-08-b\"");
        std::fs::write(&path, format!("# checked\n{newer}")).unwrap();
        assert_eq!(follower.check(&store).await, ReloadOutcome::Used);
        std::fs::write(&path, newer.replace("\"0.34\"", "\"1.00\"")).unwrap();
        assert_eq!(follower.check(&store).await, ReloadOutcome::Refused);
        let error = follower.reread(&store).await.unwrap_err();
        let text = mesh_runtime::error_chain(&error);
        assert!(
            text.contains("prices.toml") && text.contains("2026-08-b") && text.contains("version"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn sighup_reloads_the_book_at_once() {
        let good = EXAMPLE;
        let folder = tempfile::tempdir().unwrap();
        let (store, path, mut watcher) = watched(folder.path()).await;
        let mut book = watcher.book.subscribe();
        let shutdown = CancellationToken::new();
        let timer = ReloadTimer::every(Duration::from_secs(3600), shutdown.clone());
        let follow = tokio::spawn(async move { watcher.follow(timer, &store).await });

        std::fs::write(&path, good.replace("2026-07\"", "2026-08\"")).unwrap();
        let pid = std::process::id().to_string();
        let status = std::process::Command::new("kill")
            .args(["-HUP", &pid])
            .status();
        assert!(status.unwrap().success());
        book.changed().await.unwrap();
        assert_eq!(book.borrow().name_and_version(), "example 2026-08");
        shutdown.cancel();
        follow.await.unwrap();
    }
}
