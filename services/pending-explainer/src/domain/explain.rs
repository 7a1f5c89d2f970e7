//! Builds the explanation of a pending job.
//!
//! 1. Recognise the reason: the free text if Slurm prints one instead of the reason, else the keyword. The row of the newest queue
//!    snapshot takes precedence over the record of an older event.
//! 2. Judge by the evidence ([`judge`](super::judge)). Where that is missing, take the sentence and the advice from the free text ([`description`]), the limit ([`limit`](super::limit)) or the keyword
//!    ([`reason`](super::reason)), in this order. A text that no table contains is quoted.
//! 3. The expected start is Slurm's own plan, or a stated cause why there is none ([`estimate`](super::estimate)).

use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::queue::v1::{Calibration, Explanation};
use mesh_events::timestamp;
use slurm_types::reasons::Match;
use slurm_types::{Actor, Reason, ReasonClass};

use super::judge::PendingCause;
use super::pending_job::PendingJob;
use super::queue::QueuePosition;
use super::reason_text::{MAX_SUMMARY_CHARS, ReasonText, clip, moment, name};
use super::{confidence, description, estimate, judge, limit, reason};

/// Recognises the reason of a pending job.
pub fn recognise(job: &Job, position: Option<QueuePosition<'_>>) -> Match {
    let newest = position
        .map(|position| position.row.reason.trim())
        .filter(|text| !text.is_empty());
    let recorded = if job.reason_description.trim().is_empty() {
        &job.reason
    } else {
        &job.reason_description
    };
    let text = newest.unwrap_or(recorded);
    // squeue prints "None" or nothing for a job that the scheduler has not considered yet.
    Reason::lookup(if text.trim().is_empty() { "None" } else { text })
}

/// Why a job waits: by the evidence, else by the sentences of the reason table.
pub fn judge(found: &Match, waiting: &PendingJob<'_>) -> PendingCause {
    let by_evidence = waiting
        .view
        .evidence
        .and_then(|evidence| judge::finding(found, waiting, evidence));
    by_evidence.unwrap_or_else(|| {
        let reason_text = reason_text(found, waiting);
        let actor = found.actor().unwrap_or(Actor::Admin);
        PendingCause {
            class: found.class(),
            actor,
            summary: reason_text.summary,
            advice: reason_text.advice,
            evidence: reason_text.evidence,
            blockers: Vec::new(),
            frees: Vec::new(),
            limit: found.row.map_or("", |row| row.limit).to_owned(),
            needs_act: actor != Actor::Wait && found.class() != ReasonClass::Failure,
        }
    })
}

/// Explains why a job is pending, who can act, and until when.
pub fn explain(waiting: &PendingJob<'_>) -> Explanation {
    let found = recognise(waiting.job, waiting.position);
    let finding = judge(&found, waiting);
    let estimate = estimate::of(&finding, waiting);
    let mut summary = finding.summary;
    // The texts of some reasons already contain the start. Otherwise it is appended if the length limit allows.
    if let Some(start) = estimate.start {
        let sentence = format!(" Slurm plans its start for {}.", moment(start, waiting.now));
        append(&mut summary, &sentence);
    }
    let evidence = waiting.view.evidence;
    let row = found.row.filter(|row| row.limit == finding.limit);
    let mut explanation = Explanation {
        summary: clip(&summary, MAX_SUMMARY_CHARS),
        reason_class: finding.class.to_string(),
        reason: clip(found.reason(), MAX_SUMMARY_CHARS),
        actor: finding.actor.as_str().to_owned(),
        // The texts name the job as JOB, so that they stay constant. Replaced here, so that the user can paste the command.
        advice: clip(
            &finding
                .advice
                .replace("JOB", &name(&waiting.job.display_id)),
            MAX_SUMMARY_CHARS,
        ),
        limit_source: row
            .filter(|row| !row.limit.is_empty())
            .map_or("", |row| row.limit_source)
            .to_owned(),
        limit: finding.limit,
        expected_start: estimate.start.map(timestamp),
        no_estimate_because: estimate.none_because.to_owned(),
        method: if estimate.start.is_some() {
            "slurm-plan".to_owned()
        } else {
            String::new()
        },
        evidence: finding.evidence,
        stage: "waiting".to_owned(),
        needs_act: finding.needs_act,
        blockers: finding.blockers,
        frees: finding.frees,
        changed: Vec::new(),
        priority_parts: evidence.map_or_else(Vec::new, |evidence| {
            evidence.priority(waiting.job.job_id).to_vec()
        }),
        confidence_note: confidence::of_waiting(waiting),
        ..Explanation::default()
    };
    if let Some(estimate) = waiting.view.estimate(&waiting.job.run, &explanation) {
        append(&mut explanation.summary, &estimate.sentence(waiting.now));
        explanation.start_p10 = estimate.start_p10.map(timestamp);
        explanation.start_p50 = estimate.start_p50.map(timestamp);
        explanation.start_p90 = estimate.start_p90.map(timestamp);
        estimate.method.clone_into(&mut explanation.estimate_method);
        let calibration = &estimate.calibration;
        explanation.calibration = Some(Calibration {
            class: calibration.class.to_owned(),
            n: calibration.n,
            covered_p90: calibration.covered_p90,
        });
    }
    explanation
}

fn append(summary: &mut String, sentence: &str) {
    if summary.chars().count() + sentence.chars().count() <= MAX_SUMMARY_CHARS {
        summary.push_str(sentence);
    }
}

fn reason_text(found: &Match, waiting: &PendingJob<'_>) -> ReasonText {
    description::reason_text(found, waiting)
        .or_else(|| limit::reason_text(found.row?, waiting))
        .or_else(|| reason::reason_text(found.row?.reason, waiting))
        .or_else(|| {
            // The row is newer than these sentences, so the table's own text is used.
            let row = found.row?;
            Some(ReasonText { summary: row.meaning.to_owned(), advice: row.advice.to_owned(), evidence: Vec::new() })
        })
        .unwrap_or_else(|| ReasonText {
            summary: format!("Slurm gives a reason that is not in the reason table: \"{}\".", name(&found.text)),
            advice: "Ask an administrator what it means here, and tell the maintainers of slurm-mesh about it.".to_owned(),
            evidence: Vec::new(),
        })
}

#[cfg(test)]
mod tests;
