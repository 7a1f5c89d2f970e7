//! `smesh price check`: compares expected job costs with the site's price book.

use std::path::PathBuf;
use std::process::ExitCode;

use cost_engine::PriceBook;
use cost_engine::domain::PriceError;
use cost_engine::price_book::checks;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cli::{self, Global};
use crate::error::Error;
use crate::{settings, show};

pub(super) fn run(global: &Global, args: &cli::Price) -> Result<ExitCode, Error> {
    let cli::Price::Check { file, book } = args;
    let failed =
        |error: &(dyn std::error::Error + 'static)| Error::Failed(mesh_runtime::error_chain(error));
    let checks = checks::load(file).map_err(|error| failed(&error))?;
    let path = match book {
        Some(path) => path.clone(),
        None => configured(global)?,
    };
    let book = PriceBook::load(&path).map_err(|error| failed(&error))?;
    let amount = |micros| show::micros(i128::from(micros), &book.currency);
    let mut jobs = Vec::new();
    let mut differ = 0;
    for check in &checks {
        let cost = check.cost(&book);
        let passed = check.passed(&cost);
        differ += usize::from(!passed);
        let found = cost.as_ref().map(|spent| spent.cost.0);
        if global.json {
            jobs.push(json!({
                "name": check.name,
                "passed": passed,
                "expected_micros": check.expected.map(|cost| cost.0),
                "found_micros": found.ok(),
                "problem": found.err().map(PriceError::problem),
            }));
        } else if !passed {
            let expected = check
                .expected
                .map_or_else(|| "no price".to_owned(), |cost| amount(cost.0));
            let found = match found {
                Ok(cost) => format!("it costs {}", amount(cost)),
                Err(error) => format!("it has no price: {}", error.problem()),
            };
            show::line(show::clean(&format!(
                "{}: expected {expected}, {found}",
                check.name
            )))?;
        }
    }
    let passed = differ == 0;
    if global.json {
        show::line(json!({
            "passed": passed,
            "price_book": book.label(),
            "currency": book.currency,
            "jobs": jobs,
        }))?;
    } else {
        show::line(format!(
            "{} jobs checked with price book {}, {differ} have another cost",
            checks.len(),
            book.label()
        ))?;
    }
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Path of the price book named in mesh.toml.
fn configured(global: &Global) -> Result<PathBuf, Error> {
    let context = settings::load(global, CancellationToken::new())?;
    let config: cost_engine::Config = context.section("cost-engine")?;
    if config.price_book.as_os_str().is_empty() {
        return Err(Error::Failed(
            "mesh.toml has no price book (cost-engine.price_book): pass --book FILE".to_owned(),
        ));
    }
    Ok(context.relative(&config.price_book))
}
