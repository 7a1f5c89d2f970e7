//! `smesh cost`: past costs and the current burn rate.

mod html;
mod report;
mod row;

use std::collections::BTreeMap;
use std::process::ExitCode;

use chrono::Local;
use mesh_runtime::TimeBound;
use serde_json::Value;

use crate::cli::{self, Global};
use crate::client::{Client, Query};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &cli::Cost) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    match &args.command {
        Some(cli::CostCommand::Me { since }) => me(global, &client, *since).await,
        Some(cli::CostCommand::Report(args)) => report::run(global, &client, args).await,
        Some(cli::CostCommand::Nodes { since, until }) => {
            let path = "/v1/costs/nodes";
            let query = period_query(global, *since, *until);
            show::answer(global, &client.get(path, &query).await?, nodes)
        }
        Some(cli::CostCommand::Periods) => {
            let answer = client.get("/v1/costs/periods", &Query::new()).await?;
            show::answer(global, &answer, closed_periods)
        }
        Some(cli::CostCommand::Close { period }) => {
            let answer = client.post(&format!("/v1/costs/periods/{period}")).await?;
            show::answer(global, &answer, closed_period)
        }
        None if args.live => {
            let mut query = period_query(global, None, None);
            query.extend(args.user.clone().map(|user| ("user", user)));
            let answer = client.get("/v1/costs/live", &query).await?;
            show::answer(global, &answer, live)
        }
        None => sums_of_runs(global, &client, args).await,
    }
}

/// The cluster and the bounds of a request.
fn period_query(global: &Global, since: Option<TimeBound>, until: Option<TimeBound>) -> Query {
    let mut query = Query::new();
    query.extend(global.cluster.clone().map(|cluster| ("cluster", cluster)));
    query.extend(since.map(|since| ("since", since.into())));
    query.extend(until.map(|until| ("until", until.into())));
    query
}

async fn me(global: &Global, client: &Client, since: Option<TimeBound>) -> Result<ExitCode, Error> {
    let since = match since {
        Some(since) => since,
        None => start_of_month()?,
    };
    let query = vec![("since", since.into())];
    let answer = client.get("/v1/costs/me", &query).await?;
    show::answer(global, &answer, personal)
}

async fn sums_of_runs(
    global: &Global,
    client: &Client,
    args: &cli::Cost,
) -> Result<ExitCode, Error> {
    let mut query = period_query(global, args.since, args.until);
    query.extend(args.user.clone().map(|user| ("user", user)));
    query.push(("by", args.by.as_str().into()));
    if matches!(args.attribution, cli::CostAttribution::Slice) {
        query.push(("attribution", "slice".into()));
    }
    query.extend(args.timezone.clone().map(|zone| ("timezone", zone)));
    let answer = client.get("/v1/costs", &query).await?;
    show::answer(global, &answer, |answer| spent(answer, args.by))
}

/// Number of runs without a price.
fn unpriced_runs(row: &Value) -> u64 {
    row["unpriced_runs"].as_u64().unwrap_or_default()
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
    let mut unpriced = 0;
    for row in row::rows(answer) {
        if row.adjustments != 0 {
            *adjustments.entry(row.currency.clone()).or_default() += row.adjustments;
        }
        unpriced += row.unpriced_runs;
        let money = |micros: Option<i128>| {
            micros.map_or_else(
                || show::NO_PRICE.to_owned(),
                |micros| show::micros(micros, &row.currency),
            )
        };
        rows.push(vec![
            row.label().to_owned(),
            row.runs.to_string(),
            money(row.completed),
            money(row.not_completed),
            money(row.in_flight),
            money(row.total),
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
    if let Some(line) = show::unpriced(unpriced) {
        report.push_str(&format!("\n{line}"));
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
    let mut lines = sums(&answer["amounts"], since);
    if lines.is_empty() {
        lines.push(format!("your jobs have cost nothing since {since}"));
    }
    let people: Vec<&Value> = answer["people"].as_array().into_iter().flatten().collect();
    for person in &people {
        lines.extend(person_line(person, people.len() > 1));
    }
    lines.join("\n")
}

/// The Unix users of a person, and that a Unix user is not linked to one. `None` for a person with one Unix user alone.
fn person_line(person: &Value, with_total: bool) -> Option<String> {
    let users = person["users"].as_array().into_iter().flatten();
    let users: Vec<String> = users
        .map(|user| {
            let cluster = show::value(&user["cluster"]);
            format!("{} on {cluster}", show::value(&user["user"]))
        })
        .collect();
    let name = [&person["name"], &person["key"]]
        .map(show::value)
        .into_iter()
        .find(|name| !name.is_empty())?;
    let is_linked = person["linked"].as_bool().unwrap_or_default();
    let text = match (is_linked, users.len()) {
        (true, 0) => return None,
        (true, 1) if !with_total => return None,
        (true, _) => format!("{name}: {}", users.join(", ")),
        (false, _) => format!("{}: not linked to a person", users.join(", ")),
    };
    let amounts = person["amounts"].as_array().into_iter().flatten();
    let totals: Vec<String> = amounts
        .filter(|_| with_total)
        .map(|row| show::amount(&row["total_micros"], &show::value(&row["currency"])))
        .collect();
    Some(if totals.is_empty() {
        format!("  {text}")
    } else {
        format!("  {text}: {}", totals.join(", "))
    })
}

fn sums(amounts: &Value, since: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for row in amounts.as_array().into_iter().flatten() {
        let currency = show::value(&row["currency"]);
        let money = |key: &str| show::amount(&row[key], &currency);
        let count = |key: &str| row[key].as_u64().unwrap_or_default();
        let unpriced = unpriced_runs(row);
        if row["total_micros"].is_null() {
            lines.push(format!("no price for {unpriced} runs since {since}"));
            continue;
        }
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
        lines.extend(show::unpriced(unpriced).map(|line| format!("  {line}")));
    }
    lines
}

fn closed_period(row: &Value) -> String {
    let field = |key: &str| show::value(&row[key]);
    let incomplete = match row["incomplete"] == Value::Bool(true) {
        true => {
            "; not corrected by later reports: costs are missing since the database was recovered"
        }
        false => "",
    };
    format!(
        "{} closed by {} at {}, {} rows, SHA-256 {}{incomplete}",
        field("period"),
        field("closed_by"),
        field("closed_at"),
        field("rows"),
        field("sha256")
    )
}

fn closed_periods(answer: &Value) -> String {
    let periods = answer["periods"].as_array().into_iter().flatten();
    let lines: Vec<String> = periods.map(closed_period).collect();
    if lines.is_empty() {
        return "no period is closed".into();
    }
    lines.join("\n")
}

/// Costs of nodes, with a column for each category that any node has.
fn nodes(answer: &Value) -> String {
    let currency = show::value(&answer["currency"]);
    let categories: Vec<&String> = answer["category_micros"]
        .as_object()
        .into_iter()
        .flat_map(|categories| categories.keys())
        .collect();
    let mut heading = vec!["NODE".to_owned(), "TYPE".to_owned(), "COST".to_owned()];
    heading.extend(categories.iter().map(|category| category.to_uppercase()));
    let cells = |row: &Value| {
        let mut cells = vec![show::amount(&row["cost_micros"], &currency)];
        cells.extend(categories.iter().map(|category| {
            let micros = &row["category_micros"][category.as_str()];
            match micros.is_null() {
                true => String::new(),
                false => show::amount(micros, ""),
            }
        }));
        cells
    };
    let (mut rows, mut problems) = (vec![heading], Vec::new());
    for node in answer["nodes"].as_array().into_iter().flatten() {
        let name = show::value(&node["node"]);
        let problem = show::value(&node["problem"]);
        if problem.is_empty() {
            let mut row = vec![name, show::value(&node["node_type"])];
            row.extend(cells(node));
            rows.push(row);
        } else {
            problems.push(format!("{name}: {problem}"));
        }
    }
    if rows.len() == 1 && problems.is_empty() {
        return "no node has been seen in this time".into();
    }
    let mut lines = Vec::new();
    if rows.len() > 1 {
        let mut sum = vec!["all".to_owned(), String::new()];
        sum.extend(cells(answer));
        rows.push(sum);
        lines.push(show::table(&rows));
    }
    lines.extend(problems);
    let unpriced = unpriced_runs(answer);
    if unpriced > 0 {
        lines.push(format!(
            "{unpriced} runs have no known share of their nodes; what they held counts as not held"
        ));
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
        let money = |key: &str| show::amount(&job[key], &currency);
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
    let mut lines = vec![show::table(&rows)];
    let burn_rate = &answer["burn_rate_micros"];
    if !burn_rate.is_null() {
        lines.push(format!(
            "{} per hour now",
            show::amount(burn_rate, &currency)
        ));
    }
    // Of the sum above; the number in the answer is about the cost so far.
    let jobs = answer["jobs"].as_array().into_iter().flatten();
    let unpriced = jobs.filter(|job| job["burn_rate_micros"].is_null()).count();
    lines.extend(show::unpriced(unpriced as u64));
    lines.join("\n")
}

#[cfg(test)]
mod tests;
