//! Every command line of `smesh` in the documentation and in `--help` is valid.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
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
        let command = text[..end_of_command(text)].replace("<id>", ID);
        // Synopses such as `add|list …` are not command lines.
        if !command.contains(['…', '|', '[']) {
            commands.push(command);
        }
    }
    commands
}

/// Where a command ends: at a comment, another command or a file.
fn end_of_command(text: &str) -> usize {
    let ends = [" #", "  ", " &&", " |", " >", " —", ";"];
    let ends = ends.iter().filter_map(|end| text.find(end));
    ends.min().unwrap_or(text.len())
}

/// The commands in a line of `--help`, which may have several, and other programs before them.
fn commands_of_example(line: &str) -> Vec<String> {
    let line = without_substitutions(&line.replace("0191…", ID));
    let begins = line.match_indices("smesh ").map(|(at, _)| at);
    let begins = begins.filter(|at| *at == 0 || line[..*at].ends_with(' '));
    begins
        .map(|at| line[at..at + end_of_command(&line[at..])].to_owned())
        .collect()
}

/// The line with the id of a job in place of each `$(…)`.
fn without_substitutions(line: &str) -> String {
    match line.split_once("$(") {
        None => line.to_owned(),
        Some((before, rest)) => {
            let (_, after) = rest.split_once(')').unwrap();
            format!("{before}123{}", without_substitutions(after))
        }
    }
}

/// The examples of a command and those below it: indented lines that begin with a program.
fn examples(command: &clap::Command, of: &str, found: &mut Vec<(String, String)>) {
    let name = format!("{of} {}", command.get_name());
    let helps = [command.get_after_help(), command.get_after_long_help()];
    for help in helps.into_iter().flatten().map(ToString::to_string) {
        let mut is_example = false;
        for line in help.lines() {
            is_example = match line.trim_end() {
                "" => false,
                line if line.starts_with("Example") && line.ends_with(':') => true,
                _ => is_example,
            };
            let text = line.strip_prefix("  ").unwrap_or_default();
            if (is_example && !text.is_empty()) || text.starts_with("smesh ") {
                found.push((name.clone(), text.to_owned()));
            }
        }
    }
    for below in command.get_subcommands() {
        examples(below, &name, found);
    }
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

fn parse(command: &str) -> Result<Cli, clap::Error> {
    Cli::of_arguments(arguments(command).into_iter().map(Into::into).collect())
}

#[test]
fn every_example_of_the_help_is_taken() {
    let mut found = Vec::new();
    examples(&Cli::command(), "", &mut found);
    let mut wrong = Vec::new();
    for (of, line) in &found {
        let commands = commands_of_example(line);
        if commands.is_empty() {
            wrong.push(format!("{of}: no command of smesh: {line}"));
        }
        for command in commands {
            if let Err(error) = parse(&command) {
                wrong.push(format!("{of}: {command}\n{error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found.len() > 70, "only {} examples were found", found.len());
}

#[test]
fn examples_are_cut_as_a_shell_does() {
    for (line, expected) in [
        (
            "smesh init && smesh up    then:  smesh events",
            &["smesh init", "smesh up", "smesh events"][..],
        ),
        (
            "sacct > a.txt; smesh inspect a.txt",
            &["smesh inspect a.txt"],
        ),
        (
            "smesh wait $(sbatch --parsable a.sh) end && ./b",
            &["smesh wait 123 end"],
        ),
        ("scontrol show job 1", &[]),
    ] {
        assert_eq!(commands_of_example(line), expected, "{line}");
    }
    // What is wrong is noticed.
    assert!(parse("smesh wait 123 end --no-such-option").is_err());
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
            if let Err(error) = parse(&command) {
                wrong.push(format!("{}: {command}\n{error}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 40, "only {count} command lines were found");
}
