//! Accounting queries over REST.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
};

use serde_json::Value;
use slurm_types::{JobId, JobRef};

use super::{ACCOUNTING, Family, Rest, complete, nothing, or_keys};
use crate::{
    AccountingQuery, AccountingRecord, ArraySubmission, Drift, Error, UsageRecord,
    json::{self, ExitCodes},
};

/// Ids per request: a URL stays far below 8 KiB.
const IDS_PER_REQUEST: usize = 200;

impl Rest {
    /// Runs in accounting.
    pub(crate) async fn accounting(
        &self,
        query: &AccountingQuery,
    ) -> Result<Vec<AccountingRecord>, Error> {
        let version = self.accounting_version().await?;
        let codes = ExitCodes::of_api(version);
        let questions = match query {
            AccountingQuery::Window { start, end } => {
                // 22.05 takes a text that its own clock interprets: `uts` precedes a Unix time.
                let time = match codes {
                    ExitCodes::Lost => "uts",
                    ExitCodes::Reported => "",
                };
                let end = end.map_or_else(String::new, |end| format!("&end_time={time}{end}"));
                vec![format!("start_time={time}{start}{end}")]
            }
            AccountingQuery::Jobs(ids) => by_id(version, ids.iter().map(JobId::to_string)),
        };
        let questions = questions
            .into_iter()
            .map(|question| format!("{question}&skip_steps=true"));
        let rows = self.rows(codes, questions, || {
            let users = UidCache::default();
            move |value: &Value| json::accounting(value, codes, |user| users.uid(user))
        });
        let rows = rows.await?;
        self.drifts.note(rows.iter().flat_map(Drift::of_row));
        Ok(rows)
    }

    /// Runs with their steps.
    pub(crate) async fn usage(&self, jobs: &[JobRef]) -> Result<Vec<UsageRecord>, Error> {
        let version = self.accounting_version().await?;
        let codes = ExitCodes::of_api(version);
        let ids = jobs.iter().map(|job| match job {
            // A set of tasks is a fatal error for slurmrestd of 22.05 and refused by later ones, so the whole array is requested.
            JobRef::ArrayTasks { array, .. } => array.to_string(),
            one => one.to_string(),
        });
        let questions = by_id(version, ids);
        let runs = self.rows(codes, questions, || {
            let users = UidCache::default();
            move |value: &Value| json::usage(value, codes, |user| users.uid(user))
        });
        let runs = runs.await?;
        let rows = runs.iter().map(|run| &run.record);
        self.drifts.note(rows.flat_map(Drift::of_row));
        Ok(runs)
    }

    /// The tasks that arrays were submitted with.
    pub(crate) async fn submitted(&self, arrays: &[JobId]) -> Result<Vec<ArraySubmission>, Error> {
        let rows = self
            .accounting(&AccountingQuery::Jobs(arrays.to_vec()))
            .await?;
        Ok(ArraySubmission::of_rows(&rows))
    }

    async fn accounting_version(&self) -> Result<u32, Error> {
        let version = self.api().await?.version(Family::Accounting);
        Ok(version.unwrap_or_default())
    }

    /// The rows of all responses; one that cannot be parsed invalidates all.
    async fn rows<T: Send + 'static, R>(
        &self,
        codes: ExitCodes,
        questions: impl IntoIterator<Item = String>,
        reader: impl Fn() -> R,
    ) -> Result<Vec<T>, Error>
    where
        R: FnMut(&Value) -> Option<T> + Send + 'static,
    {
        // 22.05 always lists every attempt.
        let flags = match codes {
            ExitCodes::Lost => "",
            ExitCodes::Reported => "&show_duplicates=true&disable_truncate_usage_time=true",
        };
        let mut rows = Vec::new();
        for question in questions {
            let argument = format!("{question}{flags}");
            let response = self
                .list(
                    ACCOUNTING,
                    Family::Accounting,
                    "jobs",
                    &argument,
                    or_keys(reader()),
                )
                .await?;
            let (records, _) = response.ok_or_else(|| nothing(ACCOUNTING))?;
            rows.extend(complete(ACCOUNTING, records)?);
        }
        Ok(rows)
    }
}

/// Query parameters for jobs, tasks and components. 22.05 takes a list, and uses only the last of a repeated parameter. 24.11 and 26.05
/// take a repeated parameter and no list. A bare comma is an error for all of them. 23.11 and 24.05 are untested: they are queried one by
/// one.
fn by_id(version: u32, ids: impl Iterator<Item = String>) -> Vec<String> {
    let (at_once, between) = match version {
        0..=38 => (IDS_PER_REQUEST, "%2C"),
        39..=41 => (1, ""),
        _ => (IDS_PER_REQUEST, "&step="),
    };
    let ids: BTreeSet<String> = ids.map(|id| id.replace('+', "%2B")).collect();
    let ids: Vec<String> = ids.into_iter().collect();
    ids.chunks(at_once)
        .map(|some| format!("step={}", some.join(between)))
        .collect()
}

/// The users of this host, each looked up once; Slurm prints the number itself where it knows no name.
#[derive(Default)]
struct UidCache(RefCell<HashMap<String, Option<u32>>>);

impl UidCache {
    fn uid(&self, user: &str) -> Option<u32> {
        if user.is_empty() {
            return None;
        }
        let system_uid = || uzers::get_user_by_name(user).map(|user| user.uid());
        let mut known = self.0.borrow_mut();
        *known
            .entry(user.to_owned())
            .or_insert_with(|| user.parse().ok().or_else(system_uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_requested_in_addresses_of_limited_length() {
        let ask = |version| {
            by_id(
                version,
                ["7_3", "9+1", "9+1"].map(str::to_owned).into_iter(),
            )
        };
        assert_eq!(ask(38), ["step=7_3%2C9%2B1"]);
        assert_eq!(ask(41), ["step=7_3", "step=9%2B1"]);
        assert_eq!(ask(42), ["step=7_3&step=9%2B1"]);
        let many = by_id(45, (1..=401).map(|id| id.to_string()));
        assert_eq!(many.len(), 3);
    }
}
