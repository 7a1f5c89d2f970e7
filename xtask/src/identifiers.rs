//! Words that names in the code must not use. `identifiers.tsv` lists them with their replacements.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use heck::ToSnakeCase;
use proc_macro2::{Ident, TokenStream, TokenTree};

const WORDS: &str = include_str!("../identifiers.tsv");
/// Longer names are sentences, as those of tests.
const MAX_WORDS: usize = 5;

/// Names that stay: values of protobuf enums, which are part of stored events.
const FROZEN: [&str; 1] = ["Sweep"];

/// Fails and lists every name in Rust sources that contains such a word. Generated code takes its words from its source.
pub fn check(root: &Path) -> Result<()> {
    let words = words()?;
    let mut found = Vec::new();
    for file in crate::links::files(root)? {
        if !file.ends_with(".rs") || file.contains("/generated/") {
            continue;
        }
        let path = root.join(&file);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let tokens = text
            .parse()
            .map_err(|error| anyhow::anyhow!("{file}: {error}"))?;
        visit(tokens, &mut |ident| {
            if let Some((word, instead)) = fault(&words, &ident.to_string()) {
                let line = ident.span().start().line;
                found.push(format!("{file}:{line}: {ident} ({word}): {instead}"));
            }
        });
    }
    ensure!(
        found.is_empty(),
        "words that xtask/identifiers.tsv replaces:\n{}",
        found.join("\n")
    );
    Ok(())
}

/// Words with their replacements.
fn words() -> Result<HashMap<&'static str, &'static str>> {
    let rows = WORDS.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        row.split_once('\t')
            .with_context(|| format!("no tab in {row:?}"))
    })
    .collect()
}

fn visit(tokens: TokenStream, name: &mut impl FnMut(&Ident)) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => name(&ident),
            TokenTree::Group(group) => visit(group.stream(), name),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn fault<'a>(words: &HashMap<&'a str, &'a str>, name: &str) -> Option<(&'a str, &'a str)> {
    if FROZEN.contains(&name) {
        return None;
    }
    let name = name.to_snake_case();
    if name.split('_').count() > MAX_WORDS {
        return None;
    }
    let mut parts = name.split('_');
    parts.find_map(|part| {
        words
            .get_key_value(part)
            .map(|(word, instead)| (*word, *instead))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_words_are_found_in_names_but_not_in_sentences_and_texts() {
        let words = HashMap::from([("told", "published")]);
        let source = r#"
            struct ToldEvent; // a comment
            const MAX_TOLD: &str = "told";
            fn untold() {}
            fn published_facts_are_not_published_twice() {}
        "#;
        let mut found = Vec::new();
        visit(source.parse().unwrap(), &mut |ident| {
            if fault(&words, &ident.to_string()).is_some() {
                found.push(ident.to_string());
            }
        });
        assert_eq!(found, ["ToldEvent", "MAX_TOLD"]);
    }
}
