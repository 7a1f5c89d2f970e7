//! Decides what becomes of an end that only a doorbell reports, once accounting has answered.

use std::time::Duration;

use crate::domain::{Observation, RECORD_DELAY, payload, without_names};

/// Answers without a record that prove its absence, if accounting was asked for the last one [`RECORD_DELAY`] after the first.
pub(super) const MAX_ANSWERS: u32 = 4;

/// Maximum lead of the clock of slurmctld's host over the local clock, in seconds.
const CLOCK_SKEW_SECONDS: i64 = 60;

/// Verdict on a reported end.
#[derive(Debug)]
pub(super) enum EndVerdict {
    /// Accounting has an end of this run, and that one is published.
    Recorded,
    /// Accounting may have an end soon.
    Open,
    /// A record knows the run, but none has its end; or accounting is disabled. Published as inferred.
    Inferred(Box<Observation>),
    Refused,
}

/// What is known of a run apart from its doorbell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Records<'a> {
    /// Accounting's rows; `None` if accounting is disabled.
    pub(super) rows: Option<&'a [Observation]>,
    /// Whether accounting has a stand-in row of the job.
    pub(super) has_stand_in: bool,
    /// Whether a record has shown the run.
    pub(super) was_observed: bool,
    /// Whether doorbells report different ends of it.
    pub(super) is_disputed: bool,
    /// Number of answers from accounting so far.
    pub(super) answers: u32,
    /// Time between the requests of the first and the last answer.
    pub(super) waited: Duration,
    /// Unix seconds.
    pub(super) now: i64,
}

pub(super) fn judge(end: &Observation, records: Records<'_>) -> EndVerdict {
    let row = records.rows.and_then(|rows| {
        let mut same = rows.iter().filter(|row| is_same_run(row, end));
        same.next()
    });
    if row.is_some_and(|row| row.end_kind().is_some()) {
        return EndVerdict::Recorded;
    }
    let is_early = records.answers < MAX_ANSWERS || records.waited < RECORD_DELAY;
    if records.rows.is_some() && is_early {
        return EndVerdict::Open;
    }
    let mut end = end.clone();
    match row {
        _ if records.is_disputed => EndVerdict::Refused,
        Some(row) => {
            end = without_names(end);
            end.owner = row.owner.clone();
            payload::fill(&mut end.job, &row.job);
            EndVerdict::Inferred(Box::new(end))
        }
        // A reported run that no record has shown and that ends in the future could be mistaken for a later run.
        None if end
            .end
            .is_some_and(|at| at > records.now + CLOCK_SKEW_SECONDS) =>
        {
            EndVerdict::Refused
        }
        None if records.was_observed || records.has_stand_in || records.rows.is_none() => {
            EndVerdict::Inferred(Box::new(without_names(end)))
        }
        None => EndVerdict::Refused,
    }
}

pub(super) fn is_same_run(row: &Observation, end: &Observation) -> bool {
    let key = |run: &Observation| (run.run.job_id, run.run.task_id, run.run.submit_time);
    key(row) == key(end)
}

#[cfg(test)]
mod tests {
    use slurm_client::{AccountingRecord, CompletionRecord};
    use slurm_types::{JobId, JobState, UnixTime};

    use super::*;
    use crate::domain::Evidence;
    use mesh_events::proto::mesh::hook::v1::Doorbell;

    fn row(state: &str, submit: i64, end: Option<i64>) -> Observation {
        let row = AccountingRecord {
            job_id: JobId::new(7),
            submit: Some(UnixTime::from_secs(submit)),
            start: Some(UnixTime::from_secs(submit + 10)),
            end: end.map(UnixTime::from_secs),
            nodes: "n1".to_owned(),
            user: "alice".to_owned(),
            account: "physics".to_owned(),
            state: JobState::parse(state),
            ..AccountingRecord::default()
        };
        Observation::from_accounting("c", &row).unwrap()
    }

    fn reported() -> Observation {
        let fields = [
            ("JOBID", "7"),
            ("JOBSTATE", "FAILED"),
            ("SUBMIT", "100"),
            ("START", "110"),
            ("END", "120"),
            ("NODES", "n1"),
            ("USERNAME", "bob"),
            ("ACCOUNT", "ml"),
        ];
        let environment = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let doorbell = Doorbell {
            hook: "JobComp".to_owned(),
            cluster: "c".to_owned(),
            job_id: 7,
            environment: environment.into(),
            ..Doorbell::default()
        };
        assert!(CompletionRecord::from_env(&doorbell.environment).is_ok());
        *Evidence::read("c", &doorbell).unwrap().end.unwrap()
    }

    /// Returns the verdict, and the user that an inferred end names.
    fn check(records: Records<'_>) -> String {
        match judge(&reported(), records) {
            EndVerdict::Inferred(end) => format!("inferred {}", end.owner.user),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    #[test]
    fn runs_without_record_are_refused_without_a_user() {
        let (ended, alive) = (
            [row("COMPLETED", 100, Some(130))],
            [row("RUNNING", 100, None)],
        );
        let another = [row("COMPLETED", 500, Some(530))];
        let records = |rows, answers| Records {
            rows,
            has_stand_in: false,
            was_observed: false,
            is_disputed: false,
            answers,
            waited: RECORD_DELAY,
            now: 1_000,
        };
        let observed = |records| Records {
            was_observed: true,
            ..records
        };
        assert_eq!(check(records(Some(&ended), 1)), "recorded");
        assert_eq!(check(records(Some(&alive), 3)), "open");
        assert_eq!(check(records(Some(&alive), 4)), "inferred alice");
        let early = Records {
            waited: RECORD_DELAY / 2,
            ..records(Some(&alive), 9)
        };
        assert_eq!(check(early), "open");
        assert_eq!(check(records(Some(&another), 3)), "open");
        assert_eq!(check(records(Some(&another), 4)), "refused");
        assert_eq!(check(observed(records(Some(&another), 4))), "inferred ");
        assert_eq!(check(records(None, 1)), "inferred ");
        let disputed = Records {
            is_disputed: true,
            ..observed(records(Some(&alive), 4))
        };
        assert_eq!(check(disputed), "refused");
        let has_stand_in = Records {
            has_stand_in: true,
            ..records(Some(&[]), 4)
        };
        assert_eq!(check(has_stand_in), "inferred ");
        let early = Records {
            now: 50,
            ..records(None, 1)
        };
        assert_eq!(check(early), "refused");
    }
}
