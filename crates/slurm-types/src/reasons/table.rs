//! The reason table and the patterns of free texts, parsed once from the embedded files.

use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::data;

/// Who can resolve a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// The owner of the job.
    User,
    /// An administrator.
    Admin,
    /// No action needed: it resolves by itself.
    Wait,
}

impl Actor {
    /// The keyword used in the tables and in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Admin => "admin",
            Self::Wait => "wait",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::User, Self::Admin, Self::Wait]
            .into_iter()
            .find(|actor| actor.as_str() == word)
    }
}

/// One row of `data/pending_reasons.tsv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonRow {
    /// The keyword that Slurm prints.
    pub reason: &'static str,
    /// Its category; see [`ReasonClass`](super::ReasonClass) for the coarser classes.
    pub category: &'static str,
    /// Its meaning in one sentence.
    pub meaning: &'static str,
    /// Who can act.
    pub actor: Actor,
    /// What to do or to show.
    pub advice: &'static str,
    /// Slurm's name of the limit, for limit reasons; else empty.
    pub limit: &'static str,
    /// Field of Slurm's REST responses that holds the limit's value; may be empty.
    pub limit_source: &'static str,
    /// Further facts that explain the case; may be empty.
    pub evidence: &'static str,
    /// Name of the enum value in `slurm.h`.
    pub enum_name: &'static str,
    /// Number(s) of the enum value; they differ between versions and are never matched.
    pub code: &'static str,
    /// First release branch that has it.
    pub first_version: &'static str,
    /// Last release branch that has it; `current` if it still exists.
    pub last_version: &'static str,
}

/// One row of `data/pending_descriptions.tsv`: a free text that may replace the reason.
#[derive(Clone, Debug)]
pub struct DescriptionRow {
    /// The pattern as in the table.
    pub pattern: &'static str,
    /// The keyword of the replaced reason.
    pub reason: &'static str,
    /// Who can act.
    pub actor: Actor,
    /// Its meaning in one sentence.
    pub meaning: &'static str,
    regex: Regex,
}

impl PartialEq for DescriptionRow {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}

impl Eq for DescriptionRow {}

static ROWS: LazyLock<Vec<ReasonRow>> = LazyLock::new(|| {
    data::rows(data::PENDING_REASONS)
        .filter_map(reason_row)
        .collect()
});

static BY_TEXT: LazyLock<HashMap<String, &'static ReasonRow>> = LazyLock::new(|| {
    ROWS.iter()
        .map(|row| (row.reason.to_ascii_lowercase(), row))
        .collect()
});

static DESCRIPTIONS: LazyLock<Vec<DescriptionRow>> = LazyLock::new(|| {
    data::rows(data::PENDING_DESCRIPTIONS)
        .filter_map(description_row)
        .collect()
});

/// Every reason.
pub fn rows() -> &'static [ReasonRow] {
    &ROWS
}

/// Every pattern of a free text.
pub fn descriptions() -> &'static [DescriptionRow] {
    &DESCRIPTIONS
}

pub(super) fn find(reason: &str) -> Option<&'static ReasonRow> {
    BY_TEXT.get(&reason.trim().to_ascii_lowercase()).copied()
}

pub(super) fn describe(
    text: &str,
) -> Option<(&'static DescriptionRow, BTreeMap<&'static str, String>)> {
    descriptions().iter().find_map(|row| {
        let captures = row.regex.captures(text)?;
        let named = row.regex.capture_names().flatten();
        let captured = named
            .filter_map(|name| Some((name, captures.name(name)?.as_str().to_owned())))
            .collect();
        Some((row, captured))
    })
}

fn reason_row(row: Vec<&'static str>) -> Option<ReasonRow> {
    let [
        reason,
        category,
        meaning,
        actor,
        advice,
        limit,
        limit_source,
        evidence,
        enum_name,
        code,
        first_version,
        last_version,
    ] = row[..]
    else {
        return None;
    };
    let actor = Actor::parse(actor)?;
    Some(ReasonRow {
        reason,
        category,
        meaning,
        actor,
        advice,
        limit,
        limit_source,
        evidence,
        enum_name,
        code,
        first_version,
        last_version,
    })
}

fn description_row(row: Vec<&'static str>) -> Option<DescriptionRow> {
    let [pattern, reason, actor, meaning] = row[..] else {
        return None;
    };
    // scontrol prints the text with underscores for white space; no pattern has a space inside a character class.
    let regex = Regex::new(&pattern.replace(' ', "[ _]")).ok()?;
    Some(DescriptionRow {
        pattern,
        reason,
        actor: Actor::parse(actor)?,
        meaning,
        regex,
    })
}
