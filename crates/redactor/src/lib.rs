//! Redaction: no known secret appears in recorded or displayed text, in whatever form another program echoes it.
//!
//! A receiver of webhooks, slurmrestd, or a firewall in front of them, may echo the request, verbatim or encoded for its page. So every text
//! from there and every error is redacted before it reaches log, database, bus or API. An echo may be truncated.
//! The beginning of a long secret is therefore sufficient, and everything that matches it is removed.

mod forms;
mod values;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError};

pub use values::Values;

/// Replaces a secret.
pub const REDACTED: &str = "[redacted]";
/// Shorter values are not redacted: they can be guessed, and occur in many words.
const MIN_BYTES: usize = 4;
/// Bytes of the beginning of a longer form that are sufficient for a match.
const PREFIX_BYTES: usize = 16;

/// Removes the secrets of one connection from texts. The search is built for the first text.
#[derive(Default)]
pub struct Redactor {
    values: Vec<Vec<u8>>,
    search: OnceLock<Result<Search, BuildError>>,
}

struct Search {
    forms: Vec<String>,
    prefixes: AhoCorasick,
}

impl Search {
    fn new(values: &[Vec<u8>]) -> Result<Self, BuildError> {
        let forms = forms::of(values);
        let prefixes = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(forms.iter().map(|form| prefix(form)))?;
        Ok(Self { forms, prefixes })
    }

    /// Sorted, disjoint ranges of secrets.
    fn spans(&self, text: &str) -> Vec<Range<usize>> {
        let mut spans: Vec<Range<usize>> = Vec::new();
        for found in self.prefixes.find_overlapping_iter(text) {
            let form = &self.forms[found.pattern().as_usize()];
            let length = common(form, &text[found.start()..]);
            spans.push(found.start()..found.start() + length);
        }
        spans.sort_by_key(|span| span.start);
        spans.dedup_by(|next, span| {
            let joined = next.start <= span.end;
            if joined {
                span.end = span.end.max(next.end);
            }
            joined
        });
        spans
    }
}

impl Redactor {
    /// A redactor for these secrets.
    pub fn new(values: Values) -> Self {
        Self {
            values: values.into_secrets(MIN_BYTES),
            search: OnceLock::new(),
        }
    }

    /// The text without secrets.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if text.len() < MIN_BYTES || self.values.is_empty() {
            return Cow::Borrowed(text);
        }
        let search = match self.search.get_or_init(|| Search::new(&self.values)) {
            Ok(search) => search,
            // Fail closed.
            Err(_) => return Cow::Borrowed(REDACTED),
        };
        let spans = search.spans(text);
        if spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let (mut clean, mut end) = (String::with_capacity(text.len()), 0);
        for span in spans {
            clean.push_str(&text[end..span.start]);
            clean.push_str(REDACTED);
            end = span.end;
        }
        clean.push_str(&text[end..]);
        Cow::Owned(clean)
    }

    /// Redacts in place.
    pub fn clean(&self, text: &mut String) {
        if let Cow::Owned(clean) = self.redact(text) {
            *text = clean;
        }
    }

    /// True if the text contains a secret.
    pub fn finds(&self, text: &str) -> bool {
        self.redact(text) != text
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} values)", self.values.len())
    }
}

fn prefix(form: &str) -> &str {
    if form.len() <= PREFIX_BYTES {
        form
    } else {
        &form[..form.ceil_char_boundary(PREFIX_BYTES)]
    }
}

/// Length in bytes of the common prefix of a form and a text. The end is a character boundary.
fn common(form: &str, text: &str) -> usize {
    let same = |(a, b): &(u8, u8)| a.eq_ignore_ascii_case(b);
    let length = form.bytes().zip(text.bytes()).take_while(same).count();
    text.floor_char_boundary(length)
}

#[cfg(test)]
mod tests;
