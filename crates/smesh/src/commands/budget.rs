//! `smesh budget`: budgets and what of them is used.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use cost_engine::PriceBook;
use cost_engine::budgets::error::BudgetsError;
use cost_engine::budgets::files;
use reqwest::Method;
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::client::Query;
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &cli::Budget) -> Result<ExitCode, Error> {
    match args {
        cli::Budget::List => {
            let answer = settings::client(global)?
                .get("/v1/budgets", &Query::new())
                .await?;
            show::answer(global, &answer, list)
        }
        cli::Budget::Show { name } => {
            let path = format!("/v1/budgets/{name}");
            let answer = settings::client(global)?.get(&path, &Query::new()).await?;
            show::answer(global, &answer, detail)
        }
        cli::Budget::Set { file } => set(global, file).await,
        cli::Budget::Delete { name } => {
            let path = format!("/v1/budgets/{name}");
            let answer = settings::client(global)?
                .send_json(Method::DELETE, &path, None, &[])
                .await?;
            show::answer(global, &answer, |answer| {
                format!("deleted budget {}", show::value(&answer["name"]))
            })
        }
        cli::Budget::Check { file } => check(global, file),
    }
}

/// Sends each budget of a file, if all of them are valid.
async fn set(global: &Global, file: &Path) -> Result<ExitCode, Error> {
    let failed = |error: BudgetsError| Error::Failed(mesh_runtime::error_chain(&error));
    files::load(file, None).map_err(failed)?;
    let text = std::fs::read_to_string(file).map_err(|source| Error::io("read", file, source))?;
    let client = settings::client(global)?;
    for budget in of_file(&text)? {
        let sent = client.send_json(Method::POST, "/v1/budgets", Some(&budget), &[]);
        let answer = sent.await.inspect_err(|_| {
            let name = show::value(&budget["name"]);
            anstream::eprintln!("budget {name} not set, later ones of the file not sent");
        })?;
        show::answer(global, &answer, |answer| {
            format!("set budget {}", show::value(&answer["name"]))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The budgets of a file as JSON, in which dates are texts.
fn of_file(text: &str) -> Result<Vec<Value>, Error> {
    fn json(value: toml::Value) -> Value {
        match value {
            toml::Value::String(text) => text.into(),
            toml::Value::Integer(number) => number.into(),
            toml::Value::Float(number) => number.into(),
            toml::Value::Boolean(flag) => flag.into(),
            toml::Value::Datetime(time) => time.to_string().into(),
            toml::Value::Array(values) => values.into_iter().map(json).collect(),
            toml::Value::Table(table) => {
                let fields = table.into_iter();
                Value::Object(fields.map(|(key, value)| (key, json(value))).collect())
            }
        }
    }
    let table: toml::Table =
        toml::from_str(text).map_err(|error| Error::Failed(error.to_string()))?;
    match table.get("budget") {
        Some(toml::Value::Array(budgets)) => Ok(budgets.iter().cloned().map(json).collect()),
        _ => Err(Error::Failed("the file has no [[budget]]".to_owned())),
    }
}

/// An amount of a budget, or that there is no price.
fn amount(budget: &Value, key: &str) -> String {
    show::amount(&budget[key], &show::value(&budget["currency"]))
}

/// Expected use at the end of the period.
fn forecast(budget: &Value, key: &str) -> Option<String> {
    let micros = budget["forecast"][key].as_str()?.parse().ok()?;
    Some(show::micros(micros, &show::value(&budget["currency"])))
}

fn list(answer: &Value) -> String {
    let heading = [
        "name",
        "period",
        "amount",
        "used",
        "%",
        "settled",
        "running",
        "committed",
        "forecast",
    ];
    let mut rows = vec![heading.map(str::to_uppercase).to_vec()];
    for budget in answer["budgets"].as_array().into_iter().flatten() {
        rows.push(vec![
            show::value(&budget["name"]),
            show::value(&budget["period"]),
            amount(budget, "amount_micros"),
            amount(budget, "used_micros"),
            percent(budget).unwrap_or_else(|| "-".to_owned()),
            amount(budget, "settled_micros"),
            amount(budget, "in_flight_micros"),
            amount(budget, "committed_micros"),
            forecast(budget, "p50_micros").unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let unpriced = |budget: &Value| {
        let runs = budget["unpriced_runs"].as_u64().unwrap_or_default();
        let name = show::clean(&show::value(&budget["name"]));
        show::unpriced(runs).map(|line| format!("\n{name}: {line}"))
    };
    if rows.len() == 1 {
        return "no budgets that you may see; they are files, see [cost-engine] budgets".into();
    }
    let budgets = answer["budgets"].as_array().into_iter().flatten();
    let notes: String = budgets.filter_map(unpriced).collect();
    show::table(&rows) + &notes
}

/// The used part of the amount in percent. `None` without a price.
fn percent(budget: &Value) -> Option<String> {
    let percent = &budget["percent"];
    (!percent.is_null()).then(|| show::value(percent))
}

fn detail(budget: &Value) -> String {
    let value = |key: &str| show::value(&budget[key]);
    let scope: Vec<String> = budget["scope"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, values)| {
            let values: Vec<String> = values.as_array()?.iter().map(show::value).collect();
            let below = match key.as_str() {
                "account" if budget["scope"]["subtree"] == true => " with subaccounts",
                _ => "",
            };
            Some(format!("{key} {}{below}", values.join(" or ")))
        })
        .collect();
    let mut lines = vec![
        show::bold(&show::clean(&format!(
            "Budget {} for {}, {}",
            value("name"),
            scope.join(", "),
            value("period")
        ))),
        format!(
            "  used       {} of {}{}, counting {}",
            amount(budget, "used_micros"),
            amount(budget, "amount_micros"),
            percent(budget).map_or_else(String::new, |percent| format!(" ({percent} %)")),
            value("counts").replace('_', " ")
        ),
        format!("  settled    {}", amount(budget, "settled_micros")),
        format!(
            "  in flight  {}, {} per hour",
            amount(budget, "in_flight_micros"),
            amount(budget, "burn_rate_micros")
        ),
        format!(
            "  committed  {} if all running and pending jobs reach their limits",
            amount(budget, "committed_micros")
        ),
    ];
    if let (Some(half), Some(tenth)) = (
        forecast(budget, "p50_micros"),
        forecast(budget, "p90_micros"),
    ) {
        lines.push(format!(
            "  forecast   {half} at the end of the period (P50; P90 {tenth})"
        ));
    }
    let day = |key: &str| {
        let time = budget["forecast"][key].as_str()?;
        let time: DateTime<Utc> = time.parse().ok()?;
        Some(time.format("%Y-%m-%d").to_string())
    };
    if let Some(tenth) = day("exhausted_p90") {
        let half = day("exhausted_p50").unwrap_or_else(|| "lasts".to_owned());
        lines.push(format!("  used up    {half} (P50; P90 {tenth})"));
    }
    let unpriced = budget["unpriced_runs"].as_u64().unwrap_or_default();
    lines.extend(show::unpriced(unpriced).map(|line| format!("  {line}")));
    let unknown = budget["unknown_accounts"].as_array();
    for account in unknown.into_iter().flatten() {
        let account = show::clean(&show::value(account));
        lines.push(format!("  account {account} never had a job"));
    }
    lines.join("\n")
}

fn check(global: &Global, file: &Path) -> Result<ExitCode, Error> {
    let currency = super::price::configured(global)
        .ok()
        .and_then(|book| PriceBook::load(&book).ok())
        .map(|book| book.currency);
    let (budgets, faults) = match files::load(file, currency.as_deref()) {
        Ok(budgets) => (budgets, Vec::new()),
        Err(BudgetsError::Invalid(faults)) => (Vec::new(), faults),
        Err(error) => return Err(Error::Failed(mesh_runtime::error_chain(&error))),
    };
    let passed = faults.is_empty();
    if global.json {
        let names: Vec<&str> = budgets.iter().map(|budget| budget.name.as_str()).collect();
        let faults: Vec<Value> = faults
            .iter()
            .map(|found| {
                json!({
                    "file": found.file,
                    "line": found.fault.line,
                    "key": found.fault.key,
                    "problem": found.fault.problem,
                })
            })
            .collect();
        show::line(json!({"passed": passed, "budgets": names, "faults": faults}))?;
    } else if passed {
        show::line(format!("{} budgets, no faults", budgets.len()))?;
    } else {
        for fault in &faults {
            show::line(show::clean(&fault.to_string()))?;
        }
    }
    Ok(match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use cost_engine::budgets::Counts;
    use cost_engine::budgets::status::{BudgetStatus, ForecastStatus, ScopeStatus};
    use cost_engine::domain::{Micros, RunsCost};

    use super::*;

    fn status() -> Value {
        let time = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        let cost = |micros| RunsCost::of(Some(Micros(micros)));
        let status = BudgetStatus {
            name: "nlp".into(),
            scope: ScopeStatus {
                names: [
                    ("account", ["nlp".to_owned(), "vision".to_owned()].into()),
                    ("cluster", ["main".to_owned()].into()),
                ]
                .into(),
                subtree: true,
            },
            period: "2026-11".into(),
            period_start: time("2026-11-01T00:00:00Z"),
            period_end: Some(time("2026-12-01T00:00:00Z")),
            timezone: "UTC".into(),
            currency: "EUR".into(),
            amount_micros: Micros(3_000_000_000),
            counts: Counts::InFlight,
            settled_micros: cost(1_980_000_000),
            in_flight_micros: cost(432_000_000),
            pending_micros: RunsCost::default(),
            committed_micros: cost(3_562_000_000),
            used_micros: cost(2_412_000_000),
            percent: Some(80),
            thresholds: vec![50, 80, 100],
            threshold: 80,
            burn_rate_micros: cost(18_200_000),
            unpriced_runs: 2,
            forecast: Some(ForecastStatus {
                p50_micros: Micros(3_310_000_000),
                p90_micros: Micros(3_620_000_000),
                exhausted_p50: Some(time("2026-11-24T00:00:00Z")),
                exhausted_p90: Some(time("2026-11-22T00:00:00Z")),
            }),
            unknown_accounts: vec!["vision".into()],
        };
        serde_json::to_value(status).unwrap()
    }

    #[test]
    fn a_file_is_sent_with_its_dates_as_texts() {
        let text = "[[budget]]\nname = \"a\"\nscope = { account = [\"x\"] }\nfrom = 2026-11-01\nto = 2026-12-01\namount = 3\n";
        let expected = json!({"name": "a", "scope": {"account": ["x"]}, "from": "2026-11-01", "to": "2026-12-01", "amount": 3});
        assert_eq!(of_file(text).unwrap(), [expected]);
        assert!(of_file("x = 1").is_err());
    }

    #[test]
    fn a_budget_is_shown_with_its_use_and_forecast() {
        let expected = "\
Budget nlp for account nlp or vision with subaccounts, cluster main, 2026-11
  used       2412.00 EUR of 3000.00 EUR (80 %), counting in flight
  settled    1980.00 EUR
  in flight  432.00 EUR, 18.20 EUR per hour
  committed  3562.00 EUR if all running and pending jobs reach their limits
  forecast   3310.00 EUR at the end of the period (P50; P90 3620.00 EUR)
  used up    2026-11-24 (P50; P90 2026-11-22)
  2 runs have no price and are not included
  account vision never had a job";
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        assert_eq!(plain(&detail(&status())), expected);
        let table = list(&json!({"as_of": null, "budgets": [status()]}));
        let row = table.lines().nth(1).unwrap();
        let cells: Vec<&str> = row.split("  ").map(str::trim).collect();
        assert_eq!(
            cells,
            [
                "nlp",
                "2026-11",
                "3000.00 EUR",
                "2412.00 EUR",
                "80",
                "1980.00 EUR",
                "432.00 EUR",
                "3562.00 EUR",
                "3310.00 EUR"
            ]
        );
    }

    #[test]
    fn a_budget_whose_runs_have_no_price_is_not_at_zero() {
        let mut status = status();
        for key in ["used", "settled", "in_flight", "burn_rate", "committed"] {
            status[format!("{key}_micros")] = Value::Null;
        }
        status["percent"] = Value::Null;
        let text = anstream::adapter::strip_str(&detail(&status)).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..5],
            [
                "  used       no price of 3000.00 EUR, counting in flight",
                "  settled    no price",
                "  in flight  no price, no price per hour",
                "  committed  no price if all running and pending jobs reach their limits",
            ]
        );
        let table = list(&json!({"as_of": null, "budgets": [status]}));
        assert!(!table.contains(" 0.00 EUR"), "{table}");
        assert_eq!(table.matches("no price").count(), 5, "{table}");
        let last = table.lines().last();
        assert_eq!(last, Some("nlp: 2 runs have no price and are not included"));
    }
}
