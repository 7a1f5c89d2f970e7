//! Secrets among the keys of a configuration: types that never show them, in `Debug` and when serialized.

use std::fmt;
use std::ops::Deref;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, Serializer};

/// Shown instead of a secret.
pub const MASK: &str = "********";

/// Serializes a secret as [`MASK`]: `#[serde(serialize_with = "secret_file::masked")]`. `SecretString` itself cannot be serialized, so a
/// field without it does not compile.
///
/// # Errors
/// Those of the serializer.
pub fn masked<S: Serializer>(
    secret: &Option<SecretString>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let is_set = |secret: &&SecretString| !secret.expose_secret().is_empty();
    match secret.as_ref().filter(is_set) {
        Some(_) => serializer.serialize_some(MASK),
        None => serializer.serialize_none(),
    }
}

/// Serializes a URL, or several, without `user:password@`.
///
/// # Errors
/// Those of the serializer.
pub fn masked_login<S: Serializer>(url: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&without_login(url))
}

/// A URL, or several, that may contain `user:password@`. Shown without it.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct LoginUrl(String);

impl Deref for LoginUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for LoginUrl {
    fn from(url: T) -> Self {
        Self(url.into())
    }
}

impl fmt::Debug for LoginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", without_login(&self.0))
    }
}

impl Serialize for LoginUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        masked_login(&self.0, serializer)
    }
}

/// The text with `user:password@` of every URL in it masked. Parsed by hand: a list of servers is not a URL, and an invalid URL may contain
/// a password.
pub fn without_login(text: &str) -> String {
    let masked = |part: &str| match login(part) {
        Some(login) => format!("{MASK}{}", &part[login.len()..]),
        None => part.to_owned(),
    };
    let parts: Vec<String> = text.split("://").map(masked).collect();
    parts.join("://")
}

/// True if a URL in the text contains a password or, as NATS and webhooks accept in place of a user, a token. A PostgreSQL user alone is no
/// secret.
pub fn has_password(text: &str) -> bool {
    let database = text.starts_with("postgres");
    let mut logins = text.split("://").skip(1).filter_map(login);
    logins.any(|login| !database || login.contains(':'))
}

/// What is before the `@` of a URL without its scheme. In a list, the scheme of the next URL follows the host. A comma may also be part of a
/// password.
fn login(url: &str) -> Option<&str> {
    let end = url.find(['/', '?', '#', ' ']).unwrap_or(url.len());
    url[..end].rfind('@').map(|at| &url[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_masked_in_urls_and_lists_of_them() {
        for (url, expected) in [
            (
                "nats://mesh:hun,ter1@n1:4222,tls://hunter2@n2:4222",
                "nats://********@n1:4222,tls://********@n2:4222",
            ),
            (
                "https://me:hun@ter3@otel.example.org/v1?a=b@c",
                "https://********@otel.example.org/v1?a=b@c",
            ),
            ("postgres://mesh@h/l", "postgres://********@h/l"),
            ("token@h:4222", "********@h:4222"),
            ("nats://a:1,nats://b:1", "nats://a:1,nats://b:1"),
            ("sqlite:l.db", "sqlite:l.db"),
        ] {
            assert_eq!(without_login(url), expected);
            let typed = LoginUrl::from(url);
            assert_eq!(format!("{typed:?}"), format!("{expected:?}"));
            assert_eq!(&*typed, url);
        }
    }

    #[test]
    fn a_user_of_postgresql_is_no_secret() {
        for (url, expected) in [
            ("postgres://mesh:s@h/l", true),
            ("postgres://mesh@h/l", false),
            ("nats://token@h:4222", true),
            ("nats://a:1,nats://b:1", false),
        ] {
            assert_eq!(has_password(url), expected, "{url}");
        }
    }
}
