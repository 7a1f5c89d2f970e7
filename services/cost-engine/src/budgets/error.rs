//! Why budgets cannot be used: every fault with its file.

use std::fmt;
use std::path::PathBuf;

use crate::price_book::Fault;

/// Why budgets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BudgetsError {
    /// A file or the folder cannot be read.
    #[error("read budgets {path}", path = path.display())]
    Read {
        /// Path.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Budgets have faults.
    #[error("budgets: {faults}", faults = list(.0))]
    Invalid(Vec<BudgetFault>),
}

/// A fault of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetFault {
    /// Path of the file.
    pub file: String,
    /// The fault. Its key starts with the budget.
    pub fault: Fault,
}

impl fmt::Display for BudgetFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.fault)
    }
}

fn list(faults: &[BudgetFault]) -> String {
    let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
    faults.join("; ")
}
