//! Finds the secrets that are written in a configuration file.

use secret_file::{MASK, has_password};
use toml::Value;

/// Shown instead of a secret. Webhooks show those of their headers and formats as their API does.
const MASKS: [&str; 2] = [MASK, "…"];

/// Keys of a file that hold a secret. `shown` are the sections whose types are known, with secrets masked.
pub(super) fn secret_keys(file: &Value, shown: &Value) -> Vec<String> {
    let mut keys = Vec::new();
    find(file, Some(shown), "", &mut keys);
    keys
}

fn find(written: &Value, shown: Option<&Value>, key: &str, keys: &mut Vec<String>) {
    match written {
        Value::Table(table) => {
            for (name, value) in table {
                let key = match key {
                    "" => name.clone(),
                    key => format!("{key}.{name}"),
                };
                find(value, shown.and_then(|shown| shown.get(name)), &key, keys);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                let key = format!("{key}[{index}]");
                find(value, shown.and_then(|shown| shown.get(index)), &key, keys);
            }
        }
        Value::String(text) => {
            let shown = shown.and_then(Value::as_str);
            let is_masked = shown.is_some_and(|shown| MASKS.contains(&shown));
            if has_password(text) || is_masked && !text.is_empty() {
                keys.push(key.to_owned());
            }
        }
        _ => {}
    }
}
