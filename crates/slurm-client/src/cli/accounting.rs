//! Accounting queries by `sacct`.

use std::collections::BTreeSet;

use slurm_types::{JobId, JobRef};

use super::{Cli, IDS_PER_COMMAND, join, local_time, malformed};
use crate::drift::{Drift, Unread};
use crate::parse::{self, Separator};
use crate::{AccountingQuery, AccountingRecord, ArraySubmission, Error, UsageRecord};

impl Cli {
    /// Runs in accounting, one row per attempt (and per resize). A job unknown to accounting gives no row.
    pub(crate) async fn accounting(
        &self,
        query: &AccountingQuery,
    ) -> Result<Vec<AccountingRecord>, Error> {
        match query {
            AccountingQuery::Window { start, end } => {
                let (start, end) = (local_time(*start)?, end.map(local_time).transpose()?);
                let end = end.as_deref().unwrap_or("now");
                self.runs(&["-S", &start, "-E", end]).await
            }
            AccountingQuery::Jobs(ids) => {
                let ids: Vec<JobId> = ids
                    .iter()
                    .copied()
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect();
                let mut records = Vec::new();
                for some in ids.chunks(IDS_PER_COMMAND) {
                    records.extend(self.runs(&["-j", &join(some)]).await?);
                }
                Ok(records)
            }
        }
    }

    async fn runs(&self, which: &[&str]) -> Result<Vec<AccountingRecord>, Error> {
        let fields = parse::ACCOUNTING_FIELDS.join(",");
        let which = [&["-a", "-X"], which].concat();
        let rows = self.sacct(&fields, &which, parse::accounting).await?;
        self.drifts.note(rows.iter().flat_map(Drift::of_row));
        Ok(rows)
    }

    /// Every run of these jobs with its steps and their usage. The task that has the array's own id brings the array's other tasks along,
    /// unless it is requested as a task.
    pub(crate) async fn usage(&self, jobs: &[JobRef]) -> Result<Vec<UsageRecord>, Error> {
        let mut records = Vec::new();
        for some in jobs.chunks(IDS_PER_COMMAND) {
            let list: Vec<String> = some.iter().map(JobRef::to_string).collect();
            let which = ["-a", "-j", &list.join(",")];
            let fields = parse::usage_fields();
            let runs = self.sacct(&fields, &which, parse::usage).await?;
            let rows = runs.iter().map(|run| &run.record);
            self.drifts.note(rows.flat_map(Drift::of_row));
            records.extend(runs);
        }
        Ok(records)
    }

    /// The tasks that arrays were submitted with.
    pub(crate) async fn submitted(&self, arrays: &[JobId]) -> Result<Vec<ArraySubmission>, Error> {
        let mut records = Vec::new();
        for some in arrays.chunks(IDS_PER_COMMAND) {
            let which = ["-a", "-X", "-j", &join(some)];
            let fields = parse::SUBMITTED_FIELDS.join(",");
            let read = parse::submitted;
            records.extend(self.sacct(&fields, &which, read).await?);
        }
        Ok(records)
    }

    async fn sacct<T>(
        &self,
        fields: &str,
        which: &[&str],
        read: impl FnOnce(&str, &Separator) -> Option<(Vec<T>, Unread)>,
    ) -> Result<Vec<T>, Error> {
        let separator = Separator::random();
        let format = format!("--format={fields}");
        let delimiter = format!("--delimiter={}", separator.as_str());
        let mut arguments = vec!["-D", "-P", "-n", "--noconvert", &delimiter, &format];
        arguments.extend(which);
        let output = self.runner.run("sacct", &arguments).await?;
        let (records, unread) = read(&output, &separator).ok_or_else(|| {
            malformed(
                "sacct",
                "the answer does not have the requested columns",
                &output,
            )
        })?;
        self.drifts.unread("sacct", &unread);
        // The response is structured as only sacct's can be. A row without an id belongs to no job and must not block the others.
        Ok(records)
    }
}
