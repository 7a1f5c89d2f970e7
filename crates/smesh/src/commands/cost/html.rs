//! A cost report as one HTML file: no script, no reference to anything outside, and every figure also as a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::row::{Row, decimal};
use crate::show;

/// What the report is about.
pub struct ReportTitle<'a> {
    pub period: &'a str,
    pub by: &'a str,
    pub as_of: &'a str,
}

/// Most bars of a figure. The table has all rows.
const MAX_BARS: usize = 20;
const WIDTH: i128 = 640;
const BAR_HEIGHT: usize = 22;
const DAYS_HEIGHT: i128 = 200;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1b1b1b}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.2em .7em;border-bottom:1px solid #ccc;text-align:right}\
th:first-child,td:first-child{text-align:left}svg{display:block;max-width:100%;height:auto}\
.used{fill:#2b6cb0}.unused{fill:#d69e2e}.lost{fill:#c53030}.running{fill:#718096}.line{fill:none;stroke:#2b6cb0;stroke-width:2}\
.axis{stroke:#888}text{font:12px sans-serif;fill:#1b1b1b}@media print{body{margin:0}section{break-inside:avoid}}";

/// The parts of a bar, with their classes.
const PARTS: [(&str, &str); 4] = [
    ("used", "completed and used"),
    ("unused", "completed and not used"),
    ("lost", "not completed"),
    ("running", "running"),
];

/// The file. `days` are the costs by day.
pub fn page(title: &ReportTitle<'_>, rows: &[Row], days: &[Row]) -> String {
    let heading = format!("Costs of {} by {}", title.period, title.by);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{heading}</title><style>{STYLE}</style></head><body>\n<h1>{heading}</h1>\n<p>As of {}.</p>\n",
        escaped(title.as_of),
        heading = escaped(&heading),
    );
    let currencies: BTreeSet<&str> = rows.iter().map(|row| row.currency.as_str()).collect();
    for currency in currencies {
        let of = |rows: &[Row]| -> Vec<Row> {
            let rows = rows.iter().filter(|row| row.currency == currency);
            rows.cloned().collect()
        };
        section(&mut page, title, currency, &of(rows), &of(days));
    }
    if rows.is_empty() {
        page.push_str("<p>No costs.</p>\n");
    }
    page.push_str("</body></html>\n");
    page
}

/// Writing to a string never fails.
macro_rules! put {
    ($page:expr, $($part:tt)*) => {
        let _never = write!($page, $($part)*);
    };
}

fn section(page: &mut String, title: &ReportTitle<'_>, currency: &str, rows: &[Row], days: &[Row]) {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.key.cmp(&b.key)));
    let priced = rows.iter().filter_map(|row| row.total);
    let heading = match priced.reduce(|sum, total| sum + total) {
        Some(total) => format!("{} {}", decimal(total), escaped(currency)),
        None => cell(None),
    };
    put!(page, "<section><h2>{heading}</h2>\n");
    let unpriced: u64 = rows.iter().map(|row| row.unpriced_runs).sum();
    if let Some(line) = show::unpriced(unpriced) {
        put!(page, "<p>{line}.</p>\n");
    }
    bars(page, title, &rows);
    put!(
        page,
        "<table><tr><th>{}</th><th>runs</th><th>completed</th><th>of it not used</th><th>not completed</th><th>running</th><th>total</th></tr>\n",
        escaped(title.by)
    );
    for row in &rows {
        put!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            escaped(row.label()),
            row.runs,
            cell(row.completed),
            cell(row.completed.map(|_| row.unused)),
            cell(row.not_completed),
            cell(row.in_flight),
            cell(row.total)
        );
    }
    page.push_str("</table></section>\n");
    by_day(page, days);
}

/// Cost by key, stacked.
fn bars(page: &mut String, title: &ReportTitle<'_>, rows: &[&Row]) {
    let shown = &rows[..rows.len().min(MAX_BARS)];
    let largest = shown.iter().filter_map(|row| row.total).max();
    let largest = largest.unwrap_or_default();
    if largest <= 0 {
        return;
    }
    let height = BAR_HEIGHT * (2 * shown.len() + 2);
    put!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"Cost by {}\">\n",
        escaped(title.by)
    );
    for (n, (class, name)) in PARTS.iter().enumerate() {
        let x = n * 160;
        put!(
            page,
            "<rect class=\"{class}\" x=\"{x}\" y=\"4\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"14\">{name}</text>\n",
            x + 17
        );
    }
    for (n, row) in shown.iter().enumerate() {
        let y = BAR_HEIGHT * (2 * n + 2);
        put!(
            page,
            "<text x=\"0\" y=\"{}\">{}: {}</text>\n",
            y - 5,
            escaped(row.label()),
            cell(row.total)
        );
        let parts = [
            row.completed.unwrap_or_default() - row.unused,
            row.unused,
            row.not_completed.unwrap_or_default(),
            row.in_flight.unwrap_or_default(),
        ];
        let mut sum = 0;
        for ((class, _), part) in PARTS.iter().zip(parts) {
            let (from, to) = (sum * WIDTH / largest, (sum + part) * WIDTH / largest);
            sum += part;
            if to > from {
                put!(
                    page,
                    "<rect class=\"{class}\" x=\"{from}\" y=\"{y}\" width=\"{}\" height=\"{}\"/>\n",
                    to - from,
                    BAR_HEIGHT - 4
                );
            }
        }
    }
    page.push_str("</svg>\n");
    if rows.len() > shown.len() {
        put!(
            page,
            "<p>The figure shows the {MAX_BARS} largest of {}.</p>\n",
            rows.len()
        );
    }
}

/// Cost since the start of the period, over the days.
fn by_day(page: &mut String, days: &[Row]) {
    let mut sums: BTreeMap<&str, Option<i128>> = BTreeMap::new();
    for day in days {
        let sum = sums.entry(day.key.as_str()).or_default();
        *sum = match (*sum, day.total) {
            (Some(sum), Some(total)) => Some(sum + total),
            (sum, total) => sum.or(total),
        };
    }
    let total: i128 = sums.values().flatten().sum();
    if sums.len() < 2 || total <= 0 {
        return;
    }
    let steps = i128::try_from(sums.len() - 1).unwrap_or(1);
    let (mut points, mut until) = (String::new(), 0);
    for (n, micros) in (0i128..).zip(sums.values()) {
        until += micros.unwrap_or_default();
        let (x, y) = (n * WIDTH / steps, DAYS_HEIGHT - until * DAYS_HEIGHT / total);
        put!(points, "{x},{y} ");
    }
    put!(
        page,
        "<section><h2>Cost over the days</h2>\n<svg viewBox=\"-2 -6 {} {}\" width=\"{WIDTH}\" height=\"{DAYS_HEIGHT}\" role=\"img\" aria-label=\"Cost since the start of the period\">\
         <line class=\"axis\" x1=\"0\" y1=\"{DAYS_HEIGHT}\" x2=\"{WIDTH}\" y2=\"{DAYS_HEIGHT}\"/>\
         <line class=\"axis\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"{DAYS_HEIGHT}\"/><polyline class=\"line\" points=\"{}\"/></svg>\n\
         <table><tr><th>day</th><th>cost</th><th>since the start</th></tr>\n",
        WIDTH + 4,
        DAYS_HEIGHT + 12,
        points.trim_end()
    );
    let mut until = 0;
    for (day, micros) in sums {
        until += micros.unwrap_or_default();
        put!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            escaped(day),
            cell(micros),
            decimal(until)
        );
    }
    page.push_str("</table></section>\n");
}

/// An amount, or that there is no price.
fn cell(amount: Option<i128>) -> String {
    amount.map_or_else(|| show::NO_PRICE.to_owned(), decimal)
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_needs_nothing_from_outside_and_shows_each_figure_as_a_table() {
        let row = |key: &str, total: i128| Row {
            key: key.into(),
            currency: "EUR".into(),
            runs: 1,
            completed: Some(total),
            unused: total / 4,
            not_completed: Some(0),
            in_flight: Some(0),
            total: Some(total),
            ..Row::default()
        };
        let title = ReportTitle {
            period: "2026-11",
            by: "job",
            as_of: "2026-11-26T12:00:00Z",
        };
        let rows = [
            row("<script>alert(1)</script>", 3_000_000),
            row("b", 1_000_000),
        ];
        let days = [row("2026-11-01", 1_000_000), row("2026-11-02", 3_000_000)];
        let page = page(&title, &rows, &days);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
        for outside in ["http://", "https://", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        // The largest bar is as wide as the figure: three quarters used, one quarter not.
        assert!(
            page.contains("class=\"used\" x=\"0\" y=\"44\" width=\"480\""),
            "{page}"
        );
        assert!(page.contains("class=\"unused\" x=\"480\" y=\"44\" width=\"160\""));
        assert!(page.contains("points=\"0,150 640,0\""));
        assert!(page.contains("<tr><td>2026-11-02</td><td>3.000000</td><td>4.000000</td></tr>"));
        assert!(page.contains("<h2>4.000000 EUR</h2>"));
    }

    #[test]
    fn runs_without_a_price_are_said_and_not_shown_as_zero() {
        let title = ReportTitle {
            period: "2026-11",
            by: "user",
            as_of: "now",
        };
        let row = |key: &str| Row {
            key: key.into(),
            currency: "EUR".into(),
            runs: 3,
            unpriced_runs: 3,
            ..Row::default()
        };
        let priced = Row {
            completed: Some(1_000_000),
            not_completed: Some(0),
            total: Some(1_000_000),
            ..row("2026-11-02")
        };
        let days = [row("2026-11-01"), priced, row("2026-11-03")];
        let text = page(&title, &[row("alice")], &days);
        assert!(text.contains("<h2>no price</h2>"), "{text}");
        assert!(text.contains("<p>3 runs have no price and are not included.</p>"));
        let cells = "<td>no price</td>".repeat(5);
        assert!(text.contains(&format!("<tr><td>alice</td><td>3</td>{cells}</tr>")));
        assert!(text.contains("<tr><td>2026-11-03</td><td>no price</td><td>1.000000</td></tr>"));
    }
}
