//! The result of `smesh verify`, as JSON or as text.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ledger::{EXPORTED, FirstFault, VerifyError, VerifyReport};
use serde_json::{Value, json};

use crate::error::Error;
use crate::show;

const UNSIGNED: &str = "no checkpoint is signed by a key that was given";

/// A contradiction that verification found.
pub(super) struct FailedComparison {
    /// Class of the comparison that failed.
    class: &'static str,
    /// Sequence of the entry, if the fault is in one.
    seq: Option<i64>,
    reason: String,
}

impl FailedComparison {
    /// `None` if the error is not a contradiction, for example a read error.
    pub(super) fn of(error: &VerifyError) -> Option<Self> {
        let class = error.class()?;
        Some(match error {
            VerifyError::Invalid(bad) => Self {
                class,
                seq: Some(bad.seq),
                reason: bad.what.to_string(),
            },
            VerifyError::FilesMissing { first, names } => Self {
                class,
                seq: Some(first.seq),
                reason: format!("{}: {}", first.what, names.join(", ")),
            },
            VerifyError::AuditRemoved(seqs) => Self {
                class,
                seq: seqs.first().copied(),
                reason: error.to_string(),
            },
            other => Self {
                class,
                seq: None,
                reason: other.to_string(),
            },
        })
    }
}

impl From<FirstFault> for FailedComparison {
    fn from(bad: FirstFault) -> Self {
        Self {
            class: EXPORTED,
            seq: Some(bad.seq),
            reason: bad.what.to_string(),
        }
    }
}

/// What a verification found.
pub(super) enum VerificationResult {
    /// Nothing contradicts the entries.
    Verified {
        report: VerifyReport,
        /// Whether keys were given. Otherwise those that the ledger names count.
        by_given_keys: bool,
    },
    /// The entries fit together, but no given key has signed them.
    Unsigned {
        report: VerifyReport,
    },
    /// The entries fit together, but the newest checkpoint lacks cosignatures.
    Uncosigned {
        report: VerifyReport,
        reason: String,
    },
    FailedComparison(FailedComparison),
}

impl VerificationResult {
    /// Of a report without a contradiction.
    pub(super) fn of(report: VerifyReport, by_given_keys: bool) -> Self {
        let verified = &report.verified;
        match by_given_keys && verified.signed == 0 && verified.count > 0 {
            true => Self::Unsigned { report },
            false => Self::Verified {
                report,
                by_given_keys,
            },
        }
    }

    pub(super) fn show(&self, as_json: bool) -> Result<ExitCode, Error> {
        match as_json {
            true => show::line(self.to_json())?,
            false => self.lines().into_iter().try_for_each(show::line)?,
        }
        Ok(match self {
            Self::Verified { .. } => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Verified { report, .. } => {
                let verified = &report.verified;
                let (checked, unchecked) = classes(report);
                json!({
                    "verified": true, "entries": verified.count, "head": hex::encode(verified.head),
                    "signed": verified.signed, "archived": verified.archived, "unaudited_archives": verified.unaudited,
                    "checked": checked, "unchecked": unchecked,
                })
            }
            Self::Unsigned { report } => unproven(report, UNSIGNED),
            Self::Uncosigned { report, reason } => unproven(report, reason),
            Self::FailedComparison(FailedComparison { class, seq, reason }) => {
                let mut answer = json!({ "verified": false, "class": class, "reason": reason });
                if let Some(seq) = seq {
                    answer["first_bad_sequence"] = (*seq).into();
                }
                answer
            }
        }
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Self::Verified {
                report,
                by_given_keys,
            } => verified_lines(report, *by_given_keys),
            Self::Unsigned { report } => {
                let mut lines = vec![format!("the entries fit together, but {UNSIGNED}")];
                lines.extend(class_lines(report));
                lines
            }
            Self::Uncosigned { report, reason } => {
                let mut lines = vec![format!("the entries fit together, but only {reason}")];
                lines.extend(class_lines(report));
                lines
            }
            Self::FailedComparison(FailedComparison { class, seq, reason }) => {
                let entry = seq.map_or_else(String::new, |seq| {
                    format!("the first bad entry is sequence {seq}: ")
                });
                vec![
                    format!("the ledger was changed: {entry}{reason}"),
                    format!("  {class}: does not match; what follows it was not checked"),
                ]
            }
        }
    }
}

fn verified_lines(report: &VerifyReport, by_given_keys: bool) -> Vec<String> {
    let verified = &report.verified;
    let signed = match (verified.signed, by_given_keys) {
        (0, _) => "no checkpoint is signed yet".to_owned(),
        (signed, true) => format!("signed up to {signed}"),
        (signed, false) => format!("signed up to {signed} by keys that it names itself"),
    };
    let mut lines = vec![format!(
        "{} entries are as they were written, {signed}; head {}",
        verified.count,
        hex::encode(verified.head)
    )];
    let unsigned = verified.count.saturating_sub(verified.signed);
    if verified.signed > 0 && unsigned > 0 {
        lines.push(format!(
            "no signature covers the last {unsigned} of them yet. If that stays so, the ledger does not sign, or checkpoints were removed"
        ));
    }
    if verified.archived > 0 {
        lines.push(format!(
            "{} of them have only their hashes here: their content is archived or erased (smesh ledger archives)",
            verified.archived
        ));
    }
    if verified.unaudited > 0 {
        lines.push(format!(
            "{} archives are not in the audit yet; a running ledger adds them within seconds",
            verified.unaudited
        ));
    }
    lines.extend(class_lines(report));
    lines
}

fn class_lines(report: &VerifyReport) -> impl Iterator<Item = String> {
    report.classes.iter().map(|class| match &class.unchecked {
        None => format!("  {}: checked", class.name),
        Some(why) => format!("  {}: not checked: {why}", class.name),
    })
}

/// Names of the compared classes; and of the others, with the reasons.
fn classes(report: &VerifyReport) -> (Vec<&str>, BTreeMap<&str, &str>) {
    let classes = report.classes.iter();
    let checked = classes.clone().filter(|class| class.unchecked.is_none());
    let unchecked = classes.filter_map(|class| Some((class.name, class.unchecked.as_deref()?)));
    (
        checked.map(|class| class.name).collect(),
        unchecked.collect(),
    )
}

/// Entries that fit together, but are not proven to be those that were written.
fn unproven(report: &VerifyReport, reason: &str) -> Value {
    let (checked, unchecked) = classes(report);
    json!({
        "verified": false, "entries": report.verified.count, "reason": reason,
        "checked": checked, "unchecked": unchecked,
    })
}
