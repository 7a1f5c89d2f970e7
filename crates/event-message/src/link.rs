//! Links in messages.
//!
//! The author of a job's comment chooses the link's target. So a label always shows the host, and only web URLs are
//! accepted.

use url::Url;

use super::markup::units;

/// Longer URLs do not fit into a button.
const MAX_LINK_CHARS: usize = 1_000;

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Text of the link.
    pub label: String,
    /// The target: http or https, without user and password, free of characters that would end it in any markup.
    pub url: String,
}

impl Link {
    /// The first web URL in a job's comment.
    pub fn of_comment(comment: &str) -> Option<Self> {
        comment
            .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | ',' | ';'))
            .find_map(|word| Self::new("Artefact", word))
    }

    fn new(what: &str, address: &str) -> Option<Self> {
        if address.len() > MAX_LINK_CHARS {
            return None;
        }
        let url = Url::parse(address).ok()?;
        let host = url.host_str().filter(|host| !host.is_empty())?;
        if !matches!(url.scheme(), "http" | "https")
            || !url.username().is_empty()
            || url.password().is_some()
        {
            return None;
        }
        let label = format!("{what} on {}", host.chars().take(60).collect::<String>());
        let url: String = url
            .as_str()
            .chars()
            .map(|c| match c {
                '|' | '(' | ')' | '<' | '>' | '`' | '*' | '\\' | '{' | '}' | '"' | '\'' => {
                    format!("%{:02X}", u32::from(c))
                }
                c => c.to_string(),
            })
            .collect();
        (units(&url) <= MAX_LINK_CHARS).then_some(Self { label, url })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_web_addresses_are_links() {
        let cases = [
            (
                "run of https://ci.example.org/runs/7?a=b, see there",
                Some("https://ci.example.org/runs/7?a=b"),
            ),
            (
                "https://a.example/x|y)z",
                Some("https://a.example/x%7Cy%29z"),
            ),
            ("http://10.0.0.1/x", Some("http://10.0.0.1/x")),
            ("javascript:alert(1)", None),
            ("file:///etc/passwd", None),
            ("https://user:secret@example.org/", None),
            ("https://", None),
            ("no link", None),
            ("", None),
        ];
        for (comment, expected) in cases {
            let link = Link::of_comment(comment);
            assert_eq!(
                link.as_ref().map(|link| link.url.as_str()),
                expected,
                "{comment}"
            );
        }
        let link = Link::of_comment("https://ci.example.org/").unwrap();
        assert_eq!(link.label, "Artefact on ci.example.org");
    }

    proptest! {
        #[test]
        fn a_link_ends_in_no_markup(rest in "\\PC{0,80}") {
            if let Some(link) = Link::of_comment(&format!("https://example.org/{rest}")) {
                prop_assert!(link.url.starts_with("https://example.org/"));
                prop_assert!(!link.url.contains([' ', '|', '<', '>', ')', '(', '`', '"']));
                prop_assert!(link.url.is_ascii());
            }
        }
    }
}
