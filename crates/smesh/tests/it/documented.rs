//! Every command line of `smesh` in the documentation is valid.

use std::path::{Path, PathBuf};

use clap::Parser as _;
use smesh::cli::Cli;

/// Replaces `<id>` in a page.
const ID: &str = "75e9d09e-b590-8c89-bd6d-e2ec838d8006";

/// Finds the pages below a folder. Build output and dependencies are skipped.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || ["target", "node_modules"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            pages(&path, found);
        } else if name.ends_with(".md") && name != "CHANGELOG.md" {
            found.push(path);
        }
    }
}

/// The command lines in a page's code blocks, without comments and further shell commands.
fn commands(page: &str) -> Vec<String> {
    let mut is_block = false;
    let mut commands = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        }
        let text = line.trim_start();
        let is_code = is_block || line.starts_with("    ");
        if !is_code || !text.starts_with("smesh ") {
            continue;
        }
        let ends = [" #", "  ", " &&", " |", " >", " —"];
        let end = ends.iter().filter_map(|end| text.find(end)).min();
        let command = text[..end.unwrap_or(text.len())].replace("<id>", ID);
        // Synopses such as `add|list …` are not command lines.
        if !command.contains(['…', '|', '[']) {
            commands.push(command);
        }
    }
    commands
}

/// Splits words as a shell does. Pages use quotes only around whole words.
fn arguments(command: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let mut quote = None;
    for c in command.chars() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(end)) if c == end => quote = None,
            (' ', None) => arguments.push(String::new()),
            (c, _) => arguments.last_mut().unwrap().push(c),
        }
    }
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

#[test]
fn every_command_of_the_pages_is_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    pages(&root, &mut files);
    let mut wrong = Vec::new();
    let mut count = 0;
    for file in files {
        for command in commands(&std::fs::read_to_string(&file).unwrap()) {
            count += 1;
            if let Err(error) = Cli::try_parse_from(arguments(&command)) {
                wrong.push(format!("{}: {command}\n{error}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 40, "only {count} command lines were found");
}
