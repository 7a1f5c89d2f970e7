//! Words that pages and comments must not use. `words.tsv` lists them with their replacements.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use regex::Regex;

const WORDS: &str = include_str!("../words.tsv");

/// Fails and lists every use of such a word in a page or in a comment of a Rust source. Code and generated parts are exempt.
pub fn check(root: &Path) -> Result<()> {
    let rules = rules()?;
    let mut found = Vec::new();
    for file in crate::links::files(root)? {
        // The changelog keeps its original wording.
        let is_page = file.ends_with(".md") && file != "CHANGELOG.md";
        let is_source = file.ends_with(".rs") && !file.contains("/generated/");
        if !is_page && !is_source {
            continue;
        }
        let path = root.join(&file);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let prose = if is_page {
            prose(&text)
        } else {
            comments(&text)
        };
        found.extend(faults(&rules, &prose).map(|fault| format!("{file}:{fault}")));
    }
    ensure!(
        found.is_empty(),
        "words that xtask/words.tsv replaces:\n{}",
        found.join("\n")
    );
    Ok(())
}

/// Words with their replacements.
fn rules() -> Result<Vec<(Regex, &'static str)>> {
    let rows = WORDS.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let (word, instead) = row
            .split_once('\t')
            .with_context(|| format!("no tab in {row:?}"))?;
        Ok((Regex::new(&format!(r"(?i)\b({word})\b"))?, instead))
    })
    .collect()
}

fn faults(rules: &[(Regex, &str)], prose: &str) -> impl Iterator<Item = String> {
    let mut faults = Vec::new();
    for (number, line) in prose.lines().enumerate() {
        for (word, instead) in rules {
            if let Some(found) = word.find(line) {
                faults.push(format!("{}: {:?}: {instead}", number + 1, found.as_str()));
            }
        }
    }
    faults.into_iter()
}

/// The text of a page without code, generated and tested parts, and link targets. Line numbers are preserved.
fn prose(text: &str) -> String {
    let blanks = |found: &regex::Captures<'_>| "\n".repeat(found[0].matches('\n').count());
    let not_prose = [
        r"(?s)<!-- (generated|table).*?<!-- (/generated|end) -->",
        r"(?s)```.*?```",
        r"(?m)^ {4}.*$",
        r"`[^`\n]*`",
        r"\]\([^)\n]*\)",
    ];
    not_prose.iter().fold(text.to_owned(), |text, pattern| {
        let pattern = Regex::new(pattern).expect("the pattern is valid");
        pattern.replace_all(&text, blanks).into_owned()
    })
}

/// The comments of a Rust source without the code in them. Line numbers are preserved.
fn comments(source: &str) -> String {
    let comment = Regex::new(r"(?:^|\s)//[/!]?(.*)$").expect("the pattern is valid");
    let code = Regex::new(r"`[^`]*`").expect("the pattern is valid");
    let lines = source.lines().map(|line| match comment.captures(line) {
        Some(found) => code.replace_all(&found[1], "").into_owned(),
        None => String::new(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_words_are_found_in_prose_and_nowhere_else() {
        let rules = [(Regex::new(r"(?i)\b(holes?)\b").unwrap(), "gap")];
        let page = "A Hole.\n\n```\nhole\n```\n    hole\n`holes` [x](holes.md) wholes\n<!-- generated:x -->\nhole\n<!-- /generated -->\ntwo holes\n";
        let found: Vec<_> = faults(&rules, &prose(page)).collect();
        assert_eq!(found, ["1: \"Hole\": gap", "11: \"holes\": gap"]);
    }

    #[test]
    fn banned_words_are_found_in_comments_and_not_in_code() {
        let rules = [(Regex::new(r"(?i)\b(foos?)\b").unwrap(), "gap")];
        let source = "//! A foo.\nlet foo = \"foo\"; // `foo`, a foo\n/// Two\n";
        let found: Vec<_> = faults(&rules, &comments(source)).collect();
        assert_eq!(found, ["1: \"foo\": gap", "2: \"foo\": gap"]);
    }
}
