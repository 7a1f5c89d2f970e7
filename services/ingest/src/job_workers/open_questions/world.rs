//! Questions, and what happens while they are open.

use std::ops::Range;

use mesh_events::RunKey;
use proptest::prelude::*;
use proptest::sample::select;

/// Virtual seconds between two steps. A poll takes place in each.
pub(super) const STEP: u64 = 15;
/// Steps for which the epilogs of a run take: longer than any answer of accounting.
pub(super) const EPILOG_STEPS: u64 = 60;
/// Steps for which the next run of [`Kind::ShortNextRun`] runs, and then until slurmctld has purged it.
pub(super) const NEXT_RUN_STEPS: u64 = 4;
pub(super) const PURGE_STEPS: u64 = 24;
/// Steps before the question during which slurmctld does not have the run for the first time.
pub(super) const LOST_AT_FIRST: Range<u64> = 20..40;
/// Steps between the task of [`Kind::LaterTask`] and the one that left its array before.
pub(super) const WAVE_STEPS: u64 = 10;
/// Steps that slurmctld needs to report what happened during an outage of accounting.
const REPORT_STEPS: u64 = 2;
/// Steps with faults.
const FAULTY_STEPS: usize = 100;
/// Steps until every question has ended.
const STEPS: usize = 220;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// How did a run end that slurmctld does not have any more?
    End,
    /// How did the run end before the one that waits?
    EarlierEnd,
    /// What became of a task that left its array?
    Task,
    /// What became of a task that left its array while another one was waited for?
    LaterTask,
    /// What became of an array?
    Array,
    /// What did a run use?
    Usage,
    /// Who cancelled a job that waited?
    Canceller,
    /// What became of a job that no poll has shown?
    UnseenId,
    /// How did a run end whose record hides it, while a doorbell says it?
    ReportedEnd,
    /// The same of the run before the one that waits.
    ReportedEarlierEnd,
    /// Which tasks was an array submitted with?
    SubmittedTasks,
    /// With which exit code did a run end that slurmctld still cleans up, and whose row has none?
    ExitCode,
    /// How did the run end before the first one that was seen?
    UnseenEarlierEnd,
    /// What became of the run after it, which slurmctld has purged since? No poll could publish it while the end of the one before was
    /// looked up.
    ShortNextRun,
    /// What did a run hold when it started, of which the first record is that after a resize?
    Resized,
    /// How did a run end that slurmctld does not have any more, and did not have for a while earlier?
    LostTwice,
}

pub(super) const KINDS: [Kind; 15] = [
    Kind::End,
    Kind::EarlierEnd,
    Kind::Task,
    Kind::Array,
    Kind::Usage,
    Kind::Canceller,
    Kind::UnseenId,
    Kind::ReportedEnd,
    Kind::ReportedEarlierEnd,
    Kind::SubmittedTasks,
    Kind::ExitCode,
    Kind::UnseenEarlierEnd,
    Kind::ShortNextRun,
    Kind::Resized,
    Kind::LaterTask,
];

#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) kind: Kind,
    pub(super) id: u32,
    /// Number of the poll from which on it is open.
    pub(super) opens: u64,
    /// How long accounting needs for the answer, in polls; `None` if it never has one.
    pub(super) answer: Option<u64>,
    /// Whether accounting lists the run as not ended until then.
    pub(super) alive: bool,
}

impl Question {
    /// Seconds that it, the `n`th, was open until a poll, as far as its source answered about it. What only accounting has waits while accounting is away,
    /// which is an event of its own, and from the first answer after a restart on.
    pub(super) fn age(&self, n: usize, until: u64, steps: &[Step]) -> u64 {
        let counts = |pair: &[Step]| match self.kind {
            Kind::Usage
            | Kind::Canceller
            | Kind::UnseenId
            | Kind::SubmittedTasks
            | Kind::ShortNextRun => pair
                .iter()
                .all(|step| step.slurmdbd && step.restart == Restart::No),
            Kind::ExitCode => pair[1].slurmctld && pair[1].slurmdbd,
            _ => pair[1].slurmctld && !pair[1].leaves_out(n),
        };
        let open = (1..until).zip(steps.windows(2));
        let since = match self.kind {
            Kind::ShortNextRun => self.opens + PURGE_STEPS,
            _ => self.opens,
        };
        let counted = open.filter(|(poll, pair)| *poll >= since && counts(pair));
        u64::try_from(counted.count()).unwrap() * STEP
    }

    /// The bound of its age.
    pub(super) const fn limit(&self) -> u64 {
        match self.kind {
            // slurmctld has the run until its epilogs have ended.
            Kind::ExitCode if self.answer.is_none() => (EPILOG_STEPS + 3) * STEP,
            _ => 600,
        }
    }

    pub(super) const fn is_open(&self, poll: u64) -> bool {
        poll >= self.opens
    }

    pub(super) fn is_answered(&self, poll: u64) -> bool {
        self.answer
            .is_some_and(|answer| poll >= self.opens + answer)
    }

    /// Whether accounting has a row of a job that was not seen while it is looked up.
    pub(super) const fn is_found(&self) -> bool {
        self.answer.is_some() || self.alive
    }

    pub(super) fn run(&self, submit: i64) -> RunKey {
        RunKey {
            cluster: String::new(),
            job_id: self.id,
            task_id: None,
            submit_time: submit,
            attempt: 0,
        }
    }
}

/// What happens at one poll.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Whether slurmctld answers.
    pub(super) slurmctld: bool,
    /// Whether accounting answers.
    pub(super) slurmdbd: bool,
    /// Jobs that the list of this poll leaves out, as a bit per question.
    pub(super) left_out: u64,
    pub(super) restart: Restart,
}

impl Step {
    /// Whether the list of this poll leaves out the `n`th question's job.
    pub(super) const fn leaves_out(&self, n: usize) -> bool {
        n < 64 && self.left_out & (1 << n) != 0
    }

    pub(super) const QUIET: Self = Self {
        slurmctld: true,
        slurmdbd: true,
        left_out: 0,
        restart: Restart::No,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    No,
    /// After everything was stored.
    Orderly,
    /// At any point.
    Crash,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) questions: Vec<Question>,
    pub(super) steps: Vec<Step>,
    /// Polls during which accounting is away without a break.
    pub(super) outage: Option<Range<u64>>,
    /// Polls during which lists of all jobs end at an id, and that id.
    pub(super) cut: Option<(Range<u64>, u32)>,
    /// Missing jobs that the client reads by id; it only finds the others unlisted.
    pub(super) by_id: usize,
}

impl World {
    pub(super) fn new(
        questions: Vec<Question>,
        mut steps: Vec<Step>,
        outage: Option<Range<u64>>,
    ) -> Self {
        // The first poll shows every run.
        steps[0] = Step::QUIET;
        steps.resize(STEPS, Step::QUIET);
        for (poll, step) in (0..).zip(&mut steps) {
            step.slurmdbd &= !outage.as_ref().is_some_and(|outage| outage.contains(&poll));
        }
        Self {
            questions,
            steps,
            outage,
            cut: None,
            by_id: 16,
        }
    }

    /// The poll whose state accounting has at a poll: after an outage, slurmctld has still to report what happened meanwhile.
    pub(super) fn reported(&self, poll: u64) -> u64 {
        let outage = self.outage.as_ref();
        let is_behind =
            |outage: &&Range<u64>| (outage.start..outage.end + REPORT_STEPS).contains(&poll);
        outage
            .filter(is_behind)
            .map_or(poll, |outage| outage.start - 1)
    }
}

fn questions() -> impl Strategy<Value = Vec<Question>> {
    let question = (
        1..20u64,
        prop::option::weighted(0.5, 0..36u64),
        any::<bool>(),
    );
    let questions = prop::collection::vec(question, 2 * KINDS.len());
    questions.prop_map(|all| {
        let all = (1_001..).zip(all).enumerate();
        let mut questions: Vec<Question> = all
            .map(|(n, (id, (opens, answer, alive)))| {
                let kind = KINDS[n % KINDS.len()];
                // An array is read by the first poll.
                let opens = if kind == Kind::SubmittedTasks {
                    0
                } else {
                    opens
                };
                Question {
                    kind,
                    id,
                    opens,
                    answer,
                    alive,
                }
            })
            .collect();
        // Slurm assigns ids in the order of submissions. The next id is that of a job that polls do show.
        let unseen = questions
            .iter_mut()
            .filter(|question| question.kind == Kind::UnseenId);
        let mut unseen: Vec<&mut Question> = unseen.collect();
        unseen.sort_by_key(|question| question.opens);
        for (id, question) in (2_000..).step_by(10).zip(unseen) {
            question.id = id;
            // An id is looked up for 300 s. One without any row is no job that anybody knows of, and no gap.
            let latest = if question.alive { 35 } else { 18 };
            question.answer = question.answer.map(|answer| answer.min(latest));
        }
        questions
    })
}

pub(super) fn worlds() -> impl Strategy<Value = World> {
    // slurmdbd answers always, mostly or rarely; ingest restarts never, or every minute or two.
    let faults = (select(vec![0.0, 0.1, 0.5]), select(vec![0, 0, 1]));
    let steps = faults.prop_flat_map(move |(failing, restarts)| {
        let restart = prop_oneof![
            8 => Just(Restart::No),
            restarts => Just(Restart::Orderly),
            restarts => Just(Restart::Crash),
        ];
        let step = (
            prop::bool::weighted(0.95),
            prop::bool::weighted(1.0 - failing),
            any::<u64>(),
            any::<u64>(),
            any::<u64>(),
            restart,
        );
        let step = step.prop_map(|(slurmctld, slurmdbd, a, b, c, restart)| Step {
            slurmctld,
            slurmdbd,
            left_out: a & b & c,
            restart,
        });
        prop::collection::vec(step, FAULTY_STEPS)
    });
    let outage = (2..40u64, 20..70u64).prop_map(|(from, polls)| from..from + polls);
    let outage = prop::option::of(outage);
    let by_id = select(vec![1, 16]);
    let world = (questions(), steps, outage, by_id);
    world.prop_map(|(questions, steps, outage, by_id)| World {
        by_id,
        ..World::new(questions, steps, outage)
    })
}
