//! `smesh queue quality`: how often the estimated starts of the cluster's jobs were right.

use std::process::ExitCode;

use crate::cli::Global;
use crate::client::Query;
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let cluster = settings::cluster(global)?;
    let query: Query = vec![("cluster", cluster)];
    let answer = client.get("/v1/queue/quality", &query).await?;
    if global.json {
        show::line(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let starts = answer["starts"].as_u64().unwrap_or_default();
    show::line(format!(
        "{starts} jobs that waited have started; {} estimates are open",
        answer["open"]
    ))?;
    if let Some(note) = answer["note"].as_str().filter(|note| !note.is_empty()) {
        show::line(show::clean(note))?;
    }
    let header = [
        "partition",
        "class",
        "n",
        "P10 covers",
        "P50 covers",
        "P90 covers",
        "median error",
        "plan's",
        "history's",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for row in answer["rows"].as_array().into_iter().flatten() {
        let percent = |key: &str| {
            row[key]
                .as_f64()
                .map_or("–".to_owned(), |value| format!("{value:.0} %"))
        };
        let seconds = |key: &str| {
            row[key]
                .as_i64()
                .map_or("–".to_owned(), |value| format!("{value} s"))
        };
        rows.push(vec![
            show::clean(row["partition"].as_str().unwrap_or_default()),
            show::clean(row["class"].as_str().unwrap_or_default()),
            show::value(&row["n"]),
            percent("covered_p10"),
            percent("covered_p50"),
            percent("covered_p90"),
            seconds("median_error"),
            seconds("plan_median_error"),
            seconds("history_median_error"),
        ]);
    }
    if rows.len() > 1 {
        show::line(show::table(&rows).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}
