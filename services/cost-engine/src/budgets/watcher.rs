//! Watches the folder of budgets. Faulty budgets are reported, and the last valid ones remain in use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_runtime::ReloadTimer;
use secret_file::FileStamp;
use tokio::sync::watch;

use super::Budget;
use super::files::{self, BudgetsError};
use crate::metrics;
use crate::price_book::PriceBook;

/// Stamps of the files of the folder.
type Stamps = BTreeMap<PathBuf, Option<FileStamp>>;

/// The budgets in use, and the stamps of their files when they were read.
pub(crate) struct BudgetWatcher {
    pub budgets: watch::Sender<Arc<Vec<Budget>>>,
    folder: PathBuf,
    seen: Stamps,
}

impl BudgetWatcher {
    /// Loads the budgets for the first time.
    pub fn new(folder: PathBuf, book: &PriceBook) -> Result<Self, BudgetsError> {
        let seen = stamps(&folder);
        let budgets = files::load(&folder, Some(&book.currency))?;
        Ok(Self {
            budgets: watch::Sender::new(Arc::new(budgets)),
            folder,
            seen,
        })
    }

    /// Checks whenever the timer is due, until shutdown.
    pub async fn follow(&mut self, mut timer: ReloadTimer, book: watch::Receiver<Arc<PriceBook>>) {
        while timer.due().await {
            let book = Arc::clone(&book.borrow());
            self.check(&book);
        }
    }

    /// Reloads the folder if it has changed. True if the budgets in use were replaced.
    fn check(&mut self, book: &PriceBook) -> bool {
        // The stamps before reading, so that a change in between is noticed next time.
        let found = stamps(&self.folder);
        if found == self.seen {
            return false;
        }
        self.seen = found;
        match files::load(&self.folder, Some(&book.currency)) {
            Ok(budgets) => {
                tracing::info!(budgets = budgets.len(), "budgets reloaded");
                metrics::budgets_reloaded(true);
                self.budgets.send_replace(Arc::new(budgets));
                true
            }
            Err(error) => {
                tracing::error!(
                    error = mesh_runtime::error_chain(&error),
                    "budgets invalid, last valid ones still in use"
                );
                metrics::budgets_reloaded(false);
                false
            }
        }
    }
}

fn stamps(folder: &Path) -> Stamps {
    let files = files::list_files(folder).unwrap_or_default();
    let stamp = |file: PathBuf| {
        let stamp = FileStamp::of(&file);
        (file, stamp)
    };
    files.into_iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_budgets_are_used_and_faulty_ones_are_not() {
        let book = PriceBook::parse(crate::EXAMPLE_PRICE_BOOK, "book").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("budgets.toml");
        let good = crate::EXAMPLE_BUDGETS;
        std::fs::write(&file, good).unwrap();
        let mut watcher = BudgetWatcher::new(folder.path().to_owned(), &book).unwrap();
        let amount = |watcher: &BudgetWatcher| watcher.budgets.borrow()[0].amount.0;
        assert!(!watcher.check(&book));

        std::fs::write(&file, good.replace("3000.00", "three")).unwrap();
        assert!(!watcher.check(&book));
        assert_eq!(amount(&watcher), 3_000_000_000);
        std::fs::write(&file, good.replace("3000.00", "4000.00")).unwrap();
        assert!(watcher.check(&book));
        assert_eq!(amount(&watcher), 4_000_000_000);
        // A second file counts, too.
        let other = good.replace("name = \"", "name = \"other-");
        std::fs::write(folder.path().join("more.toml"), other).unwrap();
        assert!(watcher.check(&book));
        assert_eq!(watcher.budgets.borrow().len(), 8);
    }
}
