//! Asks accounting for what the controller does not tell: the end of a run whose job is in another run already, or that
//! the controller has forgotten.
//!
//! One question at a time, at most one per second, for all jobs together. The end that a doorbell tells, and that neither the controller
//! nor accounting has, is believed in the end, as inferred; but not of a job that no record of Slurm knows although accounting answers.

mod questions;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use slurm_client::{Query, Slurm};
use slurm_types::JobId;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::questions::Questions;
use self::questions::{Open, Question, note};
use crate::codes::{Codes, Completed};
use crate::collector::{Collector, Reading};
use crate::domain::{Sighting, fold, provisional};
use crate::doorbells::{Ring, finish, postpone, refuse};
use crate::envelope::Cause;
use crate::sources::{SlurmSource, Weight, unless_stopped};
use crate::turns::{Turn, Turns};
use crate::{Error, metrics};

/// Answers of accounting without a record before evidence alone is believed: slurmctld tells slurmdbd within a second or two.
const IN_VAIN: u32 = 4;

/// What became of doorbells that only accounting could answer.
const AWAY: &str = "accounting_away";

/// What a dead letter says of the end of a job that only its doorbell knows.
const NOBODY_KNOWS: &str = "no record of Slurm knows this job, neither slurmctld's nor accounting's: forged, or of another cluster";

/// Asks accounting.
pub struct Prover {
    /// Slurm.
    pub slurm: Slurm,
    /// The books.
    pub collector: Collector,
    /// Accounting's health.
    pub slurmdbd: Arc<SlurmSource>,
    /// Whose turn it is to ask accounting.
    pub turns: Arc<Turns>,
    /// Looks at the controller again after an answer.
    pub looks: mpsc::Sender<Ring>,
    /// Stop.
    pub shutdown: CancellationToken,
}

impl Prover {
    /// Answers questions until told to stop.
    ///
    /// # Errors
    /// If another ingest took over.
    pub async fn run(self, mut questions: mpsc::Receiver<Question>) -> Result<(), Error> {
        let mut open: BTreeMap<u32, Open> = BTreeMap::new();
        let mut not_before = Instant::now();
        loop {
            let away = not_before > Instant::now();
            if open.is_empty() || away {
                tokio::select! {
                    () = self.shutdown.cancelled() => return Ok(()),
                    () = sleep_until(not_before), if away => {}
                    question = questions.recv() => match question {
                        Some(question) if away && !question.look => {
                            postpone(question.rings, AWAY);
                        }
                        Some(question) => note(&mut open, question),
                        None => return Ok(()),
                    },
                }
                continue;
            }
            let turn = tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                turn = self.turns.next() => turn,
            };
            while let Ok(question) = questions.try_recv() {
                note(&mut open, question);
            }
            not_before = match self.ask(&mut open, turn).await {
                Ok(pause) => Instant::now() + pause,
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    async fn ask(&self, open: &mut BTreeMap<u32, Open>, turn: Turn<'_>) -> Result<Duration, Error> {
        let ids: Vec<JobId> = open.keys().filter_map(|id| JobId::new(*id)).collect();
        let rows = if self.collector.config.accounting {
            let query = Query::Jobs(ids);
            let answer = unless_stopped(&self.shutdown, self.slurm.accounting(&query)).await?;
            drop(turn);
            match answer {
                Ok(rows) => {
                    self.slurmdbd.up(Weight::Light).await?;
                    rows
                }
                Err(error) => {
                    // Nothing is proven. Doorbells that wait would keep all others from being heard; unproven jobs are settled by
                    // their deadline, and what is not known is owed by catching up.
                    for question in std::mem::take(open).into_values() {
                        postpone(question.rings, AWAY);
                    }
                    return self.slurmdbd.down(Weight::Light, &error).await;
                }
            }
        } else {
            Vec::new()
        };
        let mut sightings = fold(&self.collector.cluster, &rows);
        let stand_ins = provisional(&rows);
        metrics::provisional(stand_ins.len());
        // A stand-in is no answer.
        let asked: BTreeSet<u32> = open
            .keys()
            .copied()
            .filter(|job_id| !stand_ins.contains(job_id))
            .collect();
        let alive = sightings
            .iter()
            .filter(|run| run.end_kind().is_none())
            .map(|run| run.run.clone())
            .collect();
        self.collector.accounting_answered(&asked, &alive).await;
        let mut readings = Vec::new();
        let mut answered = Vec::new();
        let key = |run: &Sighting| (run.run.job_id, run.run.task_id, run.run.submit_time);
        let ended: HashSet<_> = sightings
            .iter()
            .filter(|row| row.end_kind().is_some())
            .map(key)
            .collect();
        for (job_id, question) in open.iter_mut() {
            question.asked += 1;
            for end in &question.evidence {
                let same = sightings.iter_mut().filter(|row| key(row) == key(end));
                same.for_each(|row| row.take_code(end));
            }
            question.evidence.retain(|end| !ended.contains(&key(end)));
            let believed = question.asked >= IN_VAIN || !self.collector.config.accounting;
            let heard_of = !self.collector.config.accounting
                || self.collector.core().await.book.knows(*job_id)
                || sightings.iter().any(|row| row.raw_id == *job_id)
                || stand_ins.contains(job_id);
            if believed && !heard_of && !question.evidence.is_empty() {
                question.evidence.clear();
                tracing::warn!(
                    job.id = job_id,
                    "a hook tells the end of a job that no record of Slurm knows; not believed"
                );
                refuse(question.take_rings(), "unknown", NOBODY_KNOWS);
            } else if believed {
                for end in question.evidence.drain(..) {
                    tracing::warn!(
                        run = end.run.entity_key(),
                        "known from a hook only, told as inferred"
                    );
                    let links = question
                        .rings
                        .iter()
                        .map(|ring| ring.span.clone())
                        .collect();
                    readings.push(Reading {
                        inferred: true,
                        links,
                        ..Reading::new(end)
                    });
                }
            }
            let ask_again = stand_ins.contains(job_id) && question.asked < IN_VAIN;
            if question.evidence.is_empty() && !ask_again {
                answered.push(*job_id);
            }
        }
        // What accounting says of runs that live is no news, and of 22.05 a second old.
        let known = sightings
            .into_iter()
            .filter(|row| row.end_kind().is_some() || !row.resizes.is_empty());
        let known = self.complete(known.collect(), open).await?;
        answered.retain(|job_id| {
            open.get(job_id)
                .is_some_and(|one| one.without_code.is_none())
        });
        let known = self.wanted(known).await;
        self.collector.absorb(&Cause::Accounting, known).await?;
        self.collector
            .absorb(&Cause::Hook("JobComp".to_owned()), readings)
            .await?;
        for job_id in answered {
            if let Some(question) = open.remove(&job_id) {
                finish(question.rings, "answered");
                // A newer run that waited for this proof can be told now.
                if question.look && self.looks.try_send(Ring::look(job_id)).is_err() {
                    metrics::drift("look_dropped");
                }
            }
        }
        Ok(Duration::ZERO)
    }

    /// Completes ends with exit codes that accounting has lost. What slurmctld may still tell is asked for again, for a while.
    async fn complete(
        &self,
        known: Vec<Sighting>,
        open: &mut BTreeMap<u32, Open>,
    ) -> Result<Vec<Sighting>, Error> {
        let codes = Codes {
            slurm: &self.slurm,
            collector: &self.collector,
            shutdown: &self.shutdown,
            again: false,
        };
        let Completed {
            runs: mut told,
            open: waiting,
        } = codes.complete(known).await?;
        let now = Instant::now();
        let since: BTreeMap<u32, Instant> = waiting
            .iter()
            .map(|run| run.raw_id)
            .filter_map(|id| Some((id, open.get(&id)?.without_code.unwrap_or(now))))
            .collect();
        let (wait, give_up): (Vec<Sighting>, Vec<Sighting>) =
            waiting.into_iter().partition(|run| {
                let since = since.get(&run.raw_id);
                since.is_some_and(|since| now - *since < self.collector.config.proof_patience)
            });
        told.extend(give_up);
        let wait: BTreeSet<u32> = wait.iter().map(|run| run.raw_id).collect();
        for (job_id, question) in open {
            let waits = wait.contains(job_id);
            question.without_code = since.get(job_id).copied().filter(|_| waits);
        }
        Ok(told)
    }

    /// Runs that ended before capture began are not told.
    async fn wanted(&self, runs: Vec<Sighting>) -> Vec<Reading> {
        let core = self.collector.core().await;
        let since = core.meta.capture_since;
        runs.into_iter()
            .filter(|run| {
                core.book.get(&run.run).is_some() || run.end.is_some_and(|end| end >= since)
            })
            .map(Reading::new)
            .collect()
    }
}
