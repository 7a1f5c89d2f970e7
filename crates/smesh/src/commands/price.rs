//! `smesh price`: compares expected job costs with the site's price book, estimates jobs, imports prices.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use chrono::Local;
use cost_engine::PriceBook;
use cost_engine::domain::{Micros, PriceError};
use cost_engine::price_book::estimate::{self, JobRequest};
use cost_engine::price_book::feeds::{self, FeedError};
use cost_engine::price_book::{checks, series};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cli::{self, Global};
use crate::error::Error;
use crate::{settings, show};

pub(super) fn run(global: &Global, args: &cli::Price) -> Result<ExitCode, Error> {
    match args {
        cli::Price::Check { file, book } => check(global, file, book.as_deref()),
        cli::Price::Estimate(request) => estimate(global, request),
        cli::Price::Import(source) => import(global, source),
    }
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Failed(mesh_runtime::error_chain(error))
}

/// The given price book, or the configured one.
fn load(global: &Global, book: Option<&Path>) -> Result<PriceBook, Error> {
    let path = match book {
        Some(path) => path.to_owned(),
        None => configured(global)?,
    };
    PriceBook::load(&path).map_err(|error| failed(&error))
}

fn estimate(global: &Global, args: &cli::PriceEstimate) -> Result<ExitCode, Error> {
    let book = load(global, args.book.as_deref())?;
    let now = Local::now();
    let minutes = |limit: Duration| u32::try_from(limit.as_secs().div_ceil(60));
    let minutes = args.time.map(minutes).transpose();
    let request = JobRequest {
        partition: args.partition.clone(),
        qos: args.qos.clone(),
        account: args.account.clone(),
        nodes: args.nodelist.clone().unwrap_or_default(),
        node_count: args.nodes,
        cpus: args.cpus,
        mem_mib: args.mem.unwrap_or_default(),
        gpus: args.gres.unwrap_or_default(),
        billing: args.billing,
        time_limit_minutes: minutes
            .map_err(|_| Error::Failed("--time: the limit is too long".to_owned()))?,
        start: args
            .at
            .map_or(now.timestamp(), |at| at.resolve(&now).timestamp()),
    };
    let rate = match estimate::estimate(&book, &request) {
        Ok(rate) => rate,
        Err(PriceError::NodeTypeMissing { .. }) if args.nodelist.is_none() => {
            return Err(Error::Failed(format!(
                "price book {} has no node type for any node of partition {:?}: pass --nodelist",
                book.name_and_version(),
                args.partition
            )));
        }
        Err(error) => return Err(Error::Failed(error.problem())),
    };
    if global.json {
        show::line(json!({
            "price_book": book.label(),
            "currency": book.currency,
            "burn_rate_micros": rate.burn.0,
            "estimated_micros": rate.estimate.map(|estimate| estimate.0),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let amount = |micros: Micros| show::micros(i128::from(micros.0), &book.currency);
    let limit = match rate.estimate {
        Some(estimate) => format!("at most {}", amount(estimate)),
        None => "no time limit".to_owned(),
    };
    show::line(format!("{} per hour, {limit}", amount(rate.burn)))?;
    Ok(ExitCode::SUCCESS)
}

fn import(global: &Global, source: &cli::PriceImport) -> Result<ExitCode, Error> {
    let (cli::PriceImport::Csv { files, .. }
    | cli::PriceImport::AwsSpot { files, .. }
    | cli::PriceImport::AwsOffers { files, .. }) = source;
    let in_feed = |error: FeedError| {
        let error = mesh_runtime::error_chain(&error);
        Error::Failed(format!("{}: {error}", files.feed.display()))
    };
    let text = if files.feed.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(&files.feed)
    };
    let text = text.map_err(|source| Error::io("read", &files.feed, source))?;
    let prices = match source {
        cli::PriceImport::Csv {
            time_column,
            price_column,
            zone_column,
            ..
        } => {
            let columns = feeds::Columns {
                time: time_column.clone(),
                price: price_column.clone(),
                zone: zone_column.clone(),
            };
            feeds::from_csv(&text, &columns)
        }
        cli::PriceImport::AwsSpot {
            instance_type,
            product,
            ..
        } => feeds::from_aws_spot(&text, instance_type, product),
        cli::PriceImport::AwsOffers {
            instance_type,
            region,
            operating_system,
            currency,
            ..
        } => {
            let filter = feeds::OfferFilter {
                instance_type: instance_type.clone(),
                region: region.clone(),
                operating_system: operating_system.clone(),
                currency: currency.clone(),
            };
            feeds::from_aws_offers(&text, &filter)
        }
    };
    let prices = prices.map_err(in_feed)?;
    let output = &files.output;
    let stored = match std::fs::read_to_string(output) {
        Ok(stored) => Some(stored),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(Error::io("read", output, source)),
    };
    let prices = match &stored {
        Some(stored) => feeds::extend(stored, prices).map_err(|error| {
            let error = mesh_runtime::error_chain(&error);
            Error::Failed(format!("{}: {error}", output.display()))
        })?,
        None => prices,
    };
    let text = series::print(&prices);
    // Whoever reads it sees the old series or the new one.
    let new = output.with_extension("new");
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(&new, output))
        .map_err(|source| Error::io("write", output, source))?;
    if global.json {
        show::line(json!({"output": output, "prices": prices.len()}))?;
    } else {
        let path = output.display();
        show::line(format!("{path}: {} prices", prices.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(global: &Global, file: &Path, book: Option<&Path>) -> Result<ExitCode, Error> {
    let checks = checks::load(file).map_err(|error| failed(&error))?;
    let book = load(global, book)?;
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
                .map_or_else(|| show::NO_PRICE.to_owned(), |cost| amount(cost.0));
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
pub(super) fn configured(global: &Global) -> Result<PathBuf, Error> {
    let context = settings::load(global, CancellationToken::new())?;
    let config: cost_engine::Config = context.section("cost-engine")?;
    if config.price_book.as_os_str().is_empty() {
        return Err(Error::Failed(
            "mesh.toml has no price book (cost-engine.price_book): pass --book FILE".to_owned(),
        ));
    }
    Ok(context.relative(&config.price_book))
}
