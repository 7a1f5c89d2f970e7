//! `docs/reference/configuration.md`: every key of `mesh.toml`, from the commented defaults that the services embed.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use regex::Regex;

use crate::markdown::{cell, row};

const HEAD: &str = "\
# Configuration keys

Made from the `config/default.toml` of each service by `cargo xtask docs`; do not edit.

All services read one file, `mesh.toml`. A service reads `[mesh]`, its own section and, if it reads Slurm, `[slurm]`; it refuses keys that
it does not know. An environment variable overrides a key: `MESH_LEDGER__DB__URL` sets `url` of `[ledger.db]`. `--check-config` reports every
fault, `--print-config` prints the result with secrets masked. Durations are text with a unit: `50ms`, `10s`, `5m`, `1h`, `14d`.
";

/// Generates the page.
pub fn page(root: &Path) -> Result<String> {
    let mut page = HEAD.to_owned();
    let mut known: Vec<Section> = Vec::new();
    for (heading, folder) in folders(root)? {
        let path = folder.join("config/default.toml");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        write!(page, "\n## {heading}\n")?;
        for section in sections(&text) {
            if let Some(same) = known.iter().find(|other| other.name == section.name) {
                ensure!(
                    same.keys == section.keys,
                    "[{}] of {} is not what another service says of it",
                    section.name,
                    path.display()
                );
                write!(page, "\n`[{}]` is as above.\n", section.name)?;
                continue;
            }
            section.print(&mut page);
            known.push(section);
        }
    }
    Ok(page)
}

/// Headings, and the folders whose defaults are below them: what every service has, then the services.
fn folders(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let services = root.join("services");
    let read = std::fs::read_dir(&services);
    let mut folders = Vec::new();
    for entry in read.with_context(|| format!("list {}", services.display()))? {
        let path = entry?.path();
        if path.join("Cargo.toml").is_file() {
            let name = path.file_name().and_then(OsStr::to_str);
            folders.push((name.context("a service has a name")?.to_owned(), path));
        }
    }
    folders.sort();
    let shared = root.join("crates/mesh-runtime");
    folders.insert(0, ("Every service".to_owned(), shared));
    Ok(folders)
}

#[derive(Debug, Default, PartialEq)]
struct Section {
    name: String,
    /// `[[…]]`: any number of them.
    is_list: bool,
    about: String,
    keys: Vec<Key>,
}

#[derive(Debug, PartialEq)]
struct Key {
    name: String,
    value: String,
    /// Commented out: the value is an example.
    is_unset: bool,
    about: String,
}

impl Section {
    fn print(&self, page: &mut String) {
        let name = if self.is_list {
            format!("[[{}]]", self.name)
        } else {
            format!("[{}]", self.name)
        };
        page.push_str(&format!("\n### `{name}`\n\n"));
        if !self.about.is_empty() {
            page.push_str(&format!("{}\n\n", cell(&self.about)));
        }
        page.push_str("| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
        for key in &self.keys {
            let default = match (key.is_unset, key.value.as_str()) {
                (true, value) => format!("unset; for example `{}`", value.replace('|', "\\|")),
                (false, "\"\"") => "empty".to_owned(),
                (false, value) => format!("`{}`", value.replace('|', "\\|")),
            };
            let cells = [
                &format!("`{}`", key.name),
                kind(&key.value),
                &default,
                &cell(&key.about),
            ];
            row(page, &cells);
        }
    }
}

fn kind(value: &str) -> &'static str {
    let duration = Regex::new(r#"^"\d+ ?(ms|s|m|min|h|d|days?|months?|years?)""#)
        .expect("the pattern is valid");
    match value.chars().next() {
        Some('"') if duration.is_match(value) => "duration",
        Some('"') => "text",
        Some('[') => "list",
        Some('{') => "table",
        Some('t' | 'f') => "boolean",
        _ => "number",
    }
}

/// Sections with their keys and comments. Commented-out ones are included as unset: `# key = value`, `#key = value`, `# [[list]]`. A comment
/// behind a value may continue on the next lines, far to the right.
fn sections(text: &str) -> Vec<Section> {
    let header = Regex::new(r"^(#\s*)?\[(\[)?([a-z][a-z0-9_.-]*)\]?\]$").expect("valid");
    let assignment = Regex::new(r"^(#\s*)?([a-z][a-z0-9_]*) = (\S.*)$").expect("valid");
    let continuation = Regex::new(r"^#?\s{8,}#(.*)$").expect("valid");
    let mut sections: Vec<Section> = Vec::new();
    let (mut set, mut commented) = (None, None);
    let mut comment = String::new();
    // The section of the key that the line before belongs to.
    let mut last = None;
    for line in text.lines() {
        if let (Some(more), Some(section)) = (continuation.captures(line), last) {
            let section: &mut Section = &mut sections[section];
            if let Some(key) = section.keys.last_mut() {
                join(&mut key.about, &more[1]);
            }
            continue;
        }
        last = None;
        let line = line.trim();
        if let Some(found) = header.captures(line) {
            sections.push(Section {
                name: found[3].to_owned(),
                is_list: found.get(2).is_some(),
                about: std::mem::take(&mut comment),
                keys: Vec::new(),
            });
            let at = Some(sections.len() - 1);
            (set, commented) = if found.get(1).is_some() {
                (set, at)
            } else {
                (at, None)
            };
        } else if let Some(found) = assignment.captures(line) {
            let is_unset = found.get(1).is_some();
            let (value, note) = split(&found[3]);
            join(&mut comment, note);
            let of = if is_unset { commented.or(set) } else { set };
            let about = std::mem::take(&mut comment);
            let Some(section) = of else { continue };
            // The list itself. Its tables are a separate section.
            let list = format!("{}.{}", sections[section].name, &found[2]);
            if sections.iter().any(|other| other.name == list) {
                continue;
            }
            sections[section].keys.push(Key {
                name: found[2].to_owned(),
                value: value.to_owned(),
                is_unset,
                about,
            });
            last = Some(section);
        } else if let Some(text) = line.strip_prefix('#') {
            join(&mut comment, text);
        } else {
            comment.clear();
            commented = None;
        }
    }
    sections
}

fn join(text: &mut String, more: &str) {
    let more = more.trim_start_matches('#').trim();
    if !text.is_empty() && !more.is_empty() {
        text.push(' ');
    }
    text.push_str(more);
}

/// Splits a value from the comment behind it.
fn split(text: &str) -> (&str, &str) {
    let mut is_text = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => is_text = !is_text,
            '#' if !is_text => return (text[..at].trim(), &text[at..]),
            _ => {}
        }
    }
    (text.trim(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_section_default_and_comment() {
        let text = "\
# The shop.
[shop]
# How long it is open,
# at most.
open = \"10h\"   # a day
# sign = \"#1 | shop\"

# Its doors.
# [[shop.doors]]
# width = 90              # cm
#                         # in the clear
# height = 200            # cm
doors = []

# Its keys.
[shop.keys]
# Where they are.
#place = \"wall\"
";
        let mut page = String::new();
        for section in sections(text) {
            section.print(&mut page);
        }
        assert_eq!(
            page,
            "
### `[shop]`

The shop.

| key | type | default | meaning |
| --- | --- | --- | --- |
| `open` | duration | `\"10h\"` | How long it is open, at most. a day |
| `sign` | text | unset; for example `\"#1 \\| shop\"` |  |

### `[[shop.doors]]`

Its doors.

| key | type | default | meaning |
| --- | --- | --- | --- |
| `width` | number | unset; for example `90` | cm in the clear |
| `height` | number | unset; for example `200` | cm |

### `[shop.keys]`

Its keys.

| key | type | default | meaning |
| --- | --- | --- | --- |
| `place` | text | unset; for example `\"wall\"` | Where they are. |
"
        );
    }
}
