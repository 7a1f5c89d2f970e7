//! `smesh cost report`: the costs of a period as a table, CSV, JSON, FOCUS or one self-contained HTML file.

use std::process::ExitCode;
use std::time::Duration;

use chrono::Utc;
use cost_engine::domain::calendar_period::present_month;
use cost_engine::domain::waste::LOST_KINDS;
use mesh_runtime::harmless_cell;

use super::html;
use super::row::{Row, decimal, rows};
use crate::cli::{self, CostBy, CostReportFormat, Global};
use crate::client::{Client, Query};
use crate::commands::export::ExportTarget;
use crate::error::Error;
use crate::show;

/// Shortest interval of `--watch`.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(
    global: &Global,
    client: &Client,
    args: &cli::CostReport,
) -> Result<ExitCode, Error> {
    check(args)?;
    let query = |period: &str| -> Query {
        let mut query: Query = vec![("period", period.to_owned())];
        query.extend(global.cluster.clone().map(|cluster| ("cluster", cluster)));
        query
    };
    let mut target = ExportTarget::open(args.output.clone())?;
    if args.format == CostReportFormat::Focus {
        let mut query = query(&period(args));
        query.extend(args.site.clone().map(|site| ("site", site)));
        if args.billed_effective {
            query.push(("billed", "effective".into()));
        }
        let mut download = client.download("/v1/costs/focus", &query).await?;
        while let Some(part) = download.next().await? {
            target.write(&part)?;
        }
    } else {
        let sums = async || {
            // The month can end while the report is watched.
            let period = period(args);
            let mut query = query(&period);
            query.push(("attribution", "slice".into()));
            query.extend(args.timezone.clone().map(|zone| ("timezone", zone)));
            sums(client, args, (&period, &query)).await
        };
        target.write(sums().await?.as_bytes())?;
        if args.watch {
            loop {
                tokio::time::sleep(args.interval).await;
                match sums().await {
                    Ok(table) => target.write(format!("\n{table}").as_bytes())?,
                    // The mesh may be restarted.
                    Err(error) => {
                        show::line(format!("retrying: {}", mesh_runtime::error_chain(&error)))?;
                    }
                }
            }
        }
    }
    target.complete()?;
    Ok(ExitCode::SUCCESS)
}

/// The period, by default this month.
fn period(args: &cli::CostReport) -> String {
    let period = args.period.clone();
    period.unwrap_or_else(|| present_month(args.timezone.as_deref(), Utc::now()))
}

/// Refuses options that the format does not have.
fn check(args: &cli::CostReport) -> Result<(), Error> {
    let is_focus = args.format == CostReportFormat::Focus;
    let options = [
        ("--by", args.by.is_some(), !is_focus),
        ("--timezone", args.timezone.is_some(), !is_focus),
        ("--site", args.site.is_some(), is_focus),
        ("--billed-effective", args.billed_effective, is_focus),
    ];
    if args.watch && (args.format != CostReportFormat::Table || args.output.is_some()) {
        let only = "--watch: only for a table on standard output";
        return Err(Error::Usage(only.into()));
    }
    if args.interval < MIN_INTERVAL {
        return Err(Error::Usage("--interval: less than 1s".into()));
    }
    let refused = options.iter().find(|(_, is_set, fits)| *is_set && !fits);
    refused.map_or(Ok(()), |(option, ..)| {
        let only = if is_focus { "not with" } else { "only with" };
        Err(Error::Usage(format!("{option}: {only} --format focus")))
    })
}

/// A report of sums.
async fn sums(
    client: &Client,
    args: &cli::CostReport,
    (period, query): (&str, &Query),
) -> Result<String, Error> {
    let by = args.by.unwrap_or(CostBy::Account);
    let report = |by: &'static str| {
        let mut query = query.clone();
        query.push(("by", by.into()));
        async move { client.get("/v1/costs", &query).await }
    };
    let answer = report(by.as_str()).await?;
    let as_of = show::value(&answer["as_of"]);
    match args.format {
        CostReportFormat::Table => Ok(format!("{}\nas of {as_of}\n", super::spent(&answer, by))),
        CostReportFormat::Csv => csv(&rows(&answer), by.as_str(), &as_of),
        CostReportFormat::Html => {
            let title = html::ReportTitle {
                period,
                by: by.as_str(),
                as_of: &as_of,
            };
            let days = rows(&report("day").await?);
            Ok(html::page(&title, &rows(&answer), &days))
        }
        CostReportFormat::Json | CostReportFormat::Focus => Ok(format!("{answer}\n")),
    }
}

/// A table for spreadsheets. Amounts are exact, without separators of thousands. Those of runs that all have no price are empty.
fn csv(rows: &[Row], by: &str, as_of: &str) -> Result<String, Error> {
    let mut table = csv::WriterBuilder::new()
        .terminator(csv::Terminator::CRLF)
        .from_writer(Vec::new());
    let heading = [
        "cluster",
        by,
        "name",
        "currency",
        "runs",
        "open_runs",
        "unpriced_runs",
        "completed",
        "not_completed",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(LOST_KINDS.map(|kind| format!("lost_{kind}")))
    .chain(["unused", "adjustments", "in_flight", "total", "as_of"].map(str::to_owned));
    let failed = |error: csv::Error| Error::Failed(error.to_string());
    table.write_record(heading).map_err(failed)?;
    for row in rows {
        // Only texts are made harmless: a negative amount is a number.
        let texts = [&row.cluster, &row.key, &row.name, &row.currency];
        let counts = [row.runs, row.open_runs, row.unpriced_runs];
        let part = |amount: i128, whole: Option<i128>| whole.map(|_| amount);
        let lost = LOST_KINDS.map(|kind| {
            let lost = row.lost.get(kind).copied().unwrap_or_default();
            part(lost, row.not_completed)
        });
        let amounts = [row.completed, row.not_completed]
            .into_iter()
            .chain(lost)
            .chain([
                part(row.unused, row.completed),
                part(row.adjustments, row.total),
            ])
            .chain([row.in_flight, row.total]);
        let cells = texts
            .map(|text| harmless_cell(text.clone()))
            .into_iter()
            .chain(counts.map(|count| count.to_string()))
            .chain(amounts.map(|amount| amount.map(decimal).unwrap_or_default()))
            .chain([as_of.to_owned()]);
        table.write_record(cells).map_err(failed)?;
    }
    let bytes = table
        .into_inner()
        .map_err(|error| Error::Failed(error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_and_no_text_is_a_formula() {
        let row = Row {
            key: "=1+1\n\"x\"".into(),
            currency: "EUR".into(),
            runs: 2,
            completed: Some(12_345_678),
            lost: [("oom".to_owned(), 1_000_000)].into(),
            not_completed: Some(1_000_000),
            adjustments: -6_500_000,
            in_flight: Some(0),
            total: Some(13_345_678),
            ..Row::default()
        };
        let text = csv(&[row], "job", "2026-11-26T12:00:00Z").unwrap();
        assert_eq!(
            text,
            "cluster,job,name,currency,runs,open_runs,unpriced_runs,completed,not_completed,lost_cancelled,lost_failed,lost_node_fail,\
             lost_oom,lost_preempted,lost_requeued,lost_timeout,unused,adjustments,in_flight,total,as_of\r\n\
             ,\"'=1+1\n\"\"x\"\"\",,EUR,2,0,0,12.345678,1.000000,0.000000,0.000000,0.000000,1.000000,0.000000,0.000000,0.000000,0.000000,\
             -6.500000,0.000000,13.345678,2026-11-26T12:00:00Z\r\n"
        );
    }

    #[test]
    fn runs_without_a_price_have_empty_amounts() {
        let answer = serde_json::json!({"rows": [
            {"key": "a", "currency": "EUR", "runs": 2, "unpriced_runs": 2, "completed_micros": null, "not_completed_micros": "0",
                "adjustments_micros": "0", "open_micros": "0", "total_micros": null},
            {"key": "b", "currency": "EUR", "runs": 2, "unpriced_runs": 1, "completed_micros": "5000000", "not_completed_micros": null,
                "adjustments_micros": "0", "open_micros": "0", "total_micros": "5000000"},
            // An older service without a price book.
            {"key": "c", "currency": null, "runs": 2, "unpriced_runs": 2, "completed_micros": "0", "not_completed_micros": "0",
                "adjustments_micros": "0", "open_micros": "0", "total_micros": "0"},
        ]});
        let text = csv(&rows(&answer), "user", "now").unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], ",a,,EUR,2,0,2,,,,,,,,,,,,,,now");
        assert_eq!(
            lines[2],
            ",b,,EUR,2,0,1,5.000000,,,,,,,,,0.000000,0.000000,0.000000,5.000000,now"
        );
        assert_eq!(lines[3], ",c,,,2,0,2,,,,,,,,,,,,,,now");
    }
}
