//! Chores that need the project's own types. `cargo xtask --help` lists them.
#![allow(clippy::print_stdout, reason = "a command line tool for maintainers")]

mod codegen;
mod docs;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

/// Chores of the slurm-mesh workspace.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Write the Rust bindings of `proto/`.
    Codegen {
        /// Change nothing; fail if a file would change.
        #[arg(long)]
        check: bool,
    },
    /// Write the generated parts of `docs/` from the catalogue.
    Docs {
        /// Change nothing; fail if a file would change.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    let (files, check, chore) = match Cli::parse().chore {
        Chore::Codegen { check } => (codegen::files(&root())?, check, "codegen"),
        Chore::Docs { check } => (docs::files(&root())?, check, "docs"),
    };
    for (path, content) in files {
        put(&path, &content, check).with_context(|| format!("run `cargo xtask {chore}`"))?;
    }
    Ok(())
}

/// The workspace's folder.
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
