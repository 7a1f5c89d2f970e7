//! Watches the folder of budgets. Faulty budgets are reported, and the last valid ones remain in use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_runtime::ReloadTimer;
use secret_file::FileStamp;
use tokio::sync::watch;

use super::Budget;
use super::files::{self, BudgetsError};
use crate::adapters::Store;
use crate::metrics;
use crate::price_book::PriceBook;

/// Stamps of the files of the folder.
type Stamps = BTreeMap<PathBuf, Option<FileStamp>>;

/// The budgets in use, and the stamps of their files when they were read.
pub(crate) struct BudgetWatcher {
    pub budgets: watch::Sender<Arc<Vec<Budget>>>,
    folder: PathBuf,
    seen: Stamps,
    /// Budgets of the API: name and content.
    of_api: Vec<(String, String)>,
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
            of_api: Vec::new(),
        })
    }

    /// Checks whenever the timer is due, until shutdown. Another process may have changed budgets of the API.
    pub async fn follow(
        &mut self,
        mut timer: ReloadTimer,
        book: watch::Receiver<Arc<PriceBook>>,
        store: &Store,
    ) {
        while timer.due().await {
            let book = Arc::clone(&book.borrow());
            match store.api_budgets().await {
                Ok(of_api) => {
                    self.check(&book, of_api);
                }
                Err(error) => {
                    let error = mesh_runtime::error_chain(&error);
                    tracing::warn!(error, "budgets of the API not read, retrying");
                }
            }
        }
    }

    /// Reloads the budgets if they have changed. True if the budgets in use were replaced.
    fn check(&mut self, book: &PriceBook, of_api: Vec<(String, String)>) -> bool {
        // The stamps before reading, so that a change in between is noticed next time.
        let found = stamps(&self.folder);
        if found == self.seen && of_api == self.of_api {
            return false;
        }
        self.seen = found;
        self.of_api = of_api;
        match files::load_with(&self.folder, Some(&book.currency), &self.of_api) {
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
        assert!(!watcher.check(&book, Vec::new()));

        std::fs::write(&file, good.replace("3000.00", "three")).unwrap();
        assert!(!watcher.check(&book, Vec::new()));
        assert_eq!(amount(&watcher), 3_000_000_000);
        std::fs::write(&file, good.replace("3000.00", "4000.00")).unwrap();
        assert!(watcher.check(&book, Vec::new()));
        assert_eq!(amount(&watcher), 4_000_000_000);
        // A second file counts, too.
        let other = good.replace("name = \"", "name = \"other-");
        std::fs::write(folder.path().join("more.toml"), other).unwrap();
        assert!(watcher.check(&book, Vec::new()));
        assert_eq!(watcher.budgets.borrow().len(), 8);
        // So does one of the API, unless a file has its name.
        let of_api = |name: &str| {
            let text = format!(
                "[[budget]]\nname = \"{name}\"\nscope = {{ cluster = \"c\" }}\nperiod = \"month\"\namount = 1\n"
            );
            vec![(name.to_owned(), text)]
        };
        assert!(watcher.check(&book, of_api("new")));
        assert_eq!(watcher.budgets.borrow().len(), 9);
        let known = watcher.budgets.borrow()[0].name.clone();
        assert!(!watcher.check(&book, of_api(&known)));
        assert_eq!(watcher.budgets.borrow().len(), 9);
    }
}
