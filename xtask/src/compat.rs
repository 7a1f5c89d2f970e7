//! `docs/internals/compat.json` and `docs/internals/compat.md`: test results per version of Slurm.
//!
//! `cargo xtask compat --run` runs the tests that use a live Slurm, either the one in the folder `ROOT` or this machine's, and records
//! each result. The table is generated from these records alone, so it contains only tests that were run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::docs::replace;
use crate::markdown::row;
use crate::programs::{self, Program};

/// A test binary, or a part of one, that uses a live Slurm.
struct Suite {
    package: &'static str,
    /// Modules of `tests/it` to run. Empty for all.
    only: &'static [&'static str],
}

const SUITES: [Suite; 5] = [
    Suite {
        package: "slurm-client",
        only: &["live::"],
    },
    Suite {
        package: "ingest",
        only: &[],
    },
    Suite {
        package: "node-watcher",
        only: &[],
    },
    Suite {
        package: "integration",
        only: &[
            "away::",
            "busy::",
            "day::",
            "hooks::",
            "killed::",
            "metrics::",
            "spank::",
            "why::",
        ],
    },
    Suite {
        package: "soak",
        only: &[],
    },
];

/// True if a test of the package starts a Slurm.
pub fn starts_slurm(package: &str) -> bool {
    SUITES.iter().any(|suite| suite.package == package)
}

/// The recorded results.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// Results of tests, by version of Slurm.
    live: BTreeMap<String, Vec<Note>>,
    /// Number of captured files that were read without loss, by folder.
    captures: BTreeMap<String, usize>,
}

/// A test with its result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Note {
    package: String,
    test: String,
    outcome: Outcome,
}

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Passed,
    Failed,
    /// This Slurm lacks a required feature.
    Impossible(String),
}

/// Generated files and their content.
pub fn files(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let path = root.join("docs/internals/compat.md");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let notes = read(root)?;
    let text = replace(&text, "live", &live(&notes))?;
    let text = replace(&text, "captures", &captures(&notes))?;
    Ok(BTreeMap::from([(path, text)]))
}

fn read(root: &Path) -> Result<Notes> {
    let path = root.join("docs/internals/compat.json");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
}

/// Runs the tests and records their results. Results of other Slurm versions are kept. Only these packages, if any are named.
pub fn run(root: &Path, only: &[String]) -> Result<()> {
    let slurm = Slurm::find();
    let version = slurm.version()?;
    println!("Slurm {version}");
    let mut notes = Vec::new();
    let mut broken = Vec::new();
    let is_selected =
        |suite: &&Suite| only.is_empty() || only.iter().any(|name| name == suite.package);
    let packages = SUITES.each_ref().map(|suite| suite.package);
    let programs = programs::build(root, &packages)?;
    for suite in SUITES.iter().filter(is_selected) {
        let (found, ended_well) = run_suite(&programs, suite, &slurm)?;
        if !ended_well {
            broken.push(suite.package);
        }
        ensure!(!found.is_empty(), "{} ran no test", suite.package);
        notes.extend(found);
    }
    ensure!(!notes.is_empty(), "no suite is called {only:?}");
    let captures = read_captures(root, &programs)?;
    let mut all = read(root)?;
    let of_version = all.live.entry(version).or_default();
    of_version.retain(|old| !notes.iter().any(|new| new.package == old.package));
    of_version.extend(notes);
    of_version.sort();
    all.captures = captures;
    let text = serde_json::to_string_pretty(&all)? + "\n";
    crate::put(&root.join("docs/internals/compat.json"), &text, false)?;
    ensure!(broken.is_empty(), "tests failed: {}", broken.join(", "));
    Ok(())
}

/// The Slurm that `tests/cluster/up` will use: the one in the folder `ROOT`, or this machine's.
struct Slurm {
    root: String,
}

impl Slurm {
    fn find() -> Self {
        Self {
            root: std::env::var("ROOT").unwrap_or_default(),
        }
    }

    fn version(&self) -> Result<String> {
        let root = &self.root;
        let mut command = if root.is_empty() {
            Command::new("/usr/sbin/slurmctld")
        } else {
            let mut chroot = Command::new("/usr/sbin/chroot");
            chroot.args([root, "/usr/sbin/slurmctld"]);
            chroot
        };
        let output = command
            .arg("-V")
            .output()
            .with_context(|| format!("run slurmctld -V (ROOT={root:?})"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        match text.split_whitespace().last() {
            Some(version) if output.status.success() => Ok(version.to_owned()),
            _ => bail!(
                "slurmctld -V (ROOT={root:?}): {text}{}",
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }

    /// True if tests can run that `make test` ignores because Debian 12's Slurm lacks a feature.
    fn has_scrontab(&self) -> bool {
        Path::new(&format!("{}/usr/bin/scrontab", self.root)).exists()
    }
}

fn run_suite(programs: &[Program], suite: &Suite, slurm: &Slurm) -> Result<(Vec<Note>, bool)> {
    let mut command = Program::find(programs, suite.package, true)?.command();
    command
        .args(suite.only)
        .args(slurm.has_scrontab().then_some("--include-ignored"))
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("run a test")?;
    let stdout = child.stdout.take().context("read a test")?;
    let mut notes = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("read a test")?;
        println!("{line}");
        notes.extend(note(suite.package, &line));
    }
    Ok((notes, child.wait()?.success()))
}

/// `test lives::a_node_drains ... ok`
fn note(package: &str, line: &str) -> Option<Note> {
    let (test, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let outcome = match result.split_once(", ") {
        None if result == "ok" => Outcome::Passed,
        None if result == "FAILED" => Outcome::Failed,
        Some(("ignored", why)) => Outcome::Impossible(why.to_owned()),
        _ => return None,
    };
    Some(Note {
        package: package.to_owned(),
        test: test.to_owned(),
        outcome,
    })
}

/// A row per test, a column per version.
fn live(notes: &Notes) -> String {
    let versions: Vec<&String> = notes.live.keys().collect();
    let mut table = String::from("| test |");
    for version in &versions {
        write!(table, " {version} |").ok();
    }
    table.push_str("\n| --- |");
    table.push_str(&" --- |".repeat(versions.len()));
    table.push('\n');
    let tests: BTreeSet<(&str, &str)> = notes
        .live
        .values()
        .flatten()
        .map(|note| (note.package.as_str(), note.test.as_str()))
        .collect();
    for (package, test) in tests {
        let mut cells = vec![format!("{package}: {}", sentence(test))];
        for version in &versions {
            let of_test =
                |note: &&Note| (note.package.as_str(), note.test.as_str()) == (package, test);
            let result = notes.live[*version].iter().find(of_test);
            cells.push(match result.map(|note| &note.outcome) {
                Some(Outcome::Passed) => "passed".into(),
                Some(Outcome::Failed) => "**failed**".into(),
                Some(Outcome::Impossible(why)) => format!("not possible: {why}"),
                None => "not run".into(),
            });
        }
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        row(&mut table, &cells);
    }
    table
}

/// Test names are sentences.
fn sentence(test: &str) -> String {
    let name = test.rsplit("::").next().unwrap_or(test);
    name.replace('_', " ")
}

fn captures(notes: &Notes) -> String {
    let mut table = String::from("| captures | files |\n| --- | --- |\n");
    for (folder, files) in &notes.captures {
        row(&mut table, &[folder, &files.to_string()]);
    }
    table
}

/// Runs the tests that read captured output, and counts the files read.
fn read_captures(root: &Path, programs: &[Program]) -> Result<BTreeMap<String, usize>> {
    let status = Program::find(programs, "slurm-client", false)?
        .command()
        .status()
        .context("run a test")?;
    ensure!(status.success(), "slurm-client does not read its captures");
    let tests = root.join("crates/slurm-client/tests");
    let mut captures = BTreeMap::new();
    for (place, source) in [("data", "text"), ("captures", "every form")] {
        for version in folders(&tests.join(place))? {
            for kind in folders(&tests.join(place).join(&version))? {
                let path = tests.join(place).join(&version).join(&kind);
                // slurmrestd: one folder per version of the API.
                let parts = if kind == "rest" {
                    folders(&path)?
                } else {
                    BTreeSet::from([String::new()])
                };
                for part in parts {
                    let name = format!("{version} {kind} {part}");
                    captures.insert(
                        format!("{} ({source})", name.trim_end()),
                        count(&path.join(part))?,
                    );
                }
            }
        }
    }
    Ok(captures)
}

fn folders(path: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(path).with_context(|| format!("read {}", path.display()))?;
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

fn count(path: &Path) -> Result<usize> {
    let entries = std::fs::read_dir(path).with_context(|| format!("read {}", path.display()))?;
    let mut files = 0;
    for entry in entries {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() {
            count(&entry.path())?
        } else {
            1
        };
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_of_tests_are_noted() {
        let noted = |line: &str| note("p", line).map(|note| (note.test, note.outcome));
        assert_eq!(
            noted("test a::b_c ... ok"),
            Some(("a::b_c".into(), Outcome::Passed))
        );
        assert_eq!(
            noted("test a::b ... FAILED"),
            Some(("a::b".into(), Outcome::Failed))
        );
        assert_eq!(
            noted("test a::b ... ignored, no such program"),
            Some(("a::b".into(), Outcome::Impossible("no such program".into())))
        );
        assert_eq!(noted("test a::b ... ignored"), None);
        assert_eq!(
            noted("test a::b has been running for over 60 seconds"),
            None
        );
        assert_eq!(noted("test result: ok. 1 passed"), None);
    }

    #[test]
    fn suites_that_did_not_run_are_not_claimed() {
        let text = r#"{"live":{"22.05.8":[{"package":"p","test":"m::it_works","outcome":"passed"},
            {"package":"p","test":"m::it_fails","outcome":{"impossible":"no program"}}],
            "24.11.5":[{"package":"p","test":"m::it_fails","outcome":"failed"}]}}"#;
        let table = live(&serde_json::from_str(text).unwrap());
        assert_eq!(
            table,
            "| test | 22.05.8 | 24.11.5 |\n| --- | --- | --- |\n\
             | p: it fails | not possible: no program | **failed** |\n| p: it works | passed | not run |\n"
        );
    }
}
