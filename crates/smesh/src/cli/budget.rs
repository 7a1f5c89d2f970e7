//! Arguments of `smesh budget`.

use std::path::PathBuf;

use clap::Subcommand;

/// `smesh budget`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Administrators and auditors see all budgets, people those of themselves, coordinators those of their accounts. Budgets are files in the folder of
cost-engine.budgets, or made here: by administrators, and by coordinators for their accounts.

Examples:
  smesh budget list
  smesh budget show nlp
  smesh budget check /etc/slurm-mesh/budgets.d
  smesh budget set nlp.toml")]
pub enum Budget {
    /// List budgets: what of them is used in the present period
    List,
    /// Show a budget: settled, running, and the forecast
    Show {
        /// Name of the budget
        name: String,
    },
    /// Make or change budgets that no file of the cost-engine has
    Set {
        /// File with budgets
        file: PathBuf,
    },
    /// Delete a budget that was made by `smesh budget set`
    Delete {
        /// Name of the budget
        name: String,
    },
    /// Check budget files before they are put in place
    #[command(after_help = "\
Reports all faults with file, line, budget and key. Amounts are compared with the currency of the configured price book, if there is one.

Exit status: 0 no faults; 1 faults, or a file cannot be read.")]
    Check {
        /// Budget file, or a folder with budget files
        file: PathBuf,
    },
}
