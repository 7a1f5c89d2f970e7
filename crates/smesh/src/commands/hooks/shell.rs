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
pub fn split_arguments(line: &str) -> Vec<String> {
    let mut split_arguments = Vec::new();
    let mut argument: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => split_arguments.extend(argument.take()),
            '\'' => argument
                .get_or_insert_default()
                .extend(chars.by_ref().take_while(|c| *c != '\'')),
            '\\' => argument.get_or_insert_default().extend(chars.next()),
            c => argument.get_or_insert_default().push(c),
        }
    }
    split_arguments.extend(argument);
    split_arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_round_trips() {
        for text in ["/usr/bin/mesh-hook", "/srv/mesh data/it's", "", "a\\b"] {
            assert_eq!(
                split_arguments(&format!("x {} y", quoted(text))),
                ["x", text, "y"]
            );
        }
    }
}
