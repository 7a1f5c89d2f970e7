//! Watches the folder of budgets, and those of the API. Faulty files are reported, and the last valid ones remain in use. Of the budgets of
//! the API each is on its own.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use mesh_runtime::{HealthNote, ReloadTimer, WatchedFiles};
use tokio::sync::watch;

use super::Budget;
use super::error::BudgetsError;
use super::files;
use crate::adapters::Store;
use crate::metrics;
use crate::price_book::PriceBook;

/// The budgets in use, and their files.
pub(crate) struct BudgetWatcher {
    pub budgets: watch::Sender<Arc<Vec<Budget>>>,
    /// Those of files alone.
    pub of_files: watch::Sender<Arc<Vec<Budget>>>,
    folder: PathBuf,
    files: WatchedFiles,
    /// Budgets of the API: name and content.
    of_api: Vec<(String, String)>,
    /// Names budgets of the API that are not in use.
    ignored: HealthNote,
}

impl BudgetWatcher {
    /// Loads the budgets for the first time.
    pub fn new(
        folder: PathBuf,
        book: &PriceBook,
        ignored: HealthNote,
    ) -> Result<Self, BudgetsError> {
        let mut watched = WatchedFiles::default();
        watched.add_folder(folder.clone(), files::is_budget_file);
        let budgets = files::load(&folder, Some(&book.currency))?;
        let budgets = Arc::new(budgets);
        Ok(Self {
            budgets: watch::Sender::new(Arc::clone(&budgets)),
            of_files: watch::Sender::new(budgets),
            folder,
            files: watched,
            of_api: Vec::new(),
            ignored,
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
        let (are_files_new, is_api_new) = (self.files.changed(), of_api != self.of_api);
        if !are_files_new && !is_api_new {
            return false;
        }
        self.of_api = of_api;
        if are_files_new && !self.reload_files(book) && !is_api_new {
            return false;
        }
        let budgets = self.with_api(&book.currency);
        tracing::info!(budgets = budgets.len(), "budgets reloaded");
        self.budgets.send_replace(Arc::new(budgets));
        true
    }

    /// False if they have faults.
    fn reload_files(&self, book: &PriceBook) -> bool {
        let loaded = files::load(&self.folder, Some(&book.currency));
        metrics::budgets_reloaded(loaded.is_ok());
        match loaded {
            Ok(budgets) => {
                self.of_files.send_replace(Arc::new(budgets));
                true
            }
            Err(error) => {
                tracing::error!(
                    error = mesh_runtime::error_chain(&error),
                    "budgets invalid, last valid ones still in use"
                );
                false
            }
        }
    }

    /// The budgets of files, and those of the API that are valid and have other names.
    fn with_api(&self, currency: &str) -> Vec<Budget> {
        let mut budgets = Vec::clone(&self.of_files.borrow());
        let names: BTreeSet<String> = budgets.iter().map(|budget| budget.name.clone()).collect();
        let mut ignored = Vec::new();
        for (name, content) in &self.of_api {
            let fault = match files::parse_one(content, currency) {
                Ok(_) if names.contains(name) => "a file has a budget of this name".to_owned(),
                Ok(budget) => {
                    budgets.extend(budget);
                    continue;
                }
                Err(error) => mesh_runtime::error_chain(&error),
            };
            tracing::warn!(budget = name, "budget of the API ignored: {fault}");
            ignored.push(format!("{name:?}: {fault}"));
        }
        match ignored.is_empty() {
            true => self.ignored.clear(),
            false => {
                let ignored = ignored.join("; ");
                self.ignored
                    .say(format!("budgets of the API that are not in use: {ignored}"));
            }
        }
        budgets
    }
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
        let health = mesh_runtime::Health::default();
        let note = health.note("cost-engine.budgets");
        let mut watcher = BudgetWatcher::new(folder.path().to_owned(), &book, note).unwrap();
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
        assert!(watcher.check(&book, of_api(&known)));
        assert_eq!(watcher.budgets.borrow().len(), 8);
        assert_eq!(amount(&watcher), 4_000_000_000);
        // A faulty one is left out, and the others and the files are reloaded.
        let mut with_fault = of_api("new");
        with_fault.push(("faulty".into(), "[[budget]]\nname = 1\n".into()));
        std::fs::write(&file, good.replace("3000.00", "5000.00")).unwrap();
        assert!(watcher.check(&book, with_fault));
        let note = &health.notes()["cost-engine.budgets"];
        assert!(note.contains("\"faulty\": budgets: the request"), "{note}");
        assert_eq!(watcher.budgets.borrow().len(), 9);
        assert_eq!(amount(&watcher), 5_000_000_000);
        // So are budgets of the API beside faulty files.
        std::fs::write(&file, good.replace("3000.00", "three")).unwrap();
        assert!(watcher.check(&book, of_api("newer")));
        assert_eq!(watcher.budgets.borrow()[8].name, "newer");
        assert!(health.notes().is_empty());
        assert_eq!(amount(&watcher), 5_000_000_000);
    }
}
