//! `smesh stats --kpi`: key figures of runs.

use serde_json::Value;

use super::super::events::filter;
use crate::cli::{self, Global};
use crate::client::Client;
use crate::error::Error;
use crate::show;

pub(super) async fn run(global: &Global, client: &Client, args: &cli::Stats) -> Result<(), Error> {
    let mut query = filter(global, &args.filter).query();
    query.extend(args.by.clone().map(|by| ("by", by)));
    let kpis = client.get("/v1/kpis", &query).await?;
    match global.json {
        true => show::line(&kpis),
        false => show::line(table(&kpis, args.by.as_deref())),
    }
}

fn table(kpis: &Value, by: Option<&str>) -> String {
    let groups = super::groups(by);
    let columns = [
        "runs",
        "cpu efficiency",
        "memory waste",
        "wait p95",
        "failed",
        "node failures",
    ];
    let heading = groups.iter().chain(&columns);
    let mut rows = vec![heading.map(|name| name.to_uppercase()).collect::<Vec<_>>()];
    for row in kpis["rows"].as_array().into_iter().flatten() {
        let percent = |key: &str| {
            let share = row[key].as_f64();
            share.map_or_else(String::new, |share| format!("{:.1} %", share * 100.0))
        };
        let wait = row["wait_p95_seconds"].as_i64();
        let mut cells: Vec<String> = groups.iter().map(|name| super::group(row, name)).collect();
        cells.extend([
            row["runs"].to_string(),
            percent("cpu_efficiency"),
            percent("memory_waste"),
            wait.map_or_else(String::new, show::duration),
            percent("failure_rate"),
            percent("node_failure_rate"),
        ]);
        rows.push(cells);
    }
    match rows.len() {
        1 => "no matching events".into(),
        _ => show::table(&rows),
    }
}
