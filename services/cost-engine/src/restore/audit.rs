//! Budgets of the API and closed periods, from their audit entries.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, CostPeriodClosed};
use sha2::{Digest as _, Sha256};

use super::RestoredRows;
use crate::adapters::{ClosedPeriod, Store};
use crate::error::Error;
use crate::recorded_report;
use crate::usage::seconds;

/// The newest state by all entries.
#[derive(Debug, Default)]
pub(super) struct AuditedActs {
    /// Budgets of the API by name. `None`: deleted.
    budgets: BTreeMap<String, Option<BudgetContent>>,
    /// Closed periods by name: the first entry counts, as the first request did.
    periods: BTreeMap<String, (CostPeriodClosed, i64)>,
}

#[derive(Debug)]
struct BudgetContent {
    content: String,
    changed_by: String,
    changed_at: i64,
}

impl AuditedActs {
    /// Adds an entry.
    pub fn add(&mut self, entry: &AuditEntry) {
        let at = seconds(entry.at.as_ref()).unwrap_or_default();
        match &entry.act {
            Some(Act::Budget(act)) => {
                let set = (act.what != "deleted").then(|| BudgetContent {
                    content: act.content.clone(),
                    changed_by: act.made_by.clone(),
                    changed_at: at,
                });
                self.budgets.insert(act.budget.clone(), set);
            }
            Some(Act::Cost(act)) => {
                let first = self.periods.entry(act.period.clone());
                first.or_insert_with(|| (act.clone(), at));
            }
            _ => {}
        }
    }

    /// Contents of the budgets that exist.
    pub fn contents(&self) -> impl Iterator<Item = &str> {
        let existing = self.budgets.values().flatten();
        existing.map(|budget| budget.content.as_str())
    }

    /// Writes what the database lacks.
    pub async fn write(&self, store: &Store, rows: &mut RestoredRows) -> Result<(), Error> {
        for (name, budget) in &self.budgets {
            let Some(budget) = budget else { continue };
            let by = (budget.changed_by.as_str(), budget.changed_at);
            if store.restore_budget((name, &budget.content), by).await? {
                rows.budgets += 1;
            }
        }
        for (act, at) in self.periods.values() {
            if store.closed_period(&act.period).await?.is_some() {
                continue;
            }
            let Some(report) = report(act) else {
                rows.lost_periods += 1;
                continue;
            };
            let closed = ClosedPeriod {
                period: act.period.clone(),
                digest: act.report_sha256.clone(),
                rows: i64::try_from(act.rows).unwrap_or(i64::MAX),
                closed_at: *at,
                closed_by: act.made_by.clone(),
                incomplete: false,
            };
            if store.restore_period(&closed, &report).await? {
                rows.periods += 1;
            }
        }
        Ok(())
    }
}

/// The recorded report. `None` unless its SHA-256 is the recorded one.
fn report(act: &CostPeriodClosed) -> Option<String> {
    let report = recorded_report::decompress(&act.report_gzip)?;
    let digest = hex::encode(Sha256::digest(report.as_bytes()));
    (digest == act.report_sha256).then_some(report)
}
