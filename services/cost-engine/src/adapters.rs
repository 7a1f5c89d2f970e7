//! The database. No decisions.

mod costs;
mod outbox;
mod people;
mod price_books;
mod queries;
mod runs;
mod store;

pub use costs::{AdjustmentRow, CostRow, FinalCost};
pub use outbox::Unpublished;
pub use people::{People, Person};
pub use queries::{CostGroup, CostSum, Filter, OpenRun};
pub use runs::Transaction;
pub use store::Store;
