//! Microsoft Teams: an Adaptive Card 1.4 for a Workflows webhook.
//!
//! Text from outside is placed in `TextRun`s only, which do not interpret Markdown. A request may have 28 KB.
//! Workflows respond 202 before anything is displayed. The older connectors responded 200 with an error as text,
//! which still occurs where a gateway translates.

use serde_json::{Value, json};
use url::Url;

use super::request::{Request, Response, Unsendable};
use super::{Content, Step, fit};
use crate::attempt_outcome::Outcome;
use crate::{Dialect, Message, Severity, Span, Text};

/// Below the documented limit of 28 KB, with room for what a proxy adds.
const MAX_BYTES: usize = 27_000;

pub(super) fn begin(address: &Url, content: &Content<'_>) -> Result<Step, Unsendable> {
    let message = content.message().ok_or(Unsendable::Nothing)?;
    let request = Request::json(address, &layout(&message)).with_answer();
    Ok(Step::once(request, judge))
}

pub(super) fn faults(address: &Url) -> Vec<(&'static str, String)> {
    let host = address.host_str().unwrap_or_default();
    if host.ends_with("webhook.office.com") || host == "outlook.office.com" {
        let problem = "Office 365 connectors are retired: make a workflow \"When a Teams webhook request is received\" and take its address";
        vec![("url", problem.to_owned())]
    } else {
        Vec::new()
    }
}

fn judge(response: &Response) -> Outcome {
    let outcome = response.by_status();
    let said = response.excerpt().to_ascii_lowercase();
    if outcome != Outcome::Delivered || !said.contains("webhook message delivery failed") {
        return outcome;
    }
    // "Webhook message delivery failed with error: Microsoft Teams endpoint returned HTTP error 429 with ContextId …"
    let status = said
        .split("http error ")
        .nth(1)
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse().ok())
        .unwrap_or(400);
    Outcome::of_status(status, response.retry_after())
}

fn layout(message: &Message) -> Value {
    fit(
        |scale| at_scale(message, scale),
        |body| body.to_string().len() <= MAX_BYTES,
    )
}

fn at_scale(message: &Message, scale: usize) -> Value {
    let color = match message.severity {
        Severity::Good => "Good",
        Severity::Info => "Default",
        Severity::Warning => "Warning",
        Severity::Error => "Attention",
    };
    let mut heading = runs(&message.heading, 400 / scale);
    heading.insert(
        0,
        json!({"type": "TextRun", "text": format!("{} ", message.sign)}),
    );
    for run in &mut heading {
        run["weight"] = "Bolder".into();
        run["size"] = "Medium".into();
        run["color"] = color.into();
    }
    let mut body = vec![rich(heading, "Default")];
    if !message.sentence.is_empty() {
        body.push(rich(runs(&message.sentence, 2_400 / scale), "Small"));
    }
    for fact in message.facts.iter().take(12) {
        let mut inlines = vec![
            json!({"type": "TextRun", "text": format!("{}: ", fact.name), "weight": "Bolder"}),
        ];
        inlines.extend(runs(&fact.value, 1_200 / scale));
        body.push(rich(inlines, "Small"));
    }
    if !message.footer.is_empty() {
        let mut footer = runs(&message.footer, 600 / scale);
        for run in &mut footer {
            run["isSubtle"] = true.into();
            run["size"] = "Small".into();
        }
        body.push(rich(footer, "Small"));
    }
    let mut card = json!({
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
    });
    let actions: Vec<Value> = message
        .links
        .iter()
        .take(5)
        .map(|link| json!({"type": "Action.OpenUrl", "title": plain(&link.label, 100), "url": link.url}))
        .collect();
    if !actions.is_empty() {
        card["actions"] = actions.into();
    }
    json!({
        "type": "message",
        "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": null,
            "content": card,
        }],
    })
}

fn rich(inlines: Vec<Value>, spacing: &str) -> Value {
    json!({"type": "RichTextBlock", "inlines": inlines, "spacing": spacing})
}

/// The spans of a text, in total at most `limit` UTF-16 units.
fn runs(text: &Text, limit: usize) -> Vec<Value> {
    let mut left = limit;
    let mut runs = Vec::new();
    for span in text.spans() {
        let (text, key, value) = match span {
            Span::Plain(text) => (plain(text, left), "", ""),
            Span::Strong(text) => (plain(text, left), "weight", "Bolder"),
            Span::Code(text) => (plain(text, left), "fontType", "Monospace"),
            Span::Time(time) => (Text::new().time(*time).write(Dialect::Plain, left), "", ""),
        };
        left = left.saturating_sub(crate::units(&text));
        let mut run = json!({"type": "TextRun", "text": text});
        if !key.is_empty() {
            run[key] = value.into();
        }
        if run["text"] != "" {
            runs.push(run);
        }
    }
    runs
}

/// Plain text, with `{{` broken up: `{{DATE(…)}}` would be evaluated.
fn plain(text: &str, limit: usize) -> String {
    Text::from(text.replace("{{", "{ {")).write(Dialect::Plain, limit)
}
