//! `smesh webhooks`: endpoints, how they fare, and a test.

use std::process::ExitCode;

use serde_json::Value;

use crate::cli::{self, Global};
use crate::client::{Query, segment};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: cli::Webhooks) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    match args {
        cli::Webhooks::List => {
            let answer = client.get("/v1/webhooks", &Query::new()).await?;
            output(global, &answer, list)?;
        }
        cli::Webhooks::Show { name } => {
            let path = format!("/v1/webhooks/{}", segment(&name));
            let mut answer = client.get(&path, &Query::new()).await?;
            let mut deliveries = client
                .get(&format!("{path}/deliveries"), &vec![("limit", "20".into())])
                .await?;
            answer["deliveries"] = deliveries["deliveries"].take();
            output(global, &answer, endpoint)?;
        }
        cli::Webhooks::Test { name } => {
            let answer = client
                .post(&format!("/v1/webhooks/{}/test", segment(&name)))
                .await?;
            output(global, &answer, tested)?;
            if answer["delivered"] != true {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn output(global: &Global, answer: &Value, text: impl Fn(&Value) -> String) -> Result<(), Error> {
    if global.json {
        show::line(answer)
    } else {
        show::line(text(answer))
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(
        || {
            if value.is_null() {
                String::new()
            } else {
                value.to_string()
            }
        },
        str::to_owned,
    )
}

fn types(endpoint: &Value) -> String {
    let types: Vec<String> = endpoint["types"]
        .as_array()
        .into_iter()
        .flatten()
        .map(text)
        .collect();
    if types.is_empty() {
        "all".into()
    } else {
        types.join(",")
    }
}

fn counts(endpoint: &Value) -> Vec<(String, String)> {
    endpoint["counts"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, count)| (name.clone(), text(count)))
        .collect()
}

fn list(answer: &Value) -> String {
    let endpoints: Vec<&Value> = answer["webhooks"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    let Some(first) = endpoints.first() else {
        return "no endpoints; write [[webhook-dispatcher.endpoints]] in mesh.toml".into();
    };
    let mut heading = ["name", "format", "types"].map(str::to_uppercase).to_vec();
    heading.extend(
        counts(first)
            .into_iter()
            .map(|(name, _)| name.to_uppercase()),
    );
    heading.push("URL".into());
    let mut rows = vec![heading];
    for endpoint in endpoints {
        let mut row = vec![
            text(&endpoint["name"]),
            text(&endpoint["format"]),
            types(endpoint),
        ];
        row.extend(counts(endpoint).into_iter().map(|(_, count)| count));
        row.push(text(&endpoint["url"]));
        rows.push(row);
    }
    show::table(&rows)
}

fn endpoint(answer: &Value) -> String {
    let mut lines = vec![
        show::bold(&text(&answer["name"])),
        format!(
            "  {} to {}, types {}",
            text(&answer["format"]),
            text(&answer["url"]),
            types(answer)
        ),
    ];
    let counts: Vec<String> = counts(answer)
        .into_iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    lines.push(format!("  {}", counts.join(", ")));
    let mut rows = vec![
        ["when", "event", "state", "attempts", "status", "error"]
            .map(str::to_uppercase)
            .to_vec(),
    ];
    for delivery in answer["deliveries"].as_array().into_iter().flatten() {
        let status = text(&delivery["status"]);
        rows.push(vec![
            show::clock(
                delivery["updated_at"]
                    .as_str()
                    .and_then(|time| time.parse().ok()),
            ),
            text(&delivery["event_type"]),
            text(&delivery["state"]),
            text(&delivery["attempts"]),
            if status == "0" { "-".into() } else { status },
            text(&delivery["error"]),
        ]);
    }
    if rows.len() > 1 {
        lines.push(show::table(&rows));
    }
    lines.join("\n")
}

fn tested(answer: &Value) -> String {
    let (name, latency) = (text(&answer["webhook"]), text(&answer["latency_ms"]));
    if answer["delivered"] == true {
        format!(
            "{name} took the test event: HTTP {} after {latency} ms",
            text(&answer["status"])
        )
    } else {
        format!(
            "{name} did not take the test event: {}",
            show::clean(&text(&answer["error"]))
        )
    }
}
