//! Discord: an embed for a webhook.
//!
//! Limits: ten embeds with 6,000 characters in total. Each has a title of 256 characters, a description of 4,096, 25
//! fields with names of 256 and values of 1,024, and a footer of 2,048. Mentions are disabled. 404 means that the
//! webhook was deleted: repeated requests would get the sender blocked.

use serde_json::{Value, json};
use url::Url;

use super::request::{Request, Response, Unsendable};
use super::{Content, Step, fit};
use crate::attempt_outcome::{Outcome, RetryAfter};
use crate::{Dialect, Message, Severity, Text, units};

/// Below the limit of 6,000 in total.
const MAX_TEXT: usize = 5_800;

pub(super) fn begin(address: &Url, content: &Content<'_>) -> Result<Step, Unsendable> {
    let message = content.message().ok_or(Unsendable::Nothing)?;
    let request = Request::json(address, &layout(&message)).with_answer();
    Ok(Step::once(request, judge))
}

pub(super) fn faults(address: &Url) -> Vec<(&'static str, String)> {
    if ["/slack", "/github"]
        .iter()
        .any(|end| address.path().ends_with(end))
    {
        let problem = "take Discord's own address, without /slack or /github at its end";
        vec![("url", problem.to_owned())]
    } else {
        Vec::new()
    }
}

fn judge(response: &Response) -> Outcome {
    match response.status {
        404 => Outcome::Gone {
            reason: "status 404: the webhook was deleted".to_owned(),
        },
        429 => {
            // The body has fractions of a second. The header may be missing or rounded down.
            let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
            let seconds = body["retry_after"].as_f64().filter(|s| s.is_finite());
            let seconds = seconds.map(RetryAfter::fractional);
            Outcome::Retry {
                after: seconds.or_else(|| response.retry_after()),
            }
        }
        _ => response.by_status(),
    }
}

fn layout(message: &Message) -> Value {
    fit(
        |scale| at_scale(message, scale),
        |body| size(&body["embeds"][0]) <= MAX_TEXT,
    )
}

fn at_scale(message: &Message, scale: usize) -> Value {
    let write = |text: &Text, limit: usize| text.write(Dialect::Discord, limit / scale);
    let color = match message.severity {
        Severity::Good => 0x2e_b6_7d,
        Severity::Info => 0x3b_88_c3,
        Severity::Warning => 0xec_b2_2e,
        Severity::Error => 0xe0_1e_5a,
    };
    let mut embed = json!({
        "title": format!("{} {}", message.sign, write(&message.heading, 240)),
        "color": color,
    });
    if !message.sentence.is_empty() {
        embed["description"] = write(&message.sentence, 2_400).into();
    }
    let mut fields: Vec<Value> = message
        .facts
        .iter()
        .take(20)
        .map(|fact| {
            let value = write(&fact.value, 1_000);
            json!({"name": fact.name, "value": value, "inline": units(&value) <= 40})
        })
        .collect();
    for link in message.links.iter().take(3) {
        let label = Text::from(link.label.as_str()).write(Dialect::Discord, 150);
        // Omit a long link rather than truncate it.
        if units(&link.url) + units(&label) < 1_000 / scale {
            fields.push(json!({"name": "Link", "value": format!("[{label}]({})", link.url), "inline": false}));
        }
    }
    if !fields.is_empty() {
        embed["fields"] = fields.into();
    }
    if !message.footer.is_empty() {
        // Footers show no Markdown.
        embed["footer"] = json!({"text": message.footer.write(Dialect::Plain, 600 / scale)});
    }
    json!({"embeds": [embed], "allowed_mentions": {"parse": []}})
}

/// Total length of title, description, fields and footer.
fn size(embed: &Value) -> usize {
    let of = |value: &Value| value.as_str().map_or(0, units);
    let fields = embed["fields"].as_array().map_or(0, |fields| {
        fields
            .iter()
            .map(|field| of(&field["name"]) + of(&field["value"]))
            .sum()
    });
    of(&embed["title"]) + of(&embed["description"]) + of(&embed["footer"]["text"]) + fields
}
