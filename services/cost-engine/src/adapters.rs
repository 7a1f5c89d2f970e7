//! The database. No decisions.

mod account_parents;
mod accruals;
mod api_budgets;
mod audit_entries;
mod budgets;
mod closed_periods;
mod costs;
mod finalized_runs;
mod node_partitions;
mod nodes;
mod open_runs;
mod outbox;
mod pending_runs;
mod people;
mod price_books;
mod queries;
mod runs;
mod slices;
mod store;
mod transaction;

pub(crate) use audit_entries::AUDIT_ENTRIES;
pub use budgets::{BudgetFacts, BudgetState};
pub use closed_periods::ClosedPeriod;
pub use costs::{AdjustmentRow, CostRow, FinalCost};
pub use finalized_runs::{FinalizedRun, FinalizedRuns};
pub use node_partitions::{NodePartitions, NodesOfPartitions};
pub use nodes::NodeChange;
pub use open_runs::OpenRun;
pub use outbox::OutboxEvent;
pub use pending_runs::PendingRun;
pub use people::{People, Person};
pub use price_books::PriceBooks;
pub use queries::{CostGroup, CostSum, Filter, RunKeys};
pub use slices::SliceCosts;
pub use store::Store;
pub use transaction::Transaction;
