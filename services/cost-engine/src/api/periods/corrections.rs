//! What changed in closed periods after they were closed. Pure.
//!
//! The report of a closed period does not change. What adjustments and runs that went on at its closing have changed since is in the
//! report of the next period that is closed, so the reports of all closed months (quarters, years) add up to what runs cost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::Micros;
use crate::error::Error;

/// The part of a stored report that corrections are computed from.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct StoredReport {
    pub period: String,
    rows: Vec<StoredRow>,
    /// Missing in reports of early versions.
    #[serde(default)]
    corrections: Vec<Correction>,
}

#[derive(Clone, Debug, Deserialize)]
struct StoredRow {
    cluster: String,
    key: String,
    currency: String,
    /// Null without a price.
    total_micros: Option<String>,
}

/// Difference of the cost of a closed period, by cluster, account and currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Correction {
    /// The closed period.
    pub period: String,
    pub cluster: String,
    /// The account.
    pub key: String,
    pub currency: String,
    /// Negative if the cost has decreased.
    pub total_micros: String,
}

/// Cluster, account and currency.
pub(super) type Place = (String, String, String);

/// The corrections of a closed period: what it costs now, without its report and the corrections that other reports have already.
pub(super) fn corrections(
    closed: &StoredReport,
    others: &[StoredReport],
    now: BTreeMap<Place, Micros>,
) -> Result<Vec<Correction>, Error> {
    let mut left: BTreeMap<Place, i128> = BTreeMap::new();
    let mut add = |place, micros: i128| *left.entry(place).or_default() += micros;
    for (place, cost) in now {
        add(place, cost.0.into());
    }
    for row in closed.rows.iter().cloned() {
        let Some(total) = &row.total_micros else {
            continue;
        };
        let micros = amount(&closed.period, total)?;
        add((row.cluster, row.key, row.currency), -micros);
    }
    for report in others {
        let known = report.corrections.iter();
        for known in known.filter(|known| known.period == closed.period) {
            let micros = amount(&report.period, &known.total_micros)?;
            let known = known.clone();
            add((known.cluster, known.key, known.currency), -micros);
        }
    }
    let changed = left.into_iter().filter(|(_, micros)| *micros != 0);
    let corrections = changed.map(|((cluster, key, currency), micros)| Correction {
        period: closed.period.clone(),
        cluster,
        key,
        currency,
        total_micros: micros.to_string(),
    });
    Ok(corrections.collect())
}

/// A stored amount. One that cannot be read is not 0: the whole cost would be a correction.
fn amount(period: &str, text: &str) -> Result<i128, Error> {
    text.parse().map_err(|source| Error::Report {
        period: period.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(account: &str) -> Place {
        ("c".into(), account.into(), "EUR".into())
    }

    fn report(json: &serde_json::Value) -> StoredReport {
        serde_json::from_value(json.clone()).unwrap()
    }

    fn row(account: &str, micros: &str) -> serde_json::Value {
        serde_json::json!({ "cluster": "c", "key": account, "currency": "EUR", "total_micros": micros, "runs": 1 })
    }

    #[test]
    fn each_difference_is_in_one_report() {
        let october = report(&serde_json::json!({
            "period": "2026-10", "rows": [row("a", "100"), row("b", "50"), row("gone", "7")]
        }));
        let now = BTreeMap::from([
            (place("a"), Micros(80)),
            (place("b"), Micros(50)),
            (place("new"), Micros(5)),
        ]);
        let found = corrections(&october, &[], now.clone()).unwrap();
        let written = |found: &[Correction]| {
            let one = |found: &Correction| format!("{} {}", found.key, found.total_micros);
            found.iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(written(&found), ["a -20", "gone -7", "new 5"]);
        // The next report has them, the one after it only what is new since.
        let november = report(&serde_json::json!({
            "period": "2026-11", "rows": [], "corrections": found
        }));
        let others = [october.clone(), november];
        assert_eq!(corrections(&october, &others, now).unwrap(), []);
        let later = BTreeMap::from([(place("b"), Micros(60)), (place("new"), Micros(5))]);
        let found = corrections(&october, &others, later).unwrap();
        assert_eq!(written(&found), ["a -80", "b 10"]);
    }

    #[test]
    fn an_unreadable_amount_is_an_error() {
        let damaged =
            report(&serde_json::json!({ "period": "2026-10", "rows": [row("a", "1OO")] }));
        let error = corrections(&damaged, &[], BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("2026-10"), "{error}");
    }
}
