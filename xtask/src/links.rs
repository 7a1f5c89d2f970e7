//! Checks that every relative link in a page, and every path of this tree in a page or a comment, exists.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

/// Fails and lists the missing targets.
pub fn check(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut broken = Vec::new();
    for file in &tree.files {
        // Its own tests name missing paths, and migrations never change.
        if file == Path::new("xtask/src/links.rs")
            || file.extension().is_some_and(|extension| extension == "sql")
        {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root.join(file)) else {
            continue; // Not text.
        };
        for named in tree.broken(file, &text, |path| {
            std::fs::read_to_string(root.join(path)).ok()
        }) {
            broken.push(format!("{}: {named}", file.display()));
        }
    }
    ensure!(
        broken.is_empty(),
        "these do not exist:\n{}",
        broken.join("\n")
    );
    Ok(())
}

/// Paths of the project's files, relative to its root.
pub fn files(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .context("run git ls-files")?;
    if !listed.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    }
    let names = String::from_utf8(listed.stdout).context("names of files")?;
    let names = names.split('\0').map(str::to_owned);
    Ok(names.filter(|name| root.join(name).is_file()).collect())
}

/// The project's files and their folders.
struct Tree {
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let files = files(root)?;
        Ok(Self::of(files.iter().map(String::as_str)))
    }

    fn of<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        let files: BTreeSet<PathBuf> = files.map(PathBuf::from).collect();
        let folders = files
            .iter()
            .flat_map(|file| file.ancestors().skip(1))
            .map(PathBuf::from);
        Self {
            folders: folders.collect(),
            files,
        }
    }

    fn has(&self, path: &Path) -> bool {
        self.files.contains(path) || self.folders.contains(path)
    }

    /// Missing targets in a file. `read` returns the text of a linked page.
    fn broken(
        &self,
        file: &Path,
        text: &str,
        read: impl Fn(&Path) -> Option<String>,
    ) -> Vec<String> {
        let is_page = file.extension().is_some_and(|extension| extension == "md");
        let folder = file.parent().unwrap_or(Path::new(""));
        let mut broken = Vec::new();
        for link in links(text).filter(|_| is_page) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                file.to_owned()
            } else {
                normal(&folder.join(path))
            };
            if !self.has(&target) {
                broken.push(format!("link to {link}"));
            } else if !anchor.is_empty()
                && !read(&target).is_some_and(|page| anchors(&page).contains(anchor))
            {
                broken.push(format!("heading of link to {link}"));
            }
        }
        for path in paths(text) {
            let top = path.split('/').next().unwrap_or_default();
            // Pages name files by their full path or relative to their own folder. Elsewhere only paths below docs/ are unambiguous.
            let is_ours = if is_page {
                self.folders.contains(Path::new(top))
            } else {
                top == "docs"
            };
            if is_ours
                && !self.has(&normal(Path::new(path)))
                && !self.has(&normal(&folder.join(path)))
            {
                broken.push(path.to_owned());
            }
        }
        broken
    }
}

/// Targets of the relative links of a page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let (target, _) = rest.split_once(')')?;
        let is_relative = !target.contains("://") && !target.contains(char::is_whitespace);
        is_relative.then_some(target)
    })
}

/// Words that look like a path of several parts, without a leading `../`.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let pattern = Regex::new(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+").expect("the pattern is valid");
    let found: Vec<_> = pattern.find_iter(text).map(|found| found.range()).collect();
    found.into_iter().filter_map(|range| {
        let before = text[..range.start].chars().next_back();
        let path = text[range].trim_start_matches("../").trim_end_matches('.');
        // Parts of a longer text: a URL, an absolute path, a pattern.
        (!before.is_some_and(|c| "/:~$*>}…@".contains(c)) && path.contains('/')).then_some(path)
    })
}

/// The anchors of a page's headings, as generated by GitHub.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

/// Normalises a path: removes `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(file: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(
            [
                "README.md",
                "docs/guide/hooks.md",
                "services/ledger/src/lib.rs",
            ]
            .into_iter(),
        );
        let page = |_: &Path| Some("# Install\n## In Slurm: the hooks\n".to_owned());
        tree.broken(Path::new(file), text, page)
    }

    #[test]
    fn existing_targets_are_not_reported() {
        for text in [
            "[a](docs/guide/hooks.md) [b](docs/guide) [c](docs/guide/hooks.md#in-slurm-the-hooks) [d](#install)",
            "[a](https://example.org/docs/no.md), https://example.org/docs/no.md and /etc/docs/no.md",
            "`services/<name>/src`, `services/ledger/src/lib.rs::test`, docs/guide/hooks.md.",
            "application/json, 24.11/26.05",
        ] {
            assert_eq!(broken("README.md", text), [""; 0], "{text}");
        }
        assert_eq!(broken("services/ledger/README.md", "`src/lib.rs`"), [""; 0]);
        assert_eq!(broken("services/ledger/src/lib.rs", "src/no.rs"), [""; 0]);
    }

    #[test]
    fn missing_targets_are_reported() {
        for (file, text, named) in [
            ("README.md", "[a](docs/no.md)", "link to docs/no.md"),
            ("docs/guide/hooks.md", "[a](no.md)", "link to no.md"),
            (
                "README.md",
                "[a](docs/guide/hooks.md#no)",
                "heading of link to docs/guide/hooks.md#no",
            ),
            (
                "README.md",
                "see `services/ledger/no.rs`",
                "services/ledger/no.rs",
            ),
            (
                "services/ledger/src/lib.rs",
                "//! `docs/no.md`",
                "docs/no.md",
            ),
            (
                "services/ledger/src/lib.rs",
                "include_str!(\"../../docs/no.md\")",
                "docs/no.md",
            ),
        ] {
            assert!(
                broken(file, text).contains(&named.to_owned()),
                "{file}: {text}: {:?}",
                broken(file, text)
            );
        }
    }
}
