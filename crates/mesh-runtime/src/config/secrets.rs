//! Which texts of a configuration are secret.

/// What stands for a secret.
const MASK: &str = "********";

/// Keys whose texts are secrets, beside `…_secret`.
const SECRETS: [&str; 7] = [
    "secret",
    "password",
    "token",
    "sha256",
    "secrets_key",
    "routing_key",
    "credentials",
];
/// Formats of webhooks whose address is the secret.
const CHATS: [&str; 3] = ["slack", "teams", "discord"];

/// What a text has of secrets.
enum Sensitive<'a> {
    /// It is one.
    Secret(&'a mut String),
    /// `user:password@` of a URL in it.
    Login(&'a mut String),
}

/// Every text that is a secret or may have one in it, with its key.
fn visit_sensitive(
    value: &mut toml::Value,
    key: &str,
    visit: &mut impl FnMut(&str, Sensitive<'_>),
) {
    match value {
        toml::Value::Table(table) => {
            // Who has the address of a chat's webhook may write to the channel.
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
    // What is no TOML has been told by now.
    let table = toml::from_str::<toml::Table>(text).unwrap_or_default();
    for (name, mut section) in table {
        visit_sensitive(&mut section, &name, &mut |key, sensitive| {
            let secret = match sensitive {
                // The hash of a token lets nobody in.
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

/// Whether a URL in the text has a password or, as NATS and webhooks take it in place of a user, a token. PostgreSQL's user alone is none.
fn has_password(text: &str) -> bool {
    let database = text.starts_with("postgres");
    text.split("://").skip(1).any(|part| {
        let end = part.find(['/', '?', '#', ' ']).unwrap_or(part.len());
        let login = part[..end].rfind('@').map(|at| &part[..at]);
        login.is_some_and(|login| !database || login.contains(':'))
    })
}

/// The text with `user:password@` of every URL in it masked. By hand, as a list of servers is no URL, and what is no URL may be half of one.
fn without_userinfo(text: &str) -> String {
    let mut parts = text.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str("://");
        let end = part.find(['/', '?', '#', ' ']).unwrap_or(part.len());
        // In a list the scheme of the next URL is behind the host; a comma may be in a password, too.
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
