//! `smesh recover`: recovers a damaged file of a service.

use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use crate::cli::{Global, Recover};
use crate::error::Error;
use crate::up::recover::{self, RecoveredFile};
use crate::{services, settings, show};

pub(super) async fn run(global: &Global, args: Recover) -> Result<ExitCode, Error> {
    let service =
        services::find(&args.service).ok_or_else(|| recover::no_database_file(&args.service))?;
    recover::recovery(service)?;
    let context = settings::load(global, CancellationToken::new())?;
    let RecoveredFile {
        path,
        recovered,
        restored,
    } = recover::file(&context, service).await?;
    if global.json {
        let tables = recovered.tables.iter().map(|table| {
            serde_json::json!({ "table": table.name, "rows": table.rows, "damaged": table.is_damaged })
        });
        let tables: Vec<_> = tables.collect();
        show::line(
            serde_json::json!({ "file": path, "damaged_file": recovered.damaged, "tables": tables, "restored": restored }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    match &recovered.damaged {
        Some(damaged) => show::line(format!("the damaged file is now {}", damaged.display()))?,
        None => show::line("there was no file; a new one was made")?,
    }
    if recovered.damaged.is_some() && recovered.tables.is_empty() {
        show::line("nothing in it is readable; the service starts with an empty database")?;
    }
    for table in &recovered.tables {
        let lost = match table.is_damaged {
            true => ", others on damaged pages are lost",
            false => "",
        };
        show::line(format!("  {}: {} rows{lost}", table.name, table.rows))?;
    }
    show::line(restored)?;
    show::line(format!(
        "start {} or `smesh up`{}",
        args.service,
        match recovered.damaged {
            Some(_) => "; delete the damaged file when it is no longer needed",
            None => "",
        }
    ))?;
    Ok(ExitCode::SUCCESS)
}
