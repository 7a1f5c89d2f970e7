//! Shell quoting, as far as our scripts use it.

/// Quotes a word.
pub fn quoted(text: &str) -> String {
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte));
    if plain && !text.is_empty() {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Splits a line written by [`quoted`] into words.
pub fn split_words(line: &str) -> Vec<String> {
    let mut split_words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => split_words.extend(word.take()),
            '\'' => word
                .get_or_insert_default()
                .extend(chars.by_ref().take_while(|c| *c != '\'')),
            '\\' => word.get_or_insert_default().extend(chars.next()),
            c => word.get_or_insert_default().push(c),
        }
    }
    split_words.extend(word);
    split_words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_reads_back() {
        for text in ["/usr/bin/mesh-hook", "/srv/mesh data/it's", "", "a\\b"] {
            assert_eq!(
                split_words(&format!("x {} y", quoted(text))),
                ["x", text, "y"]
            );
        }
    }
}
