//! The forms in which pages, logs and errors echo a value.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::GeneralPurpose;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::form_urlencoded;

/// Characters that RFC 3986 does not encode.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// JavaScript's `encodeURIComponent` does not encode these either.
const COMPONENT: &AsciiSet = &UNRESERVED
    .remove(b'!')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');
/// Shorter pieces of base64 occur in other words.
const MIN_BASE64: usize = 8;

/// Every form of the values, without duplicates.
pub(super) fn of(values: &[Vec<u8>]) -> Vec<String> {
    let mut forms = BTreeSet::new();
    for value in values {
        if let Ok(text) = std::str::from_utf8(value) {
            forms.extend(of_text(text));
        }
        forms.insert(hex::encode(value));
        for engine in [BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD] {
            forms.insert(engine.encode(value));
            forms.extend((0..3).filter_map(|before| base64_within(&engine, value, before)));
        }
    }
    forms.into_iter().collect()
}

fn of_text(text: &str) -> Vec<String> {
    let json = json(text, |c| c.is_control());
    let mut forms = vec![
        json_again(&json),
        json.replace('/', "\\/"),
        // As written by Go, Python and PHP.
        self::json(text, |c| {
            !c.is_ascii() || c.is_control() || "<>&'/".contains(c)
        }),
        self::json(text, |c| c.is_control() || "<>&".contains(c)),
        self::json(text, |c| !c.is_ascii() || c.is_control()),
        json,
        form_urlencoded::byte_serialize(text.as_bytes()).collect(),
        html(text, "&quot;", "'"),
        html(text, "&quot;", "&#39;"),
        html(text, "&#34;", "&#39;"),
        html(text, "&quot;", "&#x27;"),
        html(text, "&quot;", "&#039;"),
        html(text, "\"", "'"),
        text.to_owned(),
    ];
    for set in [NON_ALPHANUMERIC, UNRESERVED, COMPONENT] {
        forms.push(utf8_percent_encode(text, set).to_string());
    }
    forms
}

/// The base64 of a value inside a longer text, after `before` bytes (modulo three). Contains only characters that
/// depend on the value alone.
fn base64_within(engine: &GeneralPurpose, value: &[u8], before: usize) -> Option<String> {
    let whole = engine.encode([&[0; 2][..before], value].concat());
    let begin = [0, 2, 3][before];
    let end = whole.len() - usize::from(!(before + value.len()).is_multiple_of(3));
    whole
        .get(begin..end)
        .filter(|piece| piece.len() >= MIN_BASE64)
        .map(str::to_owned)
}

/// A JSON string without quotes, with these characters as `\u…`.
fn json(text: &str, as_code: impl Fn(char) -> bool) -> String {
    let mut json = String::new();
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\t' => json.push_str("\\t"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            c if as_code(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    json.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => json.push(c),
        }
    }
    json
}

/// JSON inside a JSON string.
fn json_again(text: &str) -> String {
    json(text, char::is_control)
}

fn html(text: &str, double: &str, single: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', double)
        .replace('\'', single)
}
