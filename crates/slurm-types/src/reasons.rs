//! Reasons why a job waits, or why it ended: Slurm's reason texts, their meaning, and who can act.
//!
//! Slurm prints one of 221 reason keywords, or a free text in its place (`state_desc`). Reasons are matched by their text, never by their
//! number, since numbers are reused between versions. Free texts are matched first, since they *replace* the keyword. scontrol replaces
//! white space by underscores, so both spellings are accepted.

mod class;
mod table;

use std::collections::BTreeMap;

pub use class::ReasonClass;
pub use table::{Actor, DescriptionRow, ReasonRow, descriptions, rows};

/// Looks up reason texts.
#[derive(Clone, Copy, Debug)]
pub struct Reason;

/// Meaning of a reason text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The text as Slurm printed it.
    pub text: String,
    /// The row of the reason; `None` if no table contains the text.
    pub row: Option<&'static ReasonRow>,
    /// The free-text pattern that matched, if any. Its meaning and actor are more specific than the row's.
    pub description: Option<&'static DescriptionRow>,
    /// Captures of the pattern: `nodes`, `resv`, `uid`, `part`, `groups`, `sig`, `name`, `tres`, `limit`, `used`, `plugin`, `msg`.
    pub captures: BTreeMap<&'static str, String>,
}

impl Reason {
    /// Looks up a text. Accepts squeue's `%r`, scontrol's underscored form, and `%R`'s form in parentheses.
    pub fn lookup(text: &str) -> Match {
        let trimmed = text.trim();
        let inner = trimmed
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'))
            .unwrap_or(trimmed);
        let mut found = Match {
            text: text.to_owned(),
            row: None,
            description: None,
            captures: BTreeMap::new(),
        };
        if let Some((description, captures)) = table::describe(inner) {
            found.row = table::find(description.reason);
            found.description = Some(description);
            found.captures = captures;
            return found;
        }
        // Details that this version does not know may follow the keyword: `ReqNodeNotAvail, something new`.
        found.row =
            table::find(inner).or_else(|| table::find(inner.split([',', ':', '(', ' ']).next()?));
        found
    }
}

impl Match {
    /// The reason's keyword: the row's, or the text itself if there is no row.
    pub fn reason(&self) -> &str {
        self.row.map_or(self.text.as_str(), |row| row.reason)
    }

    /// The class, stable against the small changes that a queue makes all the time.
    pub fn class(&self) -> ReasonClass {
        self.row.map_or(ReasonClass::Unknown, class::of_row)
    }

    /// Its meaning in one sentence; `None` if there is no row.
    pub fn meaning(&self) -> Option<&'static str> {
        self.description
            .map(|description| description.meaning)
            .or(self.row.map(|row| row.meaning))
    }

    /// Who can act; `None` if there is no row.
    pub fn actor(&self) -> Option<Actor> {
        self.description
            .map(|description| description.actor)
            .or(self.row.map(|row| row.actor))
    }

    /// What to do or to check.
    pub fn advice(&self) -> Option<&'static str> {
        self.row.map(|row| row.advice)
    }
}

#[cfg(test)]
mod tests;
