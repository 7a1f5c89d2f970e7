//! `smesh cost`: past costs and the current burn rate.

use std::collections::BTreeMap;
use std::process::ExitCode;

use chrono::Local;
use mesh_runtime::TimeBound;
use serde_json::Value;

use crate::cli::{self, Global};
use crate::client::Query;
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &cli::Cost) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    if let Some(cli::CostCommand::Me { since }) = &args.command {
        let since = match since {
            Some(since) => *since,
            None => start_of_month()?,
        };
        let answer = client
            .get("/v1/costs/me", &vec![("since", since.into())])
            .await?;
        if global.json {
            show::line(&answer)?;
        } else {
            show::line(personal(&answer))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut query = Query::new();
    query.extend(global.cluster.clone().map(|cluster| ("cluster", cluster)));
    query.extend(args.user.clone().map(|user| ("user", user)));
    let path = if args.live {
        "/v1/costs/live"
    } else {
        query.push(("by", args.by.as_str().into()));
        query.extend(args.since.map(|since| ("since", since.into())));
        query.extend(args.until.map(|until| ("until", until.into())));
        if matches!(args.attribution, cli::CostAttribution::Slice) {
            query.push(("attribution", "slice".into()));
        }
        query.extend(args.timezone.clone().map(|zone| ("timezone", zone)));
        "/v1/costs"
    };
    let answer = client.get(path, &query).await?;
    if global.json {
        show::line(&answer)?;
    } else if args.live {
        show::line(live(&answer))?;
    } else {
        show::line(spent(&answer, args.by))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn amount(value: &Value, currency: &str) -> String {
    value
        .as_str()
        .and_then(|micros| micros.parse().ok())
        .map_or_else(|| "?".to_owned(), |micros| show::micros(micros, currency))
}

fn spent(answer: &Value, by: cli::CostBy) -> String {
    let heading = [
        by.as_str(),
        "runs",
        "completed",
        "not completed",
        "running",
        "total",
    ];
    let mut rows = vec![heading.map(str::to_uppercase).to_vec()];
    // Few reports have adjustments, so they have no column.
    let mut adjustments: BTreeMap<String, i128> = BTreeMap::new();
    for row in answer["rows"].as_array().into_iter().flatten() {
        let currency = show::value(&row["currency"]);
        let adjusted = row["adjustments_micros"].as_str();
        let adjusted = adjusted.and_then(|micros| micros.parse::<i128>().ok());
        if let Some(micros) = adjusted.filter(|micros| *micros != 0) {
            *adjustments.entry(currency.clone()).or_default() += micros;
        }
        let money = |key: &str| {
            if currency.is_empty() {
                "no price".to_owned()
            } else {
                amount(&row[key], &currency)
            }
        };
        let key = [
            show::value(&row["name"]),
            show::value(&row["key"]),
            "(none)".to_owned(),
        ]
        .into_iter()
        .find(|key| !key.is_empty())
        .unwrap_or_default();
        rows.push(vec![
            key,
            show::value(&row["runs"]),
            money("completed_micros"),
            money("not_completed_micros"),
            money("open_micros"),
            money("total_micros"),
        ]);
    }
    if rows.len() == 1 {
        return "no costs yet; they require a price book, see [cost-engine] price_book".into();
    }
    let mut report = show::table(&rows);
    for (currency, micros) in adjustments {
        let sum = show::micros(micros, &currency);
        report.push_str(&format!(
            "\nincludes {sum} of adjustments after final costs"
        ));
    }
    report
}

/// Start of the month in local time.
fn start_of_month() -> Result<TimeBound, Error> {
    let now = Local::now();
    TimeBound::parse(&now.format("%Y-%m-01").to_string(), &now)
        .map_err(|error| Error::Failed(error.to_string()))
}

fn personal(answer: &Value) -> String {
    let since = show::value(&answer["since"]);
    let since = since.get(..10).unwrap_or(&since);
    let mut lines = Vec::new();
    for row in answer["amounts"].as_array().into_iter().flatten() {
        let currency = show::value(&row["currency"]);
        let money = |key: &str| amount(&row[key], &currency);
        let count = |key: &str| row[key].as_u64().unwrap_or_default();
        if !currency.is_empty() {
            lines.push(format!("{} since {since}", money("total_micros")));
            lines.push(format!(
                "  settled    {} for {} ended runs",
                money("settled_micros"),
                count("runs")
            ));
            lines.push(format!(
                "  in flight  {} for {} running jobs, {} per hour",
                money("in_flight_micros"),
                count("open_runs"),
                money("burn_rate_micros")
            ));
        }
        let unpriced = count("unpriced_runs");
        if unpriced > 0 {
            lines.push(format!(
                "  {unpriced} runs have no price and are not included"
            ));
        }
    }
    if lines.is_empty() {
        return format!("your jobs have cost nothing since {since}");
    }
    lines.join("\n")
}

fn live(answer: &Value) -> String {
    let currency = show::value(&answer["currency"]);
    let mut rows = vec![
        [
            "job",
            "user",
            "account",
            "partition",
            "per hour",
            "so far",
            "at its limit",
            "name",
        ]
        .map(str::to_uppercase)
        .to_vec(),
    ];
    for job in answer["jobs"].as_array().into_iter().flatten() {
        let problem = show::value(&job["problem"]);
        let money = |key: &str| {
            if problem.is_empty() {
                amount(&job[key], &currency)
            } else {
                "no price".to_owned()
            }
        };
        rows.push(vec![
            show::value(&job["job"]),
            show::value(&job["user"]),
            show::value(&job["account"]),
            show::value(&job["partition"]),
            money("burn_rate_micros"),
            money("accrued_micros"),
            money("estimated_micros"),
            show::value(&job["name"]),
        ]);
    }
    if rows.len() == 1 {
        return "no running jobs".into();
    }
    format!(
        "{}\n{} per hour now",
        show::table(&rows),
        amount(&answer["burn_rate_micros"], &currency)
    )
}
