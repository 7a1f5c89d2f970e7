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
    /// What accounting does not have, so that nothing could be compared with it.
    pub open: Vec<String>,
    /// What accounting has lost for good, and was compared with what slurmctld showed the driver.
    pub lost: Vec<String>,
    /// What cannot be judged, and why.
    pub unjudged: Vec<String>,
}

impl Verdict {
    pub(super) fn right(&mut self, kind: &'static str) {
        *self.compared.entry(kind).or_default() += 1;
    }

    /// True if nothing is missing, too much, twice or wrong, and accounting has all of it.
    pub const fn is_clean(&self) -> bool {
        self.count() == 0
    }

    /// How many differences there are, with those that accounting may settle yet.
    pub const fn count(&self) -> usize {
        self.missing.len()
            + self.extra.len()
            + self.duplicates.len()
            + self.wrong.len()
            + self.open.len()
    }

    /// Types of which nothing was compared.
    pub(super) fn none_of<'a>(&self, types: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let types = types.into_iter();
        types
            .filter(|kind| !self.compared.contains_key(kind))
            .collect()
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
            ("accounting", &self.open),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_accounting_does_not_have_is_no_success() {
        let mut verdict = Verdict::default();
        assert!(verdict.is_clean());
        verdict.open.push("job 7 has no row".to_owned());
        assert!(!verdict.is_clean());
        assert_eq!(verdict.differences(), ["accounting: job 7 has no row"]);
        // The line has four numbers, whatever else is said before it.
        assert_eq!(
            verdict.closing_line(),
            "missing=0 extra=0 duplicates=0 wrong=0"
        );
    }

    #[test]
    fn a_type_that_was_not_compared_is_named() {
        let mut verdict = Verdict::default();
        verdict.right("job.started");
        let types = ["job.started", "job.timeout"];
        assert_eq!(verdict.none_of(types), ["job.timeout"]);
    }
}
