//! The IO side: the database, without decisions.

mod outbox;
mod price_books;
mod queries;
mod sqlite;

pub use outbox::Unpublished;
pub use queries::{By, Filter, OpenRun, SumRow};
pub use sqlite::{CostRow, Store, Transaction};
