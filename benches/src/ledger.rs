//! The ledger on SQLite and PostgreSQL: speed of appending ([`append`], [`commit`]), and behaviour with many entries ([`past`]:
//! verifying, [`queries`], [`export`]).

mod append;
mod commit;
pub mod database;
mod export;
mod fill;
mod history;
pub mod past;
mod queries;
mod raw;
mod size;
pub mod verify;

use crate::Arguments;
use crate::report::Section;

/// Measures appending.
pub async fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Section>> {
    Ok(vec![
        append::measure(arguments).await?,
        commit::measure(arguments).await?,
    ])
}
