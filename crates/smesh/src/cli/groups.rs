//! `smesh --help` lists the commands by purpose. clap has headings for options, not for subcommands, so the list is part of the template.

use std::fmt::Write as _;

use clap::Subcommand as _;
use clap::builder::StyledStr;

use super::{Command, STYLES};

/// Headings, and the commands below them.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Events and history",
        &["events", "job", "node", "stats", "export", "replay"],
    ),
    ("Pending jobs", &["why", "when", "queue", "squeue", "wait"]),
    ("Costs", &["cost", "budget", "price"]),
    (
        "Webhooks and triggers",
        &["webhooks", "triggers", "tree", "publish"],
    ),
    ("Ledger", &["verify", "ledger"]),
    ("Installation", &["init", "up", "hooks", "nats"]),
    (
        "Operation",
        &[
            "doctor",
            "whoami",
            "log-level",
            "backup",
            "restore",
            "recover",
            "inspect",
        ],
    ),
];

/// The template of `smesh --help`.
pub(super) fn help_template() -> StyledStr {
    let (header, literal) = (STYLES.get_header(), STYLES.get_literal());
    let commands = commands();
    let width = commands.iter().map(|(name, _)| name.len()).max();
    let width = width.unwrap_or_default();
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        // Writing to a text does not fail.
        write!(template, "\n{header}{heading}:{header:#}\n").ok();
        for name in *names {
            let about = commands.iter().find(|(known, _)| known == name);
            let about = about.map_or("", |(_, about)| about);
            writeln!(template, "  {literal}{name:<width$}{literal:#}  {about}").ok();
        }
    }
    write!(
        template,
        "\n`smesh help COMMAND` shows the options of a command.\n\n{header}Options:{header:#}\n{{options}}{{after-help}}"
    )
    .ok();
    template.into()
}

/// Names and descriptions of the commands that are shown.
fn commands() -> Vec<(String, String)> {
    let command = Command::augment_subcommands(clap::Command::new("smesh"));
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
    let described = shown.map(|one| {
        let about = one.get_about().map(ToString::to_string);
        (one.get_name().to_owned(), about.unwrap_or_default())
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let commands = commands();
        let mut known: Vec<&str> = commands.iter().map(|(name, _)| &**name).collect();
        grouped.sort_unstable();
        known.sort_unstable();
        assert_eq!(grouped, known);
    }
}
