//! `smesh stats`: statistics over the history.

mod kpi;

use std::process::ExitCode;

use serde_json::Value;

use super::events::filter;
use crate::cli::{self, Global};
use crate::error::Error;
use crate::{settings, show};

/// End events that are not a success.
const FAILURES: [&str; 7] = [
    "failed",
    "timeout",
    "out_of_memory",
    "node_fail",
    "boot_fail",
    "deadline",
    "revoked",
];

pub(super) async fn run(global: &Global, args: cli::Stats) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    if args.kpi {
        kpi::run(global, &client, &args).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut query = filter(global, &args.filter).query();
    query.extend(args.by.clone().map(|by| ("by", by)));
    let stats = client.get("/v1/events/stats", &query).await?;
    if global.json {
        show::line(&stats)?;
    } else {
        show::line(table(&stats, args.by.as_deref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The dimensions that rows are grouped by.
fn groups(by: Option<&str>) -> Vec<&str> {
    let by = by.into_iter().flat_map(|by| by.split(','));
    by.map(str::trim).collect()
}

/// A row's value of a dimension.
fn group(row: &Value, name: &str) -> String {
    show::clean(row["group"][name].as_str().unwrap_or("(none)"))
}

fn table(stats: &Value, by: Option<&str>) -> String {
    let groups = groups(by);
    let columns = [
        "submitted",
        "started",
        "completed",
        "failed",
        "cancelled",
        "wait p50",
        "wait p90",
        "cost",
    ];
    let heading = groups
        .iter()
        .chain(&columns)
        .map(|name| name.to_uppercase());
    let mut rows = vec![heading.collect::<Vec<_>>()];
    for row in stats["rows"].as_array().into_iter().flatten() {
        let count = |name: &str| row["jobs"][name].as_u64().unwrap_or_default();
        let wait = |key: &str| {
            let seconds = row["wait"][key]
                .as_u64()
                .and_then(|n| i64::try_from(n).ok());
            seconds.map_or_else(String::new, show::duration)
        };
        let costs = row["cost_micros"].as_object().into_iter().flatten();
        let costs: Vec<String> = costs
            .filter_map(|(currency, micros)| {
                Some(show::micros(micros.as_str()?.parse().ok()?, currency))
            })
            .collect();
        let failures: u64 = FAILURES.iter().map(|name| count(name)).sum();
        let mut cells: Vec<String> = groups.iter().map(|name| group(row, name)).collect();
        cells.extend([
            count("submitted").to_string(),
            count("started").to_string(),
            count("completed").to_string(),
            failures.to_string(),
            count("cancelled").to_string(),
            wait("p50_seconds"),
            wait("p90_seconds"),
            costs.join(", "),
        ]);
        rows.push(cells);
    }
    if rows.len() == 1 {
        return "no matching events".into();
    }
    show::table(&rows)
}
