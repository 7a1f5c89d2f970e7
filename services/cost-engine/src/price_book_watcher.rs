//! Watches the price book file. A faulty book is reported, and the last valid one remains in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::adapters::Store;
use crate::error::Error;
use crate::metrics;
use crate::price_book::{PriceBook, PriceBookError};

/// The price book in use, and the stamp of its file when it was read.
pub(crate) struct PriceBookWatcher {
    pub book: watch::Sender<Arc<PriceBook>>,
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
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
        let seen = stamp(&path);
        let book = watch::Sender::new(Arc::new(PriceBook::load(&path)?));
        Ok(Self { book, path, seen })
    }

    /// Stores the content of the book in use under its name and version.
    ///
    /// # Errors
    /// If another content is already stored under them, or the database refuses.
    pub async fn admit(&self, store: &Store) -> Result<(), Error> {
        let book = Arc::clone(&self.book.borrow());
        admitted(store, &book, &self.path).await
    }

    /// Checks every `interval` until shutdown.
    pub async fn follow(
        &mut self,
        interval: Duration,
        store: &Store,
        shutdown: &CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            };
            self.check(store).await;
        }
    }

    /// Reloads the file if it has changed.
    async fn check(&mut self, store: &Store) -> ReloadOutcome {
        // The stamp before reading, so that a change in between is noticed next time.
        let now = stamp(&self.path);
        if now == self.seen {
            return ReloadOutcome::Unchanged;
        }
        let before = std::mem::replace(&mut self.seen, now);
        match self.reread(store).await {
            Ok(book) => {
                tracing::info!(price_book = book.label(), "price book reloaded");
                metrics::reloaded(true);
                self.book.send_replace(Arc::new(book));
                ReloadOutcome::Used
            }
            Err(error) => {
                if matches!(error, Error::Database { .. }) {
                    // The book is not at fault. It is read again at the next poll.
                    self.seen = before;
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
            label: book.label(),
        })),
    }
}

/// Identifies a version of the file without reading it. Both size and time count, because two writes may have the same time.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
mod tests {
    use mesh_db::Location;

    use super::*;

    #[tokio::test]
    async fn a_faulty_book_is_refused_and_the_last_valid_one_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Sqlite(folder.path().join("costs.db")))
            .await
            .unwrap();
        let path = folder.path().join("prices.toml");
        let good = include_str!("../examples/price-book.toml");
        std::fs::write(&path, good).unwrap();
        let mut follower = PriceBookWatcher::new(path.clone()).unwrap();
        follower.admit(&store).await.unwrap();
        assert_eq!(follower.check(&store).await, ReloadOutcome::Unchanged);
        let label = |follower: &PriceBookWatcher| follower.book.borrow().label();

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
}
