//! Formats events and tables for display. Colours are removed unless the output is a terminal.

use std::io::Write as _;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use chrono::{DateTime, Local, Utc};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::{Job, JobEvent, Usage};
use mesh_events::proto::mesh::user::v1::Quota;
use mesh_events::{Category, Event, EventType, cloudevents, from_timestamp};
use serde_json::Value;

use crate::cli::Global;
use crate::error::Error;

/// Prints a line on standard output.
///
/// # Errors
/// If the reader of standard output is gone.
pub fn line(text: impl std::fmt::Display) -> Result<(), Error> {
    writeln!(anstream::stdout(), "{text}")
        .map_err(|source| Error::io("write", "standard output", source))
}

/// Prints an answer of the API: as JSON if that was asked for, else as text.
///
/// # Errors
/// If the reader of standard output is gone.
pub fn answer(
    global: &Global,
    answer: &Value,
    text: impl FnOnce(&Value) -> String,
) -> Result<ExitCode, Error> {
    if global.json {
        line(answer)?;
    } else {
        line(text(answer))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a heading or word in bold.
pub fn bold(text: &str) -> String {
    styled(text, Style::new().bold())
}

/// Applies a style to a text.
pub fn styled(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

/// Text of a JSON value. Empty for null.
pub fn value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The event of an entry of the ledger; `None` for audit entries.
pub fn event(entry: &Value) -> Option<Event> {
    cloudevents::from_json(&entry["event"]).ok()
}

/// An entry of the ledger on one line.
pub fn entry(entry: &Value) -> String {
    match event(entry) {
        Some(event) => event_line(&event),
        None => {
            let audit = &entry["event"];
            let kind = audit["type"]
                .as_str()
                .unwrap_or_default()
                .trim_start_matches("org.slurm-mesh.")
                .trim_end_matches(".v1");
            format!(
                "{}  {kind}  {}",
                clock(audit["time"].as_str().and_then(|time| time.parse().ok())),
                audit["subject"].as_str().unwrap_or_default()
            )
        }
    }
}

fn event_line(event: &Event) -> String {
    let at = event.occurred_at.as_ref().and_then(from_timestamp);
    let kind = event.kind().ok();
    let user = event.owner.as_ref().map_or("", |owner| &owner.user);
    let subject = match event.job() {
        Some(job) => job.display_id.clone(),
        None => event.entity_key().trim_start_matches("node/").to_owned(),
    };
    let event_name = styled(
        &format!("{:<19}", event.r#type),
        kind.map_or(Style::new(), style),
    );
    let late = if event.late { "  (late)" } else { "" };
    format!(
        "{}  {event_name}  {subject:<10}  {user:<8}  {}{late}",
        clock(at),
        clean(&detail(event))
    )
}

/// Green for success, red for failure, yellow for costs, blue for nodes.
fn style(kind: EventType) -> Style {
    let colour = match kind {
        EventType::JobCompleted | EventType::JobStarted => AnsiColor::Green,
        EventType::JobCancelled | EventType::JobRequeued | EventType::JobPreempted => {
            AnsiColor::Yellow
        }
        kind if kind.is_end() => AnsiColor::Red,
        EventType::NodeDown | EventType::CaptureGapOpened | EventType::CaptureSourceDown => {
            AnsiColor::Red
        }
        kind => match kind.category() {
            Category::Cost => AnsiColor::Yellow,
            Category::Node => AnsiColor::Blue,
            Category::Queue => AnsiColor::Magenta,
            Category::Job | Category::User | Category::Capture => return Style::new(),
        },
    };
    Style::new().fg_color(Some(colour.into()))
}

/// Details of an event beside its type, job and user.
pub fn detail(event: &Event) -> String {
    match &event.payload {
        Some(Payload::Job(payload)) => payload
            .job
            .as_ref()
            .map(|job| job_detail(event, payload, job))
            .unwrap_or_default(),
        Some(Payload::Cost(cost)) => cost_detail(cost),
        Some(Payload::Queue(queue)) => queue
            .explanation
            .as_ref()
            .map(|explanation| explanation.summary.clone())
            .unwrap_or_default(),
        Some(Payload::Node(payload)) => payload.node.as_ref().map_or_else(String::new, |node| {
            let flags = node
                .state_flags
                .iter()
                .map(|flag| format!("+{flag}"))
                .collect::<String>();
            joined([
                node.state.clone() + &flags,
                payload.cause.clone(),
                node.reason.clone(),
            ])
        }),
        Some(Payload::Capture(capture)) => {
            joined([capture.source.clone(), capture.message.clone()])
        }
        Some(Payload::User(user)) => match &user.quota {
            Some(quota) => quota_detail(quota),
            None => user.user.clone(),
        },
        None => String::new(),
    }
}

fn quota_detail(quota: &Quota) -> String {
    let amount = quota.amount.as_ref().map(money).unwrap_or_default();
    let what = match quota.is_forecast {
        true => "forecast",
        false => "used",
    };
    joined([
        format!("budget {} {}", quota.budget, quota.period),
        match event_message::text::used_percent(quota) {
            Some(percent) => format!("{percent} % of {amount} used"),
            None => format!("no price for what is used of {amount}"),
        },
        format!("threshold {} % ({what})", quota.threshold),
        unpriced(quota.unpriced_runs).unwrap_or_default(),
    ])
}

fn job_detail(event: &Event, payload: &JobEvent, job: &Job) -> String {
    if let Some(usage) = &job.usage {
        return joined([job.name.clone(), used(usage)]);
    }
    let kind = event.kind().ok();
    let ended = kind.is_some_and(EventType::is_end);
    let exit = job
        .exit_code
        .as_ref()
        // Only these two ends have a meaningful exit code. For the others, 0 would look like success.
        .filter(|exit| {
            matches!(kind, Some(EventType::JobCompleted | EventType::JobFailed))
                || (ended && exit.signal != 0)
        })
        .map_or_else(String::new, |exit| match exit.signal {
            0 => format!("exit {}", exit.code),
            signal => format!("signal {signal}"),
        });
    let reason = if ended && kind == Some(EventType::JobCompleted) {
        ""
    } else {
        &job.reason
    };
    let ran = match (
        job.start_time.as_ref().and_then(from_timestamp),
        job.end_time.as_ref().and_then(from_timestamp),
    ) {
        (Some(start), Some(end)) if ended && !job.nodes.is_empty() => {
            format!("ran {}", duration((end - start).num_seconds()))
        }
        _ => String::new(),
    };
    let continues = payload
        .continues
        .as_ref()
        .map_or_else(String::new, |run| format!("after {}", run.cause));
    // The snapshot may be newer than the event: by now the submitted job may have nodes and an end.
    let submitted = kind == Some(EventType::JobSubmitted);
    let reason = if reason == "None" || (submitted && job.state != "PENDING") {
        String::new()
    } else {
        reason.to_owned()
    };
    let nodes = if submitted {
        String::new()
    } else {
        job.nodes.clone()
    };
    joined([
        job.name.clone(),
        job.partition.clone(),
        nodes,
        exit,
        reason,
        ran,
        continues,
        payload.array_tasks.clone(),
    ])
}

/// Resources used by a run, and their share of the allocation.
fn used(usage: &Usage) -> String {
    let percent = |permille: Option<u32>| {
        permille.map_or_else(String::new, |permille| format!(" ({}%)", permille / 10))
    };
    let cpu = percent(usage.cpu_efficiency_permille);
    let memory = percent(usage.memory_efficiency_permille);
    let mut text = format!(
        "cpu {}{cpu}",
        duration(i64::try_from(usage.cpu_seconds).unwrap_or(i64::MAX))
    );
    if usage.memory_kib > 0 {
        text.push_str(&format!(
            ", memory {} MiB{memory}",
            usage.memory_kib / 1_024
        ));
    }
    text
}

fn cost_detail(cost: &CostEvent) -> String {
    if !cost.problem.is_empty() {
        return cost.problem.clone();
    }
    let amount = |label: &str, amount: &Option<Money>| {
        amount
            .as_ref()
            .map_or_else(String::new, |amount| format!("{label}{}", money(amount)))
    };
    let rate = if cost.total.is_none() {
        amount("", &cost.burn_rate)
    } else {
        String::new()
    };
    let rate = if rate.is_empty() {
        rate
    } else {
        format!("{rate}/h")
    };
    joined([
        amount("total ", &cost.total),
        amount("so far ", &cost.accrued),
        rate,
        amount("at its limit ", &cost.estimated),
    ])
}

/// `12.34 EUR`, exact, with at least two decimals and without further trailing zeros.
pub fn money(amount: &Money) -> String {
    micros(amount.micros.into(), &amount.currency)
}

/// Formats millionths of a currency unit.
pub fn micros(micros: i128, currency: &str) -> String {
    let (sign, size) = (if micros < 0 { "-" } else { "" }, micros.unsigned_abs());
    let fraction = format!("{:06}", size % 1_000_000);
    let fraction = format!("{:0<2}", fraction.trim_end_matches('0'));
    format!("{sign}{}.{fraction} {currency}", size / 1_000_000)
        .trim_end()
        .to_owned()
}

/// Shown instead of an amount where no run has a price.
pub const NO_PRICE: &str = "no price";

/// Formats an amount of the API: millionths as text, null where no run has a price.
pub fn amount(value: &Value, currency: &str) -> String {
    if value.is_null() {
        return NO_PRICE.to_owned();
    }
    let amount = value.as_str().and_then(|micros| micros.parse().ok());
    amount.map_or_else(|| "?".to_owned(), |amount| micros(amount, currency))
}

/// That runs without a price are missing in amounts. `None` if all have one.
pub fn unpriced(runs: u64) -> Option<String> {
    (runs > 0).then(|| event_message::text::unpriced(runs))
}

/// `1h 02m 03s`, without leading zeros.
pub fn duration(seconds: i64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m {rest:02}s"),
        _ => format!("{hours}h {minutes:02}m {rest:02}s"),
    }
}

/// Local time, with the date unless it is today.
pub fn clock(time: Option<DateTime<Utc>>) -> String {
    let Some(time) = time else {
        return "--:--:--".to_owned();
    };
    let local = time.with_timezone(&Local);
    let format = if local.date_naive() == Local::now().date_naive() {
        "%H:%M:%S"
    } else {
        "%Y-%m-%d %H:%M:%S"
    };
    local.format(format).to_string()
}

/// As [`clock`], of a JSON value.
pub fn time(time: &Value) -> String {
    clock(time.as_str().and_then(|time| time.parse().ok()))
}

fn joined(parts: impl IntoIterator<Item = String>) -> String {
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" · ")
}

/// Removes control characters, because names come from users and reach the terminal.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A table with aligned columns; the first row is the heading.
pub fn table(rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.add_rows(rows.iter().map(|row| row.iter().map(|cell| clean(cell))));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().enumerate().map(|(n, line)| match n {
        0 => bold(line.trim_end()),
        _ => line.trim_end().to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use mesh_testkit::fixtures;

    use super::*;

    #[test]
    fn money_is_exact_and_short() {
        for (amount, text) in [
            (0, "0.00 EUR"),
            (1_500_000, "1.50 EUR"),
            (1, "0.000001 EUR"),
            (-20_000, "-0.02 EUR"),
            (123_450_000, "123.45 EUR"),
        ] {
            assert_eq!(micros(amount, "EUR"), text);
        }
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(
            [duration(5), duration(65), duration(3723)],
            ["5s", "1m 05s", "1h 02m 03s"]
        );
    }

    #[test]
    fn an_end_contains_reason_and_exit_code() {
        let mut job = fixtures::ended(fixtures::job(7), "FAILED", 75);
        job.exit_code = Some(mesh_events::proto::mesh::job::v1::ExitCode { code: 3, signal: 0 });
        job.reason = "NonZeroExitCode".into();
        let event = fixtures::job_event(EventType::JobFailed, job);
        assert_eq!(
            detail(&event),
            "train-7 · cpu · n1 · exit 3 · NonZeroExitCode · ran 1m 15s"
        );
    }

    #[test]
    fn a_use_of_a_budget_without_a_price_is_not_zero() {
        let euros = |euros: i64| {
            Some(Money {
                micros: euros * 1_000_000,
                currency: "EUR".into(),
            })
        };
        // No job runs.
        let mut quota = Quota {
            budget: "b".into(),
            period: "2026-11".into(),
            amount: euros(100),
            in_flight: euros(0),
            threshold: 50,
            unpriced_runs: 2,
            ..Quota::default()
        };
        assert_eq!(
            quota_detail(&quota),
            "budget b 2026-11 · no price for what is used of 100.00 EUR · threshold 50 % (used) · 2 runs have no price and are not included"
        );
        let used = "budget b 2026-11 · 0 % of 100.00 EUR used · threshold 50 % (used)";
        quota.percent = Some(0);
        assert_eq!(
            quota_detail(&quota),
            format!("{used} · 2 runs have no price and are not included")
        );
        // Events of first versions have no 0.
        (quota.percent, quota.unpriced_runs) = (None, 0);
        assert_eq!(quota_detail(&quota), used);
    }

    #[test]
    fn names_cannot_drive_the_terminal() {
        let mut job = fixtures::job(7);
        job.name = "\u{1b}[2Jevil\n".into();
        let event = fixtures::job_event(EventType::JobStarted, job);
        let text_line = anstream::adapter::strip_str(&event_line(&event)).to_string();
        assert!(
            text_line.contains("evil") && !text_line.contains(['\u{1b}', '\n']),
            "{text_line:?}"
        );
    }
}
