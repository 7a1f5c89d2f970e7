//! Finds secrets in a configuration, to mask them and to check file modes.

/// Replacement of a secret.
const MASK: &str = "********";

/// Keys whose values are secrets, in addition to `…_secret`.
const SECRETS: [&str; 7] = [
    "secret",
    "password",
    "token",
    "sha256",
    "secrets_key",
    "routing_key",
    "credentials",
];
/// Webhook formats whose URL is the secret.
const CHATS: [&str; 3] = ["slack", "teams", "discord"];

/// The sensitive part of a value.
enum Sensitive<'a> {
    /// The whole value.
    Secret(&'a mut String),
    /// A value with a URL that contains `user:password@`.
    Login(&'a mut String),
}

/// Calls a function for every value that is or may contain a secret, with its key.
fn visit_sensitive(
    value: &mut toml::Value,
    key: &str,
    visit: &mut impl FnMut(&str, Sensitive<'_>),
) {
    match value {
        toml::Value::Table(table) => {
            // Whoever has the URL of a chat's webhook can write to the channel.
            let chat = table.get("format").is_some_and(|format| {
                let named = format.get("type").unwrap_or(format).as_str();
                named.is_some_and(|name| CHATS.contains(&name))
            });
            let in_headers = key.ends_with(".headers");
            for (name, value) in table.iter_mut() {
                let secret = SECRETS.contains(&name.as_str())
                    || name.ends_with("_secret")
                    || chat && name == "url"
                    || in_headers;
                let key = format!("{key}.{name}");
                match value {
                    toml::Value::String(text) if secret && !text.is_empty() => {
                        visit(&key, Sensitive::Secret(text));
                    }
                    value => visit_sensitive(value, &key, visit),
                }
            }
        }
        toml::Value::Array(values) => {
            for (index, value) in values.iter_mut().enumerate() {
                visit_sensitive(value, &format!("{key}[{index}]"), visit);
            }
        }
        toml::Value::String(text) => visit(key, Sensitive::Login(text)),
        _ => {}
    }
}

pub(super) fn mask(section: &mut toml::Value) {
    visit_sensitive(section, "", &mut |_, sensitive| match sensitive {
        Sensitive::Secret(text) => MASK.clone_into(text),
        Sensitive::Login(text) => *text = without_userinfo(text),
    });
}

/// Keys of a file's text that hold a secret.
pub(super) fn secret_keys(text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    // Invalid TOML was reported earlier.
    let table = toml::from_str::<toml::Table>(text).unwrap_or_default();
    for (name, mut section) in table {
        visit_sensitive(&mut section, &name, &mut |key, sensitive| {
            let secret = match sensitive {
                // A token's hash grants no access.
                Sensitive::Secret(_) => !key.ends_with(".sha256"),
                Sensitive::Login(text) => has_password(text),
            };
            if secret {
                keys.push(key.to_owned());
            }
        });
    }
    keys
}

/// True if a URL in the text contains a password or, as NATS and webhooks accept in place of a user, a token. A PostgreSQL user alone is no
/// secret.
fn has_password(text: &str) -> bool {
    let database = text.starts_with("postgres");
    text.split("://").skip(1).any(|part| {
        let end = part.find(['/', '?', '#', ' ']).unwrap_or(part.len());
        let login = part[..end].rfind('@').map(|at| &part[..at]);
        login.is_some_and(|login| !database || login.contains(':'))
    })
}

/// The text with `user:password@` of every URL in it masked. Parsed by hand: a list of servers is not a URL, and an invalid URL may contain
/// a password.
fn without_userinfo(text: &str) -> String {
    let mut parts = text.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str("://");
        let end = part.find(['/', '?', '#', ' ']).unwrap_or(part.len());
        // In a list, the scheme of the next URL follows the host. A comma may also be part of a password.
        match part[..end].rfind('@') {
            Some(at) => {
                masked.push_str(MASK);
                masked.push_str(&part[at..]);
            }
            None => masked.push_str(part),
        }
    }
    masked
}
