//! Collects the secrets of an endpoint's settings.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use percent_encoding::percent_decode_str;
use url::Url;

/// Public path segments of URLs issued by Slack, Discord, Teams and similar services. Other segments may be the
/// secret.
const PUBLIC_SEGMENTS: [&str; 12] = [
    "api",
    "hook",
    "hooks",
    "invoke",
    "manual",
    "paths",
    "services",
    "slack",
    "triggers",
    "webhook",
    "webhooks",
    "workflows",
];
/// Minimum length of a part of a header's value to be a secret by itself. What follows a scheme of `Authorization` is one from
/// [`super::MIN_BYTES`] on.
const MIN_PART: usize = 8;

/// A set of secrets.
#[derive(Clone, Default)]
pub struct Values(BTreeSet<Vec<u8>>);

impl Values {
    /// Adds a secret.
    pub fn secret(&mut self, value: &str) {
        self.0.insert(value.as_bytes().to_owned());
    }

    /// Adds a user and password, which are sent as `Basic`.
    pub fn credentials(&mut self, user: &str, password: &str) {
        self.secret(user);
        self.secret(password);
        self.secret(&format!("{user}:{password}"));
    }

    /// Adds a secret of Standard Webhooks, `whsec_<base64>`.
    pub fn signing_secret(&mut self, secret: &str) {
        self.secret(secret);
        let encoded = secret.strip_prefix("whsec_").unwrap_or(secret);
        self.secret(encoded);
        self.0.extend(BASE64_STANDARD.decode(encoded));
    }

    /// Adds the value of a header: the whole, and the token, password or cookie in it.
    pub fn header(&mut self, name: &str, value: &[u8]) {
        self.0.insert(value.to_owned());
        let Ok(text) = std::str::from_utf8(value) else {
            return;
        };
        // The two words of another header may be ordinary ones.
        let has_scheme = ["authorization", "proxy-authorization"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known));
        if has_scheme
            && let Some((scheme, credentials)) = text.trim().split_once([' ', '\t'])
            && is_scheme(scheme)
        {
            self.secret(credentials.trim());
            for word in credentials.split([' ', '\t', ',']) {
                let value = word.split_once('=').map_or(word, |(_, value)| value);
                self.secret(value.trim_matches('"'));
            }
        }
        for word in text.split([' ', '\t', ';', ',']) {
            let parts = [Some(word), word.split_once('=').map(|(_, value)| value)];
            for part in parts.into_iter().flatten() {
                let part = part.trim_matches('"');
                if part.len() >= MIN_PART {
                    self.secret(part);
                }
            }
        }
        if let Some((scheme, encoded)) = text.split_once(' ')
            && scheme.eq_ignore_ascii_case("basic")
            && let Ok(decoded) = BASE64_STANDARD_NO_PAD.decode(encoded.trim().trim_end_matches('='))
            && let Ok(decoded) = String::from_utf8(decoded)
        {
            match decoded.split_once(':') {
                Some((user, password)) => self.credentials(user, password),
                None => self.secret(&decoded),
            }
        }
    }

    /// Adds the secrets of a URL: user, password, the query's values, and the path if it is secret.
    pub fn address(&mut self, url: &Url, path_is_secret: bool) {
        self.encoded(url.username());
        self.encoded(url.password().unwrap_or_default());
        if let Some(password) = url.password() {
            self.credentials(&decoded(url.username()), &decoded(password));
        }
        for pair in url.query().unwrap_or_default().split('&') {
            let (_, value) = pair.split_once('=').unwrap_or(("", pair));
            self.encoded(value);
            self.secret(&decoded(&value.replace('+', " ")));
        }
        if path_is_secret {
            let segments: Vec<&str> = url.path_segments().into_iter().flatten().collect();
            let is_public = |segment: &&str| PUBLIC_SEGMENTS.contains(segment);
            let begin = segments
                .iter()
                .take_while(|segment| is_public(segment))
                .count();
            self.encoded(&segments[begin..].join("/"));
            for segment in segments.into_iter().filter(|segment| !is_public(segment)) {
                self.encoded(segment);
            }
        }
    }

    /// Adds a part of a URL, percent-encoded and decoded.
    fn encoded(&mut self, part: &str) {
        self.secret(part);
        self.secret(&decoded(part));
    }

    pub(super) fn into_secrets(self, min_bytes: usize) -> Vec<Vec<u8>> {
        let long_enough = |value: &Vec<u8>| value.len() >= min_bytes;
        self.0.into_iter().filter(long_enough).collect()
    }
}

/// Whether a word can be the name of a scheme of `Authorization`, and not a media type or a cookie.
fn is_scheme(word: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !word.is_empty() && word.chars().all(is_of_name)
}

fn decoded(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}
