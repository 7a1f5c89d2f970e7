//! `smesh manual`: man pages and shell completions of all programs, for packages.
//!
//! A command of the program, so that packages made from prebuilt programs have the pages of exactly these.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::{Cli, Manual};
use crate::error::Error;
use crate::services::SERVICES;

pub(super) fn run(args: &Manual) -> Result<ExitCode, Error> {
    for command in programs() {
        write(command, &args.folder)
            .map_err(|source| Error::io("write to", &args.folder, source))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(mut command: clap::Command, folder: &Path) -> std::io::Result<()> {
    let name = command.get_name().to_owned();
    // Before the completions, which add help subcommands.
    let pages = without_help_pages(command.clone());
    for (shell, subfolder) in [
        (Shell::Bash, "bash"),
        (Shell::Zsh, "zsh"),
        (Shell::Fish, "fish"),
    ] {
        let subfolder = folder.join(subfolder);
        fs::create_dir_all(&subfolder)?;
        clap_complete::generate_to(shell, &mut command, &name, &subfolder)?;
    }
    let man = folder.join("man1");
    fs::create_dir_all(&man)?;
    clap_mangen::generate_to(pages, &man)
}

/// `smesh help cost` shows what `smesh cost --help` does.
fn without_help_pages(command: clap::Command) -> clap::Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help_pages)
}

/// The programs under the names that packages give them. `ledger` alone is the name of a well-known accounting program.
fn programs() -> Vec<clap::Command> {
    let mut programs = vec![Cli::command(), mesh_hook_command()];
    programs.extend(SERVICES.iter().map(|service| {
        // clap takes names that live as long as the program.
        let name = format!("slurm-mesh-{}", service.name()).leak();
        (service.command)().name(&*name)
    }));
    programs
}

/// The command line of mesh-hook, which parses without clap, from its help: a sentence, the usage, options, and a last paragraph.
fn mesh_hook_command() -> clap::Command {
    let mut parts = mesh_hook::args::HELP.split("\n\n");
    let mut part = || parts.next().unwrap_or_default().trim_end();
    let (about, usage, options, last) = (part(), part(), part(), part());
    let mut command = clap::Command::new("mesh-hook")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .about(about)
        .override_usage(usage.trim_start_matches("Usage: ").replace("       ", ""))
        .after_help(last);
    // Continued lines are indented further.
    for option in options.split("\n  --") {
        let mut words = option.split_whitespace().peekable();
        let name = words.next().unwrap_or_default().trim_start_matches("--");
        let value = words.next_if(|word| word.chars().all(|c| c.is_ascii_uppercase()));
        let help = words.collect::<Vec<_>>().join(" ");
        let arg = Arg::new(name).long(name).help(help);
        command = command.arg(match value {
            Some(value) => arg.value_name(value),
            None => arg.action(clap::ArgAction::SetTrue),
        });
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_page_and_completions() {
        let folder = tempfile::tempdir().unwrap();
        run(&Manual {
            folder: folder.path().to_owned(),
        })
        .unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        for name in [
            "smesh",
            "smesh-webhooks-add",
            "mesh-hook",
            "slurm-mesh-ledger",
        ] {
            assert!(
                read(&format!("man1/{name}.1")).contains(".SH OPTIONS"),
                "{name}"
            );
        }
        assert!(!folder.path().join("man1/smesh-help.1").exists());
        for name in ["smesh", "mesh-hook", "slurm-mesh-ledger"] {
            for file in [
                format!("bash/{name}.bash"),
                format!("zsh/_{name}"),
                format!("fish/{name}.fish"),
            ] {
                assert!(read(&file).contains("config"), "{file}");
            }
        }
    }

    #[test]
    fn the_page_of_mesh_hook_has_the_options_of_its_help() {
        let mut command = mesh_hook_command();
        command.build();
        let options: Vec<_> = command
            .get_arguments()
            .filter(|arg| arg.get_id() != "help")
            .map(|arg| {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(
                    help.starts_with(|c: char| c.is_lowercase()),
                    "{arg}: {help}"
                );
                arg.to_string()
            })
            .collect();
        assert_eq!(
            options,
            [
                "--config <FILE>",
                "--hook <NAME>",
                "--chain <PROGRAM>",
                "--flush",
                "--listen <SOCKET>",
                "--probe <UUID>",
                "--version"
            ]
        );
    }
}
