//! The database. No decisions.

mod api_budgets;
mod budgets;
mod closed_periods;
mod costs;
mod nodes;
mod outbox;
mod people;
mod price_books;
mod queries;
mod pending_runs;
mod runs;
mod slices;
mod store;

pub use api_budgets::AuditRow;
pub use budgets::{BudgetFacts, BudgetState};
pub use closed_periods::{ClosedPeriod, UnpublishedClosing};
pub use costs::{AdjustmentRow, CostRow, FinalCost, WasteColumns};
pub use nodes::NodeChange;
pub use outbox::Unpublished;
pub use people::{People, Person};
pub use queries::{CostGroup, CostSum, Filter, OpenRun, RunKeys};
pub use pending_runs::{NodesOfPartitions, PendingRun};
pub use runs::Transaction;
pub use slices::{CutRun, PriceBooks};
pub use store::Store;
