//! Packages of which several versions are built.
//!
//! cargo-deny checks the same, but is not installed everywhere. The justified ones are in `deny.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

#[derive(Deserialize)]
struct Deny {
    graph: Graph,
    bans: Bans,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

/// A version that may be built beside another one.
#[derive(Deserialize)]
struct Skip {
    /// `name@version`, with as many parts of the version as matter.
    #[serde(rename = "crate")]
    package: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
}

/// Fails with every duplicate that `deny.toml` does not justify, and with every justification without a duplicate.
pub fn check(root: &Path) -> Result<()> {
    let text = std::fs::read_to_string(root.join("deny.toml")).context("read deny.toml")?;
    let deny: Deny = toml::from_str(&text).context("parse deny.toml")?;
    let skips: Vec<String> = deny
        .bans
        .skip
        .into_iter()
        .map(|skip| skip.package)
        .collect();
    let problems = problems(&built(root, &deny.graph.targets)?, &skips);
    ensure!(
        problems.is_empty(),
        "versions of dependencies (see bans.skip in deny.toml):\n{}",
        problems.join("\n")
    );
    Ok(())
}

/// The versions of each package that any target builds.
fn built(root: &Path, targets: &[String]) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut arguments = vec!["--all-features", "--locked"];
    for target in targets {
        arguments.extend(["--filter-platform", target]);
    }
    let metadata: Metadata = crate::dependencies::metadata(root, &arguments)?;
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in metadata.packages {
        versions
            .entry(package.name)
            .or_default()
            .insert(package.version);
    }
    Ok(versions)
}

fn problems(versions: &BTreeMap<String, BTreeSet<String>>, skips: &[String]) -> Vec<String> {
    let skipped = |name: &str, version: &str| {
        skips.iter().any(|skip| {
            skip.split_once('@').is_some_and(|(package, prefix)| {
                package == name && format!("{version}.").starts_with(&format!("{prefix}."))
            })
        })
    };
    let mut problems = Vec::new();
    for (name, versions) in versions {
        let refused: Vec<&str> = versions
            .iter()
            .map(String::as_str)
            .filter(|version| !skipped(name, version))
            .collect();
        if refused.len() > 1 {
            problems.push(format!("{name}: several are built: {}", refused.join(", ")));
        }
    }
    for skip in skips {
        let name = skip.split('@').next().unwrap_or_default();
        let is_duplicate = versions.get(name).is_some_and(|versions| {
            versions.len() > 1 && versions.iter().any(|version| skipped(name, version))
        });
        if !is_duplicate {
            problems.push(format!("{skip}: it is not built beside another version"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_need_a_justification_and_justifications_a_duplicate() {
        let check = |built: &[(&str, &[&str])], skips: &[&str], expected: &[&str]| {
            let versions = built
                .iter()
                .map(|(name, versions)| {
                    let versions = versions.iter().map(|version| (*version).to_owned());
                    ((*name).to_owned(), versions.collect())
                })
                .collect();
            let skips: Vec<String> = skips.iter().map(|skip| (*skip).to_owned()).collect();
            assert_eq!(problems(&versions, &skips), expected);
        };
        let twice: &[(&str, &[&str])] = &[("rand", &["0.8.5", "0.10.1"])];
        check(twice, &["rand@0.8"], &[]);
        check(twice, &[], &["rand: several are built: 0.10.1, 0.8.5"]);
        check(
            twice,
            &["rand@0.1"],
            &[
                "rand: several are built: 0.10.1, 0.8.5",
                "rand@0.1: it is not built beside another version",
            ],
        );
        check(
            &[("rand", &["0.10.1"])],
            &["rand@0.10"],
            &["rand@0.10: it is not built beside another version"],
        );
    }
}
