//! Shows the requests that would be sent.

use std::path::Path;

use serde_json::{Value, json};

use super::fields::format;
use crate::cli::WebhookPreview;
use crate::error::Error;
use crate::secret_input::SecretInput;
use crate::show;

/// Body of the preview request, without the event.
pub(super) fn draft(args: &WebhookPreview) -> Result<Value, Error> {
    let mut draft = json!({});
    if let Some(name) = &args.name {
        draft["webhook"] = name.clone().into();
    }
    if let Some(text) = &args.format {
        draft["format"] = format(text, &mut SecretInput::default())?;
    }
    if let Some(file) = &args.template {
        let body = template(file)?;
        draft["format"] = json!({"type": "template", "body": body});
        if let Some(kind) = &args.content_type {
            draft["format"]["content_type"] = kind.clone().into();
        }
    }
    if let Some(kind) = &args.kind {
        draft["type"] = kind.clone().into();
    }
    Ok(draft)
}

fn template(file: &Path) -> Result<String, Error> {
    let read = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    read.map_err(|source| Error::io("read", file, source))
}

/// Text of the requests. A single request is printed as its body only, so that it can be piped.
pub(super) fn text(answer: &Value, name: Option<&str>) -> String {
    let requests = answer["requests"].as_array().map_or(&[][..], Vec::as_slice);
    let mut lines = Vec::new();
    for request in requests {
        if requests.len() > 1 {
            let heading = format!(
                "{} {}",
                show::value(&request["method"]),
                show::value(&request["url"])
            );
            lines.push(show::bold(&show::clean(&heading)));
        }
        let body = show::value(&request["body"]);
        if !body.is_empty() {
            // Line breaks and tabs come from the template.
            let pieces = body.split_inclusive(['\n', '\t']).map(|piece| {
                let text = piece.trim_end_matches(['\n', '\t']);
                show::clean(text) + &piece[text.len()..]
            });
            lines.push(pieces.collect::<String>().trim_end().to_owned());
        }
    }
    if answer["matches"] != true {
        lines.push(format!(
            "{} does not receive such events: its filter or format excludes them",
            name.unwrap_or("an endpoint of this format")
        ));
    }
    lines.join("\n")
}
