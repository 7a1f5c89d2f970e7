//! Result of a comparison.

use std::collections::BTreeMap;

use serde::Serialize;

/// Maximum number of differences of a kind that are printed.
const EXPLAINED: usize = 20;

/// Result of a comparison.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// Number of facts of each type that were compared and found correct.
    pub compared: BTreeMap<&'static str, u64>,
    /// Expected facts that were not published.
    pub missing: Vec<String>,
    /// Published facts that were not expected.
    pub extra: Vec<String>,
    /// Facts that were published twice.
    pub duplicates: Vec<String>,
    /// Facts that were published with wrong content.
    pub wrong: Vec<String>,
    /// Facts missing in accounting, which could not be compared yet.
    pub open: Vec<String>,
    /// Facts permanently lost by accounting, compared with slurmctld's output to the driver.
    pub lost: Vec<String>,
    /// Facts that cannot be judged, with the reason.
    pub unjudged: Vec<String>,
}

impl Verdict {
    pub(super) fn right(&mut self, kind: &'static str) {
        *self.compared.entry(kind).or_default() += 1;
    }

    /// True if nothing is missing, surplus, duplicated or wrong, and accounting is complete.
    pub const fn is_clean(&self) -> bool {
        self.count() == 0
    }

    /// Number of differences, including those that accounting may still resolve.
    pub const fn count(&self) -> usize {
        self.missing.len()
            + self.extra.len()
            + self.duplicates.len()
            + self.wrong.len()
            + self.open.len()
    }

    /// Types without any compared fact.
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

    /// The first differences of each kind, one per line.
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
    fn a_job_missing_in_accounting_is_no_success() {
        let mut verdict = Verdict::default();
        assert!(verdict.is_clean());
        verdict.open.push("job 7 has no row".to_owned());
        assert!(!verdict.is_clean());
        assert_eq!(verdict.differences(), ["accounting: job 7 has no row"]);
        // The line always has four numbers.
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
