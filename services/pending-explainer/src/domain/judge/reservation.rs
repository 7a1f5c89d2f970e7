//! Reservations: the one that a job asks for, and those of others that its time limit reaches into.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::queue::v1::{Blocker, Reservation};
use mesh_events::timestamp;
use slurm_types::{Actor, HostList, ReasonClass};

use super::partition::admitting;
use super::{Evidence, PendingCause, Request, blocker};
use crate::domain::reason_text::{duration, list, moment, name, named, nodes};

fn time(seconds: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(seconds, 0).filter(|_| seconds > 0)
}

/// The reservation that the job asks for.
pub fn own(request: &Request<'_>, evidence: &Evidence) -> Option<PendingCause> {
    if request.reservation.is_empty() || evidence.failed.contains_key("reservations") {
        return None;
    }
    let requested = named("reservation", request.reservation);
    let found = evidence
        .reservations
        .iter()
        .find(|reservation| reservation.name == request.reservation);
    let Some(reservation) = found else {
        return Some(PendingCause::new(
            ReasonClass::Reservation,
            Actor::User,
            format!("Its {requested} does not exist any more."),
            "Choose another (scontrol update jobid=JOB reservation=NAME), or none, and release it if it is held.",
        ));
    };
    let blockers = [of(reservation, evidence)];
    let listed = |names: &[String], name: &str| names.iter().any(|listed| listed == name);
    let admits = (reservation.users.is_empty() || listed(&reservation.users, request.user))
        && (reservation.accounts.is_empty() || listed(&reservation.accounts, request.account));
    if !admits {
        let who = [
            reservation.users.as_slice(),
            reservation.accounts.as_slice(),
        ]
        .concat();
        return Some(
            PendingCause::new(
                ReasonClass::Reservation,
                Actor::User,
                format!("Its {requested} is for others: {}.", list(&who, 4)),
                "Ask its owner to admit you, or submit without --reservation.",
            )
            .blocked_by(blockers),
        );
    }
    let start = time(reservation.start)?;
    if start > request.now {
        return Some(
            PendingCause::new(
                ReasonClass::Reservation,
                Actor::Wait,
                format!("Its {requested} begins {}.", moment(start, request.now)),
                "It starts then at the earliest. Without --reservation it may start elsewhere before.",
            )
            .blocked_by(blockers),
        );
    }
    let users = evidence
        .running
        .iter()
        .filter(|job| job.reservation == request.reservation);
    let running = users.count();
    Some(
        PendingCause::new(
            ReasonClass::Reservation,
            Actor::Wait,
            format!(
                "Its {requested} has begun, but has no room for it: {running} jobs run in it on {}.",
                nodes(&reservation.nodes)
            ),
            "It starts when one of them ends. Without --reservation it may start elsewhere.",
        )
        .blocked_by(blockers),
    )
}

/// Reservations of others that leave too few nodes for the time that the job asks for, in every partition that admits it.
pub fn in_the_way(request: &Request<'_>, evidence: &Evidence) -> Option<PendingCause> {
    if !request.reservation.is_empty() || evidence.failed.contains_key("reservations") {
        return None;
    }
    let end_of_job = request.minutes.map_or(DateTime::<Utc>::MAX_UTC, |minutes| {
        request.now + chrono::TimeDelta::minutes(i64::from(minutes))
    });
    let overlapping: Vec<&Reservation> = evidence
        .reservations
        .iter()
        .filter(|reservation| {
            let starts_before = time(reservation.start).is_some_and(|start| start < end_of_job);
            let has_not_ended = time(reservation.end).is_some_and(|end| end > request.now);
            starts_before && has_not_ended && !reservation.nodes.is_empty()
        })
        .collect();
    if overlapping.is_empty() {
        return None;
    }
    let taken: BTreeSet<String> = overlapping
        .iter()
        .flat_map(|reservation| HostList::expand(&reservation.nodes).unwrap_or_default())
        .collect();
    let mut concerned = BTreeSet::new();
    for partition in admitting(request, evidence) {
        evidence.partition(partition)?;
        let hosts = evidence.members(partition);
        let (reserved, free): (Vec<_>, Vec<_>) = hosts.partition(|(host, _)| taken.contains(*host));
        if free.len() as u64 >= request.nodes {
            return None;
        }
        concerned.extend(reserved.into_iter().map(|(host, _)| host));
    }
    let holds = |reservation: &&&Reservation| {
        let hosts = HostList::expand(&reservation.nodes).unwrap_or_default();
        hosts.iter().any(|host| concerned.contains(host.as_str()))
    };
    let blocking: Vec<&Reservation> = overlapping.iter().filter(holds).copied().collect();
    let first = blocking
        .iter()
        .min_by_key(|reservation| reservation.start)?;
    let (start, end) = (time(first.start)?, time(first.end)?);
    let is_maintenance = first.flags.iter().any(|flag| flag == "MAINT");
    let what = if is_maintenance {
        "Maintenance"
    } else {
        "A reservation"
    };
    let (summary, advice) = if start > request.now {
        let room = u64::try_from((start - request.now).num_seconds()).unwrap_or(0) / 60 * 60;
        (
            format!(
                "{what} ({}) takes {} from {} to {}, before this job could end (time limit: {}).",
                name(&first.name),
                nodes(&first.nodes),
                moment(start, request.now),
                end.format("%H:%M UTC"),
                request.minutes.map_or_else(
                    || "no limit".to_owned(),
                    |minutes| duration(u64::from(minutes) * 60)
                ),
            ),
            if room == 0 {
                "It starts afterwards; another partition may start it before.".to_owned()
            } else {
                format!(
                    "It fits before that with a time limit of at most {} (scontrol update jobid=JOB TimeLimit=…); else it starts afterwards.",
                    duration(room)
                )
            },
        )
    } else {
        (
            format!(
                "{what} ({}) has {} until {}.",
                name(&first.name),
                nodes(&first.nodes),
                moment(end, request.now)
            ),
            "It starts afterwards; another partition may start it before.".to_owned(),
        )
    };
    Some(
        PendingCause::new(ReasonClass::NodeUnavailable, Actor::Wait, summary, advice)
            .blocked_by(blocking.iter().map(|reservation| of(reservation, evidence))),
    )
}

fn of(reservation: &Reservation, evidence: &Evidence) -> Blocker {
    Blocker {
        state: reservation.flags.join(","),
        holder: reservation.nodes.clone(),
        since: time(reservation.start).map(timestamp),
        until: time(reservation.end).map(timestamp),
        ..blocker(evidence, "reservation", &reservation.name, "reservations")
    }
}
