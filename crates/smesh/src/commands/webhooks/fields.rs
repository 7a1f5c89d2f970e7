//! Converts the command line's settings of an endpoint into the API's form.

use event_message::format::Format;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::cli::{WebhookAdd, WebhookEdit, WebhookFields};
use crate::error::Error;
use crate::secret_input::SecretInput;

/// The body that creates an endpoint.
pub(super) fn add(args: &WebhookAdd) -> Result<Value, Error> {
    let mut input = SecretInput::default();
    let mut spec = fields(&args.fields, &mut input)?;
    spec.insert("name".into(), args.name.clone().into());
    if let Some(owner) = &args.owner {
        spec.insert("owner".into(), owner.clone().into());
    }
    let format = spec.get("format").and_then(known_format);
    let is_secret = format.is_some_and(|format| format.address_is_secret());
    let address = match &args.address {
        Some(address) => Some(input.value("address", address)?),
        None if is_secret && !spec.contains_key("url") => input.prompt("address")?,
        None => None,
    };
    if let Some(address) = address {
        spec.insert("url".into(), address.into());
    }
    if let Some(file) = &args.secret_file {
        spec.insert("secret".into(), input.file("signing secret", file)?.into());
    }
    Ok(spec.into())
}

/// The body that changes an endpoint.
pub(super) fn edit(args: &WebhookEdit) -> Result<Value, Error> {
    let mut input = SecretInput::default();
    let mut patch = fields(&args.fields, &mut input)?;
    if let Some(address) = &args.address {
        patch.insert("url".into(), input.value("address", address)?.into());
    }
    for field in &args.unset {
        insert(&mut patch, field, Value::Null);
    }
    if patch.is_empty() {
        return Err(Error::Usage(
            "nothing to change; `smesh webhooks edit --help` lists the options".into(),
        ));
    }
    Ok(patch.into())
}

fn fields(args: &WebhookFields, input: &mut SecretInput) -> Result<Map<String, Value>, Error> {
    let mut spec = Map::new();
    for field in &args.set {
        let Some((key, value)) = field.split_once('=') else {
            return Err(Error::Usage(
                "--set: not of the form FIELD=VALUE".to_owned(),
            ));
        };
        let value = input.value(key, value)?;
        let value = serde_json::from_str(&value).unwrap_or_else(|_| value.into());
        insert(&mut spec, key, value);
    }
    if let Some(format) = &args.format {
        spec.insert("format".into(), self::format(format, input)?);
    }
    for (key, values) in [
        ("types", &args.types),
        ("users", &args.users),
        ("partitions", &args.partitions),
        ("success", &args.success),
    ] {
        if !values.is_empty() {
            spec.insert(key.into(), json!(values));
        }
    }
    for (key, text) in [
        ("description", &args.description),
        ("rate_limit", &args.rate_limit),
        ("timeout", &args.timeout),
        ("give_up_after", &args.give_up_after),
        ("max_event_age", &args.max_event_age),
        ("max_retry_after", &args.max_retry_after),
        ("pending_threshold", &args.pending_threshold),
    ] {
        if let Some(text) = text {
            spec.insert(key.into(), text.clone().into());
        }
    }
    for (key, number) in [("burst", args.burst), ("max_attempts", args.max_attempts)] {
        if let Some(number) = number {
            spec.insert(key.into(), number.into());
        }
    }
    let mut headers = Map::new();
    for header in &args.headers {
        let Some((name, value)) = header.split_once(':') else {
            return Err(Error::Usage(
                "--header: not of the form 'NAME: VALUE'".to_owned(),
            ));
        };
        let value = input.value(name.trim(), value.trim())?;
        headers.insert(name.trim().to_owned(), value.into());
    }
    if !headers.is_empty() {
        spec.insert("headers".into(), headers.into());
    }
    Ok(spec)
}

/// Sets a field. Dots lead into nested tables: `retry.max_interval`.
fn insert(spec: &mut Map<String, Value>, path: &str, value: Value) {
    let Some((table, key)) = path.split_once('.') else {
        spec.insert(path.to_owned(), value);
        return;
    };
    let fields = spec.entry(table).or_insert_with(|| json!({}));
    if !fields.is_object() {
        *fields = json!({});
    }
    if let Some(fields) = fields.as_object_mut() {
        insert(fields, key, value);
    }
}

/// Parses a format: its name, or an object with settings. A file or standard input may hold the whole value, or only its secret
/// settings.
pub(super) fn format(written: &str, input: &mut SecretInput) -> Result<Value, Error> {
    let text = input.value("format", written)?;
    if !text.starts_with('{') {
        return Ok(json!({ "type": text }));
    }
    let mut format: Value =
        serde_json::from_str(&text).map_err(|error| Error::Usage(format!("--format: {error}")))?;
    let settings = known_format(&format);
    for (key, secret) in settings.iter().flat_map(Format::secrets) {
        if secret.file().is_none() {
            format[key] = input.value(key, secret.expose())?.into();
        }
    }
    Ok(format)
}

/// The format that the API will read. `None` if the API refuses it.
fn known_format(format: &Value) -> Option<Format> {
    Format::deserialize(format).ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command, Webhooks};

    fn spec(args: &[&str]) -> Result<Value, Error> {
        let all = [&["smesh", "webhooks"], args].concat();
        match Cli::try_parse_from(all).unwrap().command {
            Command::Webhooks(Webhooks::Add(args)) => add(&args),
            Command::Webhooks(Webhooks::Edit(args)) => edit(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_accepts_what_the_api_accepts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        mesh_testkit::write_private(&file, "hunter2\n");
        let header = format!("authorization: @{}", file.display());
        let added = spec(&[
            "add",
            "x",
            "https://e.org/",
            "--type",
            "job.*",
            "--type",
            "node.down",
            "--header",
            &header,
            "--max-attempts",
            "3",
            "--timeout",
            "5s",
            "--rate-limit",
            "10/s",
            "--burst",
            "2",
            "--success",
            "202",
            "--success",
            "3xx",
            "--give-up-after",
            "1d",
            "--max-event-age",
            "1h",
            "--max-retry-after",
            "30m",
            "--pending-threshold",
            "2h",
            "--set",
            "circuit_breaker.failure_threshold=5",
            "--set",
            "retry.multiplier=2",
            "--set",
            "retry.max_interval=1h",
            "--format",
            "slack",
        ]);
        assert_eq!(
            added.unwrap(),
            json!({
                "name": "x", "url": "https://e.org/", "types": ["job.*", "node.down"], "headers": {"authorization": "hunter2"},
                "max_attempts": 3, "timeout": "5s", "rate_limit": "10/s", "burst": 2, "success": ["202", "3xx"], "give_up_after": "1d",
                "max_event_age": "1h", "max_retry_after": "30m", "pending_threshold": "2h", "format": {"type": "slack"},
                "circuit_breaker": {"failure_threshold": 5}, "retry": {"multiplier": 2, "max_interval": "1h"},
            })
        );
        let edited = spec(&["edit", "x", "--unset", "types", "--description", "why"]);
        assert_eq!(
            edited.unwrap(),
            json!({"types": null, "description": "why"})
        );
        let edited = spec(&[
            "edit",
            "x",
            "--set",
            "retry.multiplier=2",
            "--unset",
            "retry.max_interval",
        ]);
        assert_eq!(
            edited.unwrap(),
            json!({"retry": {"multiplier": 2, "max_interval": null}})
        );
        assert!(matches!(spec(&["edit", "x"]), Err(Error::Usage(_))));
        assert!(matches!(
            spec(&["edit", "x", "--set", "y"]),
            Err(Error::Usage(_))
        ));
    }
}
