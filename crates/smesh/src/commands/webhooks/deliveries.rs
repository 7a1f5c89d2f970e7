//! Deliveries of an endpoint, and their redelivery.

use serde_json::{Value, json};

use crate::cli::WhichDeliveries;
use crate::client::{Client, Query, segment};
use crate::error::Error;
use crate::show;

/// Deliveries per request.
const PAGE_SIZE: usize = 500;

pub(super) async fn list(
    client: &Client,
    name: &str,
    state: Option<String>,
    which: &WhichDeliveries,
    limit: u32,
) -> Result<Value, Error> {
    let path = format!("/v1/webhooks/{}/deliveries", segment(name));
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let left = (limit as usize).saturating_sub(found.len());
        let mut query: Query = vec![("limit", left.clamp(1, PAGE_SIZE).to_string())];
        query.extend(state.clone().map(|state| ("state", state)));
        query.extend(chosen(which));
        query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let mut page = client.get(&path, &query).await?;
        if let Value::Array(deliveries) = page["deliveries"].take() {
            found.extend(deliveries);
        }
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || found.len() >= limit as usize {
            return Ok(json!({ "deliveries": found }));
        }
    }
}

fn chosen(which: &WhichDeliveries) -> impl Iterator<Item = (&'static str, String)> {
    [
        ("type", which.kind.clone()),
        ("cause", which.cause.clone()),
        ("since", which.since.map(String::from)),
        ("until", which.until.map(String::from)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
}

/// The request for a redelivery. `None` if the arguments name nothing.
pub(super) fn redelivery(
    ids: &[String],
    all: bool,
    which: &WhichDeliveries,
    rate: Option<u32>,
) -> Option<Value> {
    let mut redelivery = json!({});
    for (key, value) in chosen(which) {
        redelivery[key] = value.into();
    }
    if !ids.is_empty() {
        redelivery["ids"] = ids.into();
    }
    if all {
        redelivery["all"] = true.into();
    }
    if redelivery == json!({}) {
        return None;
    }
    if let Some(rate) = rate {
        redelivery["rate"] = rate.into();
    }
    Some(redelivery)
}

fn status(answer: &Value) -> String {
    match show::value(&answer["status"]).as_str() {
        "0" => "-".into(),
        status => status.into(),
    }
}

pub(super) fn table(answer: &Value) -> String {
    match rows(answer) {
        rows if rows.len() > 1 => show::table(&rows),
        _ => "no such deliveries".into(),
    }
}

pub(super) fn rows(answer: &Value) -> Vec<Vec<String>> {
    let heading = [
        "when", "event", "id", "state", "attempts", "status", "cause", "error",
    ];
    let mut rows = vec![heading.map(str::to_uppercase).to_vec()];
    for delivery in answer["deliveries"].as_array().into_iter().flatten() {
        rows.push(vec![
            show::time(&delivery["updated_at"]),
            show::value(&delivery["event_type"]),
            show::value(&delivery["event_id"]),
            show::value(&delivery["state"]),
            show::value(&delivery["attempts"]),
            status(delivery),
            show::value(&delivery["cause"]),
            show::clean(&show::value(&delivery["error"])),
        ]);
    }
    rows
}

/// Text of a delivery, its attempts and its event.
pub(super) fn one(answer: &Value) -> String {
    let mut lines = vec![format!(
        "{} {}: {}",
        show::value(&answer["event_type"]),
        show::value(&answer["event_id"]),
        show::value(&answer["state"])
    )];
    if !answer["next_at"].is_null() {
        lines.push(format!(
            "  next attempt at {}",
            show::time(&answer["next_at"])
        ));
    }
    let heading = ["when", "status", "took", "cause", "error", "answer"];
    let mut rows = vec![heading.map(str::to_uppercase).to_vec()];
    for attempt in answer["tried"].as_array().into_iter().flatten() {
        rows.push(vec![
            show::time(&attempt["at"]),
            status(attempt),
            format!("{} ms", show::value(&attempt["latency_ms"])),
            show::value(&attempt["cause"]),
            show::clean(&show::value(&attempt["error"])),
            show::clean(&show::value(&attempt["snippet"])),
        ]);
    }
    if rows.len() > 1 {
        lines.push(show::table(&rows));
    }
    if !answer["event"].is_null() {
        let event = serde_json::to_string_pretty(&answer["event"]).unwrap_or_default();
        lines.extend(event.lines().map(show::clean));
    }
    lines.join("\n")
}

/// Text of a redelivery job.
pub(super) fn job(job: &Value) -> String {
    format!(
        "redelivery {} to {} is {}; `smesh webhooks redeliver {}` shows how far it is",
        show::value(&job["id"]),
        show::value(&job["webhook"]),
        show::value(&job["state"]),
        show::value(&job["webhook"])
    )
}

pub(super) fn jobs(answer: &Value) -> String {
    let heading = ["when", "id", "by", "state", "begun", "what"];
    let mut rows = vec![heading.map(str::to_uppercase).to_vec()];
    for job in answer["redeliveries"].as_array().into_iter().flatten() {
        rows.push(vec![
            show::time(&job["created_at"]),
            show::value(&job["id"]),
            show::clean(&show::value(&job["by"])),
            show::value(&job["state"]),
            show::value(&job["queued"]),
            show::clean(&show::value(&job["filter"])),
        ]);
    }
    if rows.len() == 1 {
        return "no redeliveries; start one with ids, or --all, --type, --cause, --since, --until"
            .into();
    }
    show::table(&rows)
}
