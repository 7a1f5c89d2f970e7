//! Dependencies that a package declares and no source of it names.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use proc_macro2::{TokenStream, TokenTree};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
}

/// Fails with every dependency that is not used.
pub fn check(root: &Path) -> Result<()> {
    let mut unused = Vec::new();
    let metadata: Metadata = metadata(root, &["--no-deps"])?;
    for package in metadata.packages {
        let names = names(root, &package)?;
        for dependency in package.dependencies {
            let name = dependency.rename.unwrap_or(dependency.name);
            if !names.contains(&name.replace('-', "_")) {
                unused.push(format!("{}: {name}", package.name));
            }
        }
    }
    ensure!(
        unused.is_empty(),
        "dependencies that no source names:\n{}",
        unused.join("\n")
    );
    Ok(())
}

/// What `cargo metadata` prints with these further arguments.
pub fn metadata<T: DeserializeOwned>(root: &Path, arguments: &[&str]) -> Result<T> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version=1", "--offline"])
        .args(arguments)
        .current_dir(root)
        .output()
        .context("run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    serde_json::from_slice(&output.stdout).context("read what cargo metadata prints")
}

/// Every name in the sources of a package.
fn names(root: &Path, package: &Package) -> Result<HashSet<String>> {
    let folder = package
        .manifest_path
        .parent()
        .context("a manifest is in a folder")?;
    let root = root.canonicalize().context("find the workspace")?;
    let mut names = HashSet::new();
    for file in crate::links::files(&root)? {
        let path = root.join(&file);
        if file.ends_with(".rs") && path.starts_with(folder) {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("read {}", path.display()))?;
            let tokens = text
                .parse()
                .map_err(|error| anyhow::anyhow!("{file}: {error}"))?;
            collect(tokens, &mut names);
        }
    }
    Ok(names)
}

fn collect(tokens: TokenStream, names: &mut HashSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                names.insert(ident.to_string());
            }
            TokenTree::Group(group) => collect(group.stream(), names),
            // `#[serde(with = "humantime_serde")]`
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                names.insert(text.trim_matches('"').to_owned());
            }
            TokenTree::Punct(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_code_and_attributes_but_not_of_texts() {
        let source = r#"
            use serde::Deserialize; // tokio
            #[serde(with = "humantime_serde")]
            #[test_case::test_case("hyper 1")]
            fn f() { println!("by axum", tower::x()) }
        "#;
        let mut names = HashSet::new();
        collect(source.parse().unwrap(), &mut names);
        for (name, is_used) in [
            ("serde", true),
            ("humantime_serde", true),
            ("test_case", true),
            ("tower", true),
            ("tokio", false),
            ("hyper", false),
            ("axum", false),
        ] {
            assert_eq!(names.contains(name), is_used, "{name}");
        }
    }
}
