//! Text with simple markup, rendered for each target.
//!
//! All text from outside is placed in spans, which are escaped for the target: no mention, link or markup gets
//! through. Lengths are counted in UTF-16 units, as the targets do. That is never less than the number of characters.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};

/// A piece of text.
#[derive(Clone, Debug, PartialEq)]
pub enum Span {
    /// Plain text.
    Plain(String),
    /// Bold text.
    Strong(String),
    /// Code: names and paths to copy.
    Code(String),
    /// A time, displayed in the reader's time zone if possible.
    Time(DateTime<Utc>),
}

/// A sequence of spans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text(Vec<Span>);

/// The markup of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Slack's mrkdwn: three entities are escaped. A link or mention requires `<`.
    Slack,
    /// Discord's Markdown: a backslash escapes any punctuation.
    Discord,
    /// No markup.
    Plain,
}

impl Text {
    /// An empty text.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Parses a fixed text in which backticks mark code.
    pub fn marked(text: &str) -> Self {
        text.split('`')
            .enumerate()
            .fold(Self::new(), |text, (i, part)| {
                if i % 2 == 1 {
                    text.code(part)
                } else {
                    text.plain(part)
                }
            })
    }

    /// Appends plain text.
    #[must_use]
    pub fn plain(self, text: impl Into<String>) -> Self {
        self.with(Span::Plain(text.into()))
    }

    /// Appends bold text.
    #[must_use]
    pub fn strong(self, text: impl Into<String>) -> Self {
        self.with(Span::Strong(text.into()))
    }

    /// Appends code.
    #[must_use]
    pub fn code(self, text: impl Into<String>) -> Self {
        self.with(Span::Code(text.into()))
    }

    /// Appends a time.
    #[must_use]
    pub fn time(self, time: DateTime<Utc>) -> Self {
        self.with(Span::Time(time))
    }

    /// Appends another text.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    fn with(mut self, span: Span) -> Self {
        let empty = match &span {
            Span::Plain(text) => text.is_empty(),
            Span::Strong(text) | Span::Code(text) => text.trim().is_empty(),
            Span::Time(_) => false,
        };
        if !empty {
            self.0.push(span);
        }
        self
    }

    /// True if nothing is visible.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|span| match span {
            Span::Plain(text) | Span::Strong(text) | Span::Code(text) => {
                text.chars().all(|c| clean(c).is_whitespace())
            }
            Span::Time(_) => false,
        })
    }

    /// The spans.
    pub fn spans(&self) -> &[Span] {
        &self.0
    }

    /// Renders the text for a target, at most `limit` UTF-16 units. A truncated text ends with `…`.
    pub fn write(&self, dialect: Dialect, limit: usize) -> String {
        let mut writer = Writer {
            dialect,
            text: String::new(),
            left: limit.saturating_sub(1),
        };
        for span in &self.0 {
            if !writer.span(span) {
                if limit > 0 {
                    writer.text.push('…');
                }
                break;
            }
        }
        writer.text
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::new().plain(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::new().plain(text)
    }
}

/// Length of a text in UTF-16 units.
pub fn units(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// Replaces line breaks, control characters and bidirectional controls by spaces. The latter would make names look
/// like others.
pub fn clean(character: char) -> char {
    match character {
        '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{feff}' => ' ',
        c if c.is_control() => ' ',
        c => c,
    }
}

struct Writer {
    dialect: Dialect,
    text: String,
    left: usize,
}

impl Writer {
    /// Renders a span. Returns false if it was truncated.
    fn span(&mut self, span: &Span) -> bool {
        match span {
            Span::Plain(text) => self.between("", text, false),
            Span::Strong(text) => match self.dialect {
                Dialect::Slack => self.between("*", text.trim(), false),
                Dialect::Discord => self.between("**", text.trim(), false),
                Dialect::Plain => self.between("", text, false),
            },
            Span::Code(text) => match self.dialect {
                Dialect::Slack | Dialect::Discord => self.between("`", text.trim(), true),
                Dialect::Plain => self.between("", text, true),
            },
            Span::Time(time) => {
                let written = self.moment(*time);
                let fits = units(&written) <= self.left;
                if fits {
                    self.left -= units(&written);
                    self.text.push_str(&written);
                }
                fits
            }
        }
    }

    fn between(&mut self, mark: &str, text: &str, code: bool) -> bool {
        let Some(left) = self.left.checked_sub(2 * mark.len()) else {
            return false;
        };
        self.left = left;
        self.text.push_str(mark);
        let mut whole = true;
        for character in text.chars() {
            let piece = escape(self.dialect, clean(character), code);
            let Some(left) = self.left.checked_sub(units(&piece)) else {
                whole = false;
                break;
            };
            self.left = left;
            self.text.push_str(&piece);
        }
        self.text.push_str(mark);
        whole
    }

    fn moment(&self, time: DateTime<Utc>) -> String {
        let seconds = time.timestamp();
        let text = time.to_rfc3339_opts(SecondsFormat::Secs, true);
        match self.dialect {
            Dialect::Slack => {
                format!("<!date^{seconds}^{{date_short_pretty}} {{time_secs}}|{text}>")
            }
            Dialect::Discord => format!("<t:{seconds}:f>"),
            Dialect::Plain => time.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
        }
    }
}

/// Escapes a character for a target. Code has no escapes: a backtick, which would end it, becomes a look-alike.
fn escape(dialect: Dialect, character: char, code: bool) -> Cow<'static, str> {
    let own = |character: char| Cow::Owned(character.to_string());
    match (dialect, character) {
        (Dialect::Slack, '&') => "&amp;".into(),
        (Dialect::Slack, '<') => "&lt;".into(),
        (Dialect::Slack, '>') => "&gt;".into(),
        (Dialect::Slack | Dialect::Discord, '`') => "'".into(),
        // Slack cannot escape these: look-alikes prevent bold or strikethrough text.
        (Dialect::Slack, '*') if !code => "∗".into(),
        (Dialect::Slack, '~') if !code => "∼".into(),
        (Dialect::Discord, c) if !code && is_markup(c) => format!("\\{c}").into(),
        (_, c) => own(c),
    }
}

/// Characters that start Discord's Markdown, mentions, custom emojis and bare links.
const fn is_markup(character: char) -> bool {
    matches!(
        character,
        '\\' | '*' | '_' | '~' | '|' | '<' | '>' | '#' | '[' | ']' | '(' | ')' | '@' | ':' | '-'
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn markup_from_outside_has_no_effect() {
        let text = Text::from("<!channel> @everyone *x* https://evil.example `rm` & [a](b)")
            .strong("*b*")
            .code("a`b <@U1>");
        assert_eq!(
            text.write(Dialect::Slack, 500),
            "&lt;!channel&gt; @everyone ∗x∗ https://evil.example 'rm' &amp; [a](b)*∗b∗*`a'b &lt;@U1&gt;`"
        );
        assert_eq!(
            text.write(Dialect::Discord, 500),
            r"\<!channel\> \@everyone \*x\* https\://evil.example 'rm' & \[a\]\(b\)**\*b\***`a'b <@U1>`"
        );
        assert_eq!(
            Text::from("a\nb\u{202e}c\u{0}").write(Dialect::Plain, 50),
            "a b c "
        );
    }

    #[test]
    fn what_is_cut_ends_in_an_ellipsis_and_marks_are_closed() {
        let text = Text::new().code("abcdefgh");
        assert_eq!(text.write(Dialect::Slack, 11), "`abcdefgh`");
        assert_eq!(text.write(Dialect::Slack, 8), "`abcde`…");
        assert_eq!(text.write(Dialect::Slack, 2), "…");
        assert_eq!(Text::from("<<<").write(Dialect::Slack, 9), "&lt;&lt;…");
        assert_eq!(Text::from("😀😀").write(Dialect::Plain, 4), "😀…");
    }

    #[test]
    fn backticks_mark_code_in_our_own_sentences() {
        let text = Text::marked("Try `--mem` or `--time`.");
        assert_eq!(text.write(Dialect::Plain, 99), "Try --mem or --time.");
        assert_eq!(text.write(Dialect::Slack, 99), "Try `--mem` or `--time`.");
    }

    proptest! {
        #[test]
        fn written_text_is_short_and_harmless(
            plain in ".{0,60}", strong in ".{0,20}", code in "[`<@*a-z]{0,20}", limit in 0usize..90,
        ) {
            let text = Text::from(plain).strong(strong).code(code).time(DateTime::UNIX_EPOCH);
            for dialect in [Dialect::Slack, Dialect::Discord, Dialect::Plain] {
                let written = text.write(dialect, limit);
                prop_assert!(units(&written) <= limit, "{written}");
                prop_assert!(!written.chars().any(char::is_control));
                if dialect == Dialect::Slack {
                    let shown = written.replace("<!date^0^{date_short_pretty} {time_secs}|1970-01-01T00:00:00Z>", "");
                    prop_assert!(!shown.contains(['<', '>']), "{shown}");
                    prop_assert!(shown.split('&').skip(1).all(|rest| ["amp;", "lt;", "gt;"].iter().any(|entity| rest.starts_with(entity))));
                }
                if dialect != Dialect::Plain {
                    prop_assert!(written.matches('`').count() % 2 == 0, "{written}");
                }
            }
        }
    }
}
