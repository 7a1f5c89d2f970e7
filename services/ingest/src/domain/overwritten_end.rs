//! The end of a finished job that was requeued. Accounting's row then has state REQUEUED and the time of the requeue (22.05 and 24.11;
//! 26.05 keeps the row).
//!
//! The batch step of such a run ended earlier, and has the time of the end. The batch step of a run that was requeued while it ran ends with
//! the requeue or after it. Both times come from slurmctld. Within one second they do not show which came first, and neither does jobcomp's
//! report of the requeue, which has the same times for both (22.05).

use mesh_events::proto::mesh::job::v1::ExitCode;
use slurm_types::JobBaseState;

use super::batch_step_end::{BatchStepEnd, ROUNDING_SECONDS};
use super::observation::Observation;
use super::payload;

/// Amount that sacct of 22.05 subtracts from exit codes above 127.
const SACCT_EXIT_CODE_LOSS: u8 = 128;

impl BatchStepEnd {
    /// Whether the run certainly ended before it was requeued.
    pub fn is_before_requeue(&self, row: &Observation) -> bool {
        self.seconds_before(row.end) > 0
    }

    /// Whether the run may have ended before it was requeued: its batch step ended by itself in that second. The row of a run that failed
    /// before has its exit code; that of a run which was requeued while it ran has none (22.05).
    pub fn may_be_before_requeue(&self, row: &Observation) -> bool {
        let is_zero = |code: &ExitCode| (code.code, code.signal) == (0, 0);
        match self.base {
            Some(JobBaseState::Completed) => true,
            Some(_) => !row.job.exit_code.as_ref().is_some_and(is_zero),
            None => false,
        }
    }

    /// Whether row and step confirm the end that jobcomp reports.
    pub fn is_confirmed_by(&self, row: &Observation, end: &Observation) -> bool {
        let same_run = (&end.run, end.start) == (&row.run, row.start);
        let same_user =
            end.owner.uid.is_none() || row.owner.uid.is_none() || end.owner.uid == row.owner.uid;
        // A step does not know why it was stopped.
        let same_state = match self.base {
            Some(base) => end.base == Some(base) || end.base == Some(JobBaseState::Timeout),
            None => true,
        };
        let codes = row.job.exit_code.as_ref().zip(end.exit_code);
        let same_code = codes.is_none_or(|(row, end)| {
            let lost = end.exit.checked_sub(SACCT_EXIT_CODE_LOSS);
            [Some(end.exit), lost].contains(&u8::try_from(row.code).ok())
        });
        let in_time = end
            .end
            .is_some_and(|at| self.at <= at + ROUNDING_SECONDS && Some(at) <= row.end);
        let is_end = !end.requeued && end.end_kind().is_some();
        is_end && same_run && same_user && same_state && same_code && in_time
    }
}

impl Observation {
    /// Marks the end of a requeued run whose steps could not be read: the row does not show whether the run had ended before.
    pub const fn with_unread_steps(mut self) -> Self {
        self.end_is_inferred = true;
        self
    }

    /// True if its steps could not be read.
    pub const fn has_unread_steps(&self) -> bool {
        self.end_is_inferred && self.own_end.is_none()
    }

    /// Replaces an overwritten end with that of the batch step. If the step does not show how the run ended, it is published as requeued,
    /// at the time of that end. If both were in one second, it is published as requeued, and marked as inferred.
    pub fn with_own_end(mut self) -> Self {
        let Some(own) = self.own_end.take() else {
            return self;
        };
        self.end_is_inferred = true;
        if !own.is_before_requeue(&self) {
            return self;
        }
        if let Some(base) = own.base {
            self.base = Some(base);
            self.requeued = false;
            base.name().clone_into(&mut self.job.state);
        }
        self.end = Some(own.at);
        self.job.end_time = Some(payload::seconds(own.at));
        self.ended_by_hook = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use slurm_client::{AccountingRecord, StepUsage};
    use slurm_types::{JobId, JobState, UnixTime};

    use super::*;

    fn row(state: &str, end: i64) -> AccountingRecord {
        AccountingRecord {
            job_id: JobId::new(9),
            state: JobState::parse(state),
            submit: Some(UnixTime::from_secs(100)),
            start: Some(UnixTime::from_secs(110)),
            end: Some(UnixTime::from_secs(end)),
            nodes: "n1".to_owned(),
            exit_code: "72:0".parse().ok(),
            uid: Some(7),
            ..AccountingRecord::default()
        }
    }

    fn batch(state: JobBaseState, end: i64) -> [StepUsage; 1] {
        [StepUsage {
            id: "batch".to_owned(),
            end: Some(UnixTime::from_secs(end)),
            state: Some(state),
            ..StepUsage::default()
        }]
    }

    /// Rows as printed by 22.05.8, 24.11.5 and 26.05 for jobs that were requeued while they ran: one dies from it, one ends by itself
    /// meanwhile, one must be killed.
    #[test]
    fn a_run_that_was_requeued_while_it_ran_has_no_end_of_its_own() {
        let row = row("REQUEUED", 130);
        let observation = Observation::from_accounting("c", &row).unwrap();
        for (state, end) in [
            (JobBaseState::Cancelled, 130),
            (JobBaseState::Failed, 130),
            (JobBaseState::Cancelled, 135),
        ] {
            let own = BatchStepEnd::of(&row, &batch(state, end));
            assert!(
                !own.is_some_and(|own| own.is_before_requeue(&observation)),
                "{state:?} {end}"
            );
        }
    }

    #[test]
    fn a_run_that_was_over_before_it_was_requeued_has_the_end_of_its_step() {
        let row = row("REQUEUED", 130);
        let observation = Observation::from_accounting("c", &row).unwrap();
        for (state, previous) in [
            (JobBaseState::Failed, "job.failed"),
            (JobBaseState::Completed, "job.completed"),
            (JobBaseState::Cancelled, "job.requeued"),
        ] {
            let own = BatchStepEnd::of(&row, &batch(state, 120)).unwrap();
            assert!(own.is_before_requeue(&observation));
            let ended = Observation {
                own_end: Some(own),
                ..observation.clone()
            };
            let ended = ended.with_own_end();
            assert_eq!(ended.end_kind().unwrap().to_string(), previous);
            assert_eq!((ended.end, ended.end_is_inferred), (Some(120), true));
        }
        assert_eq!(
            BatchStepEnd::of(&self::row("FAILED", 130), &batch(JobBaseState::Failed, 120)),
            None
        );
    }

    #[test]
    fn a_requeue_whose_steps_were_not_read_is_inferred() {
        let observation = Observation::from_accounting("c", &row("REQUEUED", 130)).unwrap();
        assert!(!observation.clone().with_own_end().end_is_inferred);
        let unread = observation.clone().with_unread_steps();
        let published = unread.clone().with_own_end();
        assert_eq!(published.end_kind().unwrap().to_string(), "job.requeued");
        assert_eq!(
            (published.end, published.end_is_inferred),
            (Some(130), true)
        );
        // The steps that an earlier answer had.
        let own = BatchStepEnd::of(&row("REQUEUED", 130), &batch(JobBaseState::Failed, 120));
        let published = Observation {
            own_end: own,
            ..unread
        }
        .with_own_end();
        assert_eq!(published.end_kind().unwrap().to_string(), "job.failed");
        assert_eq!(
            (published.end, published.end_is_inferred),
            (Some(120), true)
        );
    }

    /// Rows as printed by 22.05.8 for jobs that were requeued while they ran, and in the second of their end.
    #[test]
    fn a_requeue_in_the_second_of_an_end_is_inferred_if_the_end_may_have_come_first() {
        for (code, state, may_be_before) in [
            ("0:0", JobBaseState::Completed, true),
            ("3:0", JobBaseState::Failed, true),
            ("0:0", JobBaseState::Failed, false),
            ("0:0", JobBaseState::Cancelled, false),
            // Over REST, 22.05 has no exit code.
            ("", JobBaseState::Failed, true),
        ] {
            let row = AccountingRecord {
                exit_code: code.parse().ok(),
                ..row("REQUEUED", 130)
            };
            let observation = Observation::from_accounting("c", &row).unwrap();
            for end in [129, 130] {
                let own = BatchStepEnd::of(&row, &batch(state, end)).unwrap();
                assert_eq!(
                    own.may_be_before_requeue(&observation),
                    may_be_before,
                    "{code} {state:?}"
                );
                let ended = Observation {
                    own_end: Some(own),
                    ..observation.clone()
                };
                let ended = ended.with_own_end();
                assert_eq!(ended.end_kind().unwrap().to_string(), "job.requeued");
                assert_eq!((ended.end, ended.end_is_inferred), (Some(130), true));
            }
        }
    }

    #[test]
    fn jobcomp_reports_the_end_unless_row_and_step_contradict_it() {
        let row = row("REQUEUED", 130);
        let observation = Observation::from_accounting("c", &row).unwrap();
        let own = BatchStepEnd::of(&row, &batch(JobBaseState::Failed, 120)).unwrap();
        let end = Observation {
            base: Some(JobBaseState::Failed),
            requeued: false,
            end: Some(120),
            exit_code: "200:0".parse().ok(),
            ..observation.clone()
        };
        assert!(own.is_confirmed_by(&observation, &end));
        type Change = fn(&mut Observation);
        let changes: [Change; 6] = [
            |end| end.base = Some(JobBaseState::Completed),
            |end| end.exit_code = "0:0".parse().ok(),
            |end| end.end = Some(115),
            |end| end.end = Some(131),
            |end| end.start = Some(111),
            |end| end.owner.uid = Some(8),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut end = end.clone();
            change(&mut end);
            assert!(!own.is_confirmed_by(&observation, &end), "lie {number}");
        }
    }
}
