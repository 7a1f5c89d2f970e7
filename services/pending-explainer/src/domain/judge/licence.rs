//! Licences: how many are free, and who holds the others.

use chrono::DateTime;
use mesh_events::proto::mesh::queue::v1::{Blocker, Release};
use mesh_events::timestamp;
use slurm_types::{Actor, ReasonClass};

use super::request::licences;
use super::{Evidence, Finding, Request, blocker};
use crate::domain::reason_text::{count, moment, name, verb};

/// The first licence that is not free in the number that the job asks for.
pub fn finding(request: &Request<'_>, evidence: &Evidence) -> Option<Finding> {
    let (requested, number, licence) =
        request.licences.iter().find_map(|(requested, number)| {
            let licence = evidence.licences.get(*requested)?;
            let in_use = licence.used + licence.reserved;
            (in_use + number > licence.total).then_some((*requested, *number, licence))
        })?;
    let mut blocker = Blocker {
        have: Some(licence.used),
        most: Some(licence.total),
        need: Some(number),
        missing: Some((licence.used + licence.reserved + number).saturating_sub(licence.total)),
        ..blocker(evidence, "licence", requested, "licences")
    };
    let what = name(requested);
    if number > licence.total {
        return Some(
            Finding::new(
                ReasonClass::Licence,
                Actor::User,
                format!(
                    "It can never start like this: it needs {}, and the cluster has {}.",
                    count(
                        number,
                        &format!("{what} licence"),
                        &format!("{what} licences")
                    ),
                    licence.total
                ),
                "Ask for fewer licences (scontrol update jobid=JOB Licenses=…).",
            )
            .blocked_by([blocker]),
        );
    }
    let mut holders: Vec<_> = evidence
        .running
        .iter()
        .filter_map(|job| {
            let held = licences(&job.licences);
            let (_, held) = held.into_iter().find(|(held, _)| *held == requested)?;
            Some((job, held))
        })
        .collect();
    holders.sort_by_key(|(job, _)| if job.end > 0 { job.end } else { i64::MAX });
    let own = holders
        .iter()
        .filter(|(job, _)| job.user == request.user)
        .count();
    let by = match (holders.len(), own) {
        (0, _) => String::new(),
        (all, own) if all == own => format!(
            ", by {}",
            count(all as u64, "job of yours", "jobs of yours")
        ),
        (all, 0) => format!(
            ", by {}",
            count(all as u64, "job of others", "jobs of others")
        ),
        (all, own) => format!(", by {all} jobs, {own} of them yours"),
    };
    let reserved = match licence.reserved {
        0 => String::new(),
        reserved => format!(" and {reserved} kept for reservations"),
    };
    let first_end = holders
        .first()
        .map(|(job, _)| job.end)
        .filter(|end| *end > 0);
    let first_end = first_end.and_then(|end| DateTime::from_timestamp(end, 0));
    blocker.until = first_end.map(timestamp);
    let advice = first_end.map_or_else(
        || "It starts when they are given back. Asking for fewer may help.".to_owned(),
        |end| {
            format!(
                "The first is given back by {} at the latest. Asking for fewer may help.",
                moment(end, request.now)
            )
        },
    );
    let mut finding = Finding::new(
        ReasonClass::Licence,
        Actor::Wait,
        format!(
            "It needs {number} of {} {what} licences; {} {} in use{by}{reserved}.",
            licence.total,
            licence.used,
            verb(licence.used)
        ),
        advice,
    )
    .blocked_by([blocker]);
    finding.frees = holders
        .into_iter()
        .take(5)
        .map(|(job, amount)| Release {
            job: if job.user == request.user {
                job.display_id.clone()
            } else {
                String::new()
            },
            amount,
            at_latest: DateTime::from_timestamp(job.end, 0)
                .filter(|_| job.end > 0)
                .map(timestamp),
        })
        .collect();
    Some(finding)
}
