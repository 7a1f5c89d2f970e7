//! Tasks that need the project's own types. `cargo xtask --help` lists them.
#![allow(clippy::print_stdout, reason = "a command line tool for maintainers")]

mod catalogue;
mod chart;
mod codegen;
mod compat;
mod configuration;
mod dashboards;
mod dependencies;
mod docs;
mod duplicates;
mod identifiers;
mod links;
mod markdown;
mod modules;
mod programs;
mod test;
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

/// Tasks of the slurm-mesh workspace.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Generate the Rust bindings of `proto/`.
    Codegen {
        /// Change nothing, and fail if a file is out of date.
        #[arg(long)]
        check: bool,
    },
    /// Generate parts of `docs/` and the dashboards of `deploy/grafana/` with the chart's copies, and check the links and words of all pages.
    Docs {
        /// Change nothing, and fail if a file is out of date.
        #[arg(long)]
        check: bool,
    },
    /// Check the words of names in Rust sources, the names of their files, that each package uses its dependencies, and that
    /// no dependency is built in several versions.
    Lint,
    /// Run every test: those that start a Slurm beside the others.
    Test,
    /// Generate `docs/internals/compat.md`, the results of tests per version of Slurm, from `docs/internals/compat.json`.
    Compat {
        /// Change nothing, and fail if a file is out of date.
        #[arg(long)]
        check: bool,
        /// First run the tests that use a live Slurm (the one in the folder $ROOT, else this machine's), and record their results.
        #[arg(long, conflicts_with = "check")]
        run: bool,
        /// With `--run`: only run the tests of this package; repeatable.
        #[arg(long, requires = "run")]
        package: Vec<String>,
    },
}

fn main() -> Result<()> {
    let (files, check, chore) = match Cli::parse().chore {
        Chore::Codegen { check } => (codegen::files(&root())?, check, "codegen"),
        Chore::Docs { check } => {
            let mut files = docs::files(&root())?;
            let dashboards = dashboards::files(&root())?;
            files.extend(chart::files(&root(), &dashboards)?);
            files.extend(dashboards);
            (files, check, "docs")
        }
        Chore::Lint => {
            identifiers::check(&root())?;
            modules::check(&root())?;
            duplicates::check(&root())?;
            return dependencies::check(&root());
        }
        Chore::Test => return test::run(&root()),
        Chore::Compat {
            check,
            run,
            package,
        } => {
            let ran = if run {
                compat::run(&root(), &package)
            } else {
                Ok(())
            };
            write(compat::files(&root())?, check, "compat")?;
            return ran;
        }
    };
    write(files, check, chore)?;
    if chore == "docs" {
        links::check(&root())?;
        words::check(&root())?;
    }
    Ok(())
}

fn write(files: BTreeMap<PathBuf, String>, check: bool, chore: &str) -> Result<()> {
    for (path, content) in files {
        put(&path, &content, check).with_context(|| format!("run `cargo xtask {chore}`"))?;
    }
    Ok(())
}

/// Root folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn put(path: &Path, content: &str, check: bool) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    if check {
        bail!("{} is out of date", path.display());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, content).with_context(|| format!("write {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}
