//! Licenses: how many are free, and who holds the others.

use chrono::DateTime;
use mesh_events::proto::mesh::queue::v1::{Blocker, Release};
use mesh_events::timestamp;
use slurm_types::{Actor, ReasonClass};

use super::request::licenses;
use super::{Evidence, PendingCause, Request, blocker};
use crate::domain::reason_text::{count, moment, name, verb};

/// The first license that is not free in the number that the job asks for.
pub fn finding(request: &Request<'_>, evidence: &Evidence) -> Option<PendingCause> {
    let (requested, number, license) =
        request.licenses.iter().find_map(|(requested, number)| {
            let license = evidence.licenses.get(*requested)?;
            let in_use = license.used + license.reserved;
            (in_use + number > license.total).then_some((*requested, *number, license))
        })?;
    let mut blocker = Blocker {
        have: Some(license.used),
        most: Some(license.total),
        need: Some(number),
        missing: Some((license.used + license.reserved + number).saturating_sub(license.total)),
        ..blocker(evidence, "license", requested, "licenses")
    };
    let what = name(requested);
    if number > license.total {
        return Some(
            PendingCause::new(
                ReasonClass::License,
                Actor::User,
                format!(
                    "It can never start like this: it needs {}, and the cluster has {}.",
                    count(
                        number,
                        &format!("{what} license"),
                        &format!("{what} licenses")
                    ),
                    license.total
                ),
                "Ask for fewer licenses (scontrol update jobid=JOB Licenses=…).",
            )
            .blocked_by([blocker]),
        );
    }
    let mut holders: Vec<_> = evidence
        .running
        .iter()
        .filter_map(|job| {
            let held = licenses(&job.licenses);
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
    let reserved = match license.reserved {
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
    let mut finding = PendingCause::new(
        ReasonClass::License,
        Actor::Wait,
        format!(
            "It needs {number} of {} {what} licenses; {} {} in use{by}{reserved}.",
            license.total,
            license.used,
            verb(license.used)
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
