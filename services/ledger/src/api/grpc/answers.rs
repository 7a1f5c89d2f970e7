//! Converts results to gRPC messages.

use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::job::v1;
use mesh_events::proto::mesh::ledger::v1::{
    JobRun, LedgerEntry, RunCost, RunSummary, StatsRow, Wait,
};
use mesh_events::timestamp;
use mesh_runtime::api::Problem;
use tonic::Status;

use crate::api::fields::Fields;
use crate::api::{Entry, EntryContent};
use crate::domain::job_history::{ExitCode, RecordedEvent, Run, Summary};
use crate::domain::stats::{self, Group};

/// Converts an entry, or only the requested parts of it.
pub(super) fn entry(entry: Entry, fields: Option<&Fields>) -> Result<LedgerEntry, Status> {
    let Entry { seq, content } = entry;
    let (event, audit) = match (content, fields) {
        (EntryContent::Event(event), None) => (Some(*event), None),
        (EntryContent::Audit(audit), None) => (None, Some(*audit)),
        (EntryContent::Event(event), Some(fields)) => (fields.event(&event).map_err(unfit)?, None),
        (EntryContent::Audit(audit), Some(fields)) => (None, fields.audit(&audit).map_err(unfit)?),
    };
    let with_seq = fields.is_none_or(Fields::with_seq);
    Ok(LedgerEntry {
        seq: if with_seq { seq } else { 0 },
        event,
        audit,
    })
}

/// Reports an entry that cannot be converted to JSON. The cause is logged.
fn unfit(problem: Problem) -> Status {
    Status::internal(problem.detail)
}

pub(super) fn run(run: Run) -> JobRun {
    JobRun {
        summary: Some(summary(&run.summary)),
        run: run.key,
        timeline: run.timeline.into_iter().map(recorded).collect(),
    }
}

pub(super) fn recorded(recorded: RecordedEvent) -> LedgerEntry {
    LedgerEntry {
        seq: recorded.seq,
        event: Some(recorded.event),
        audit: None,
    }
}

pub(super) fn stats_row(row: stats::StatsRow, by: &[Group]) -> StatsRow {
    let names = by.iter().map(|group| group.as_str().to_owned());
    StatsRow {
        group: names
            .zip(row.key)
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
        jobs: row.counts.into_iter().collect(),
        wait: row.wait.map(|wait| Wait {
            starts: wait.starts,
            p50_seconds: wait.p50,
            p90_seconds: wait.p90,
            max_seconds: wait.max,
        }),
        costs: row
            .costs
            .into_iter()
            .map(|(currency, micros)| Money { micros, currency })
            .collect(),
    }
}

fn summary(summary: &Summary) -> RunSummary {
    RunSummary {
        display_id: summary.display_id.clone(),
        name: summary.name.clone(),
        user: summary.user.clone(),
        account: summary.account.clone(),
        partition: summary.partition.clone(),
        state: summary.state.clone(),
        submitted: summary.submitted.map(timestamp),
        started: summary.started.map(timestamp),
        ended: summary.ended.map(timestamp),
        exit_code: summary
            .exit_code
            .map(|ExitCode { code, signal }| v1::ExitCode { code, signal }),
        cost: summary.cost.as_ref().map(|cost| RunCost {
            kind: cost.kind.as_str().to_owned(),
            amount: Some(Money {
                micros: cost.micros,
                currency: cost.currency.clone(),
            }),
        }),
    }
}
