//! `smesh ledger`: commands for operators and auditors of the ledger.

use std::process::ExitCode;

use ledger::Store;
use ledger_format::note::PrivateKey;
use tokio_util::sync::CancellationToken;

use super::{checkpoints, monitor, retention};
use crate::cli::{Global, Ledger, LedgerKey};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: Ledger) -> Result<ExitCode, Error> {
    match args {
        Ledger::Roles => show::line(ledger::POSTGRES_ROLES.trim_end())?,
        Ledger::Migrate => {
            let context = settings::load(global, CancellationToken::new())?;
            let config: ledger::Config = context.section("ledger")?;
            let failed = |error: ledger::Error| Error::Failed(mesh_runtime::error_chain(&error));
            let location = config.database(&context.mesh.data_dir).map_err(failed)?;
            let store = Store::open(&location, 1).await.map_err(failed)?;
            let head = store.head().await.map_err(failed)?;
            store.close().await;
            show::line(format!(
                "{location} has the tables of this version, and {} entries",
                head.seq
            ))?;
        }
        Ledger::Checkpoint => checkpoints::newest(global).await?,
        Ledger::Key(LedgerKey::Show) => checkpoints::keys(global).await?,
        Ledger::Key(LedgerKey::Rotate) => checkpoints::rotate(global).await?,
        Ledger::Key(LedgerKey::New { origin }) => {
            let origin = match origin {
                Some(origin) => origin,
                None => ledger::CheckpointConfig::default().origin(&settings::cluster(global)?),
            };
            let key = PrivateKey::new(&origin, &rand::random())
                .map_err(|error| Error::Failed(format!("origin {origin}: {error}")))?;
            show::line(key.to_secret_text())?;
        }
        Ledger::Export(args) => checkpoints::export(global, &args).await?,
        Ledger::Retain(args) => retention::retain(global, args).await?,
        Ledger::Archives => retention::list(global).await?,
        Ledger::Monitor(args) => return monitor::run(global, &args).await,
        Ledger::Accept { origin } => monitor::accept(global, &origin).await?,
        Ledger::Resume(args) => checkpoints::resume(global, &args).await?,
    }
    Ok(ExitCode::SUCCESS)
}
