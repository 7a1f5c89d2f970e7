//! Slack's Block Kit, for incoming webhooks and for the API.
//!
//! Limits: header 150 characters, section text 3,000, ten fields of 2,000, context ten elements, 50 blocks, and about
//! 13,000 characters in total, which Slack does not document. `verbatim` prevents names of channels, people and URLs
//! in plain text from becoming links.

use serde_json::{Value, json};
use url::Url;

use super::request::{Request, Response, Unsendable};
use super::{Content, Step, fit};
use crate::{Dialect, Message, units};

/// Maximum total text of a message. The observed limit is about 13,000.
const MAX_TEXT: usize = 9_000;

pub(super) fn begin(address: &Url, content: &Content<'_>) -> Result<Step, Unsendable> {
    let message = content.message().ok_or(Unsendable::Nothing)?;
    // 2xx is `ok`. Permanent errors (no_service, invalid_blocks, channel_is_archived) are 4xx, `rollup_error` is 500.
    Ok(Step::once(
        Request::json(address, &layout(&message)),
        Response::by_status,
    ))
}

/// `{text, blocks}` of a message.
pub(super) fn layout(message: &Message) -> Value {
    fit(
        |scale| at_scale(message, scale),
        |laid_out| size(laid_out) <= MAX_TEXT,
    )
}

fn at_scale(message: &Message, scale: usize) -> Value {
    let write = |text: &crate::Text, limit: usize| text.write(Dialect::Slack, limit / scale);
    let heading = format!(
        "{} {}",
        message.sign,
        message.heading.write(Dialect::Plain, 140 / scale)
    );
    let mut blocks = vec![
        json!({"type": "header", "text": {"type": "plain_text", "text": heading, "emoji": false}}),
    ];
    if !message.sentence.is_empty() {
        blocks.push(json!({"type": "section", "text": mrkdwn(write(&message.sentence, 2_400))}));
    }
    let fields: Vec<Value> = message
        .facts
        .iter()
        .take(10)
        .map(|fact| mrkdwn(format!("*{}*\n{}", fact.name, write(&fact.value, 1_200))))
        .collect();
    if !fields.is_empty() {
        blocks.push(json!({"type": "section", "fields": fields}));
    }
    let links: Vec<String> = message
        .links
        .iter()
        .map(|link| {
            let label = crate::Text::from(link.label.as_str());
            format!(
                "<{}|{}>",
                link.url.replace('&', "&amp;"),
                label.write(Dialect::Slack, 100)
            )
        })
        .collect();
    let mut elements = Vec::new();
    if !message.footer.is_empty() {
        elements.push(mrkdwn(write(&message.footer, 600)));
    }
    elements.extend(links.into_iter().take(5).map(mrkdwn));
    if !elements.is_empty() {
        blocks.push(json!({"type": "context", "elements": elements}));
    }
    // For notifications and clients without blocks. `<`, `>` and `&` are special there.
    let text = format!(
        "{} {}",
        message.sign,
        message.heading.write(Dialect::Slack, 400)
    );
    json!({"text": text, "blocks": blocks})
}

fn mrkdwn(text: String) -> Value {
    json!({"type": "mrkdwn", "text": text, "verbatim": true})
}

/// Total length of all strings of a body.
fn size(body: &Value) -> usize {
    match body {
        Value::String(text) => units(text),
        Value::Array(values) => values.iter().map(size).sum(),
        Value::Object(values) => values.values().map(size).sum(),
        _ => 0,
    }
}
