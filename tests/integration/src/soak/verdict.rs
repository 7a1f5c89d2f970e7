//! What a comparison found.

use std::collections::BTreeMap;

use serde::Serialize;

/// How many differences of a kind are explained.
const EXPLAINED: usize = 20;

/// What a comparison found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// How many facts of each type were compared and found to be right.
    pub compared: BTreeMap<&'static str, u64>,
    /// What should have been told, and was not.
    pub missing: Vec<String>,
    /// What was told, and should not have been.
    pub extra: Vec<String>,
    /// What was told twice.
    pub duplicates: Vec<String>,
    /// What was told otherwise than it is.
    pub wrong: Vec<String>,
    /// What could not be judged, and why.
    pub unjudged: Vec<String>,
}

impl Verdict {
    pub(super) fn right(&mut self, kind: &'static str) {
        *self.compared.entry(kind).or_default() += 1;
    }

    /// True if nothing is missing, too much, twice or wrong.
    pub const fn is_clean(&self) -> bool {
        self.missing.is_empty()
            && self.extra.is_empty()
            && self.duplicates.is_empty()
            && self.wrong.is_empty()
    }

    /// True if it is clean, and nothing waits for accounting.
    pub(super) fn is_settled(&self) -> bool {
        self.is_clean() && self.unjudged.is_empty()
    }

    /// How many differences there are.
    pub const fn count(&self) -> usize {
        self.missing.len() + self.extra.len() + self.duplicates.len() + self.wrong.len()
    }

    /// Types of which nothing was compared, and that must not be so.
    pub fn none_of<'a>(&self, types: &[&'a str]) -> Vec<&'a str> {
        let none = types
            .iter()
            .filter(|kind| !self.compared.contains_key(**kind));
        none.copied().collect()
    }

    /// `missing=0 extra=0 duplicates=0 wrong=0`
    pub fn closing_line(&self) -> String {
        format!(
            "missing={} extra={} duplicates={} wrong={}",
            self.missing.len(),
            self.extra.len(),
            self.duplicates.len(),
            self.wrong.len()
        )
    }

    /// The first differences of each kind, a line each.
    pub fn differences(&self) -> Vec<String> {
        let kinds = [
            ("missing", &self.missing),
            ("extra", &self.extra),
            ("duplicate", &self.duplicates),
            ("wrong", &self.wrong),
        ];
        let mut lines = Vec::new();
        for (kind, found) in kinds {
            lines.extend(
                found
                    .iter()
                    .take(EXPLAINED)
                    .map(|text| format!("{kind}: {text}")),
            );
            if found.len() > EXPLAINED {
                lines.push(format!("{kind}: … and {} more", found.len() - EXPLAINED));
            }
        }
        lines
    }
}
