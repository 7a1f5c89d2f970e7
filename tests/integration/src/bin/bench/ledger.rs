//! The ledger on SQLite and PostgreSQL: how fast it takes facts in ([`append`], [`commit`]), and what it is like when it holds many
//! ([`past`]: verifying, [`queries`], [`export`]).

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
mod verify;

use crate::Arguments;
use crate::report::Section;

/// Taking facts in.
pub async fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Section>> {
    Ok(vec![
        append::measure(arguments).await?,
        commit::measure(arguments).await?,
    ])
}
