//! Entries as a CSV table for spreadsheets.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, from_timestamp};
use mesh_runtime::api::Problem;
use mesh_runtime::harmless_cell;

use super::fields::Fields;
use super::json::{self, time};
use super::{Entry, EntryContent};

/// Default columns.
const COLUMNS: [&str; 20] = [
    "seq",
    "id",
    "cluster",
    "type",
    "occurred_at",
    "user",
    "account",
    "identity",
    "job",
    "run",
    "name",
    "partition",
    "state",
    "exit_code",
    "signal",
    "nodes",
    "submitted",
    "started",
    "ended",
    "cost",
];

pub(super) struct Table {
    fields: Option<Fields>,
}

impl Table {
    /// Creates a table with the default columns, or with the given fields.
    pub(super) const fn new(fields: Option<Fields>) -> Self {
        Self { fields }
    }

    /// Returns the header line.
    pub(super) fn header(&self) -> Result<Vec<u8>, Problem> {
        let mut text = Vec::new();
        match &self.fields {
            None => row(COLUMNS.map(str::to_owned).to_vec(), &mut text)?,
            Some(fields) => row(fields.columns().collect(), &mut text)?,
        }
        Ok(text)
    }

    /// Appends the row of an entry.
    pub(super) fn write(&self, entry: &Entry, text: &mut Vec<u8>) -> Result<(), Problem> {
        let cells = match (&self.fields, &entry.content) {
            (Some(fields), _) => fields.cells(entry.seq, &json::event(entry)?),
            (None, EntryContent::Event(event)) => cells(entry.seq, event),
            (None, EntryContent::Audit(audit)) => {
                let mut cells = vec![String::new(); COLUMNS.len()];
                cells[0] = entry.seq.to_string();
                cells[1].clone_from(&audit.id);
                cells[2].clone_from(&audit.cluster);
                cells[3] = format!("audit.{}", audit.kind);
                cells[4] = time(audit.at.as_ref().and_then(from_timestamp)).unwrap_or_default();
                cells
            }
        };
        row(cells.into_iter().map(harmless_cell).collect(), text)
    }
}

fn cells(seq: u64, event: &Event) -> Vec<String> {
    let none = Job::default();
    let job = event.job();
    let moment = |of: fn(&Job) -> &Option<_>| {
        time(
            job.and_then(|job| of(job).as_ref())
                .and_then(from_timestamp),
        )
        .unwrap_or_default()
    };
    let owner = event.owner.clone().unwrap_or_default();
    let identity = owner.identity.unwrap_or_default();
    let person = if identity.email.is_empty() {
        identity.subject
    } else {
        identity.email
    };
    let exit = job.and_then(|job| job.exit_code);
    let job_fields = job.unwrap_or(&none);
    let node = match &event.payload {
        Some(Payload::Node(payload)) => payload.node.as_ref(),
        _ => None,
    };
    vec![
        seq.to_string(),
        event.id.clone(),
        event.cluster.clone(),
        event.r#type.clone(),
        time(event.occurred_at.as_ref().and_then(from_timestamp)).unwrap_or_default(),
        owner.user,
        owner.account,
        person,
        job_fields.display_id.clone(),
        job_fields.run.clone(),
        job_fields.name.clone(),
        job_fields.partition.clone(),
        node.map_or(&job_fields.state, |node| &node.state).clone(),
        exit.map(|exit| exit.code.to_string()).unwrap_or_default(),
        exit.map(|exit| exit.signal.to_string()).unwrap_or_default(),
        node.map_or(&job_fields.nodes, |node| &node.name).clone(),
        moment(|job| &job.submit_time),
        moment(|job| &job.start_time),
        moment(|job| &job.end_time),
        cost(event),
    ]
}

/// Formats a final cost without rounding: `1.250000 EUR`.
fn cost(event: &Event) -> String {
    let Some(Payload::Cost(cost)) = &event.payload else {
        return String::new();
    };
    cost.total.as_ref().map_or_else(String::new, |total| {
        let sign = if total.micros < 0 { "-" } else { "" };
        let micros = total.micros.unsigned_abs();
        format!(
            "{sign}{}.{:06} {}",
            micros / 1_000_000,
            micros % 1_000_000,
            total.currency
        )
    })
}

fn row(cells: Vec<String>, text: &mut Vec<u8>) -> Result<(), Problem> {
    let mut writer = csv::Writer::from_writer(text);
    writer
        .write_record(cells)
        .and_then(|()| writer.flush().map_err(csv::Error::from))
        .map_err(|error| Problem::internal(&error))
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};

    use super::*;

    #[test]
    fn a_row_has_as_many_cells_as_there_are_columns() {
        assert_eq!(cells(1, &Event::default()).len(), COLUMNS.len());
    }

    #[test]
    fn costs_are_exact() {
        let of = |micros| {
            cost(&Event {
                payload: Some(Payload::Cost(CostEvent {
                    total: Some(Money {
                        micros,
                        currency: "EUR".into(),
                    }),
                    ..CostEvent::default()
                })),
                ..Event::default()
            })
        };
        assert_eq!(of(1_250_000), "1.250000 EUR");
        assert_eq!(of(-1), "-0.000001 EUR");
    }
}
