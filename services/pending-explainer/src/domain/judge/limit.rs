//! Limits of QOS and associations: what they allow, what is in use, and what the job needs.
//!
//! - The QOS of the job and those of its partitions count, and for the association the user's own and all accounts above it: `Grp*`
//!   limits at every level, others at the first level that sets them (resource_limits.html, 22.05 to 26.05).
//! - A job whose own need exceeds the value can never start. One that exceeds it only together with what is in use waits.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::queue::v1::{Blocker, Limit, Release, RunningJob};
use mesh_events::timestamp;
use slurm_types::reasons::Match;
use slurm_types::{Actor, ReasonClass, Tres};

use super::partition::admitting;
use super::{Evidence, PendingCause, Request, blocker};
use crate::domain::reason_text::{count, duration, memory, moment, named, verb};

/// A limit that applies to the job, and what the job would add to its use.
struct AppliedLimit<'a> {
    limit: &'a Limit,
    need: u64,
    /// Partition whose QOS sets it. Empty if it is the job's own QOS or an association.
    through: &'a str,
}

impl AppliedLimit<'_> {
    fn used(&self) -> u64 {
        self.limit.used.unwrap_or(0)
    }

    fn is_never(&self) -> bool {
        match self.limit.limit.as_str() {
            "MinTRESPerJob" => self.need < self.limit.value,
            _ => self.need > self.limit.value,
        }
    }

    fn missing(&self) -> u64 {
        (self.used() + self.need).saturating_sub(self.limit.value)
    }

    fn is_budget(&self) -> bool {
        ["GrpTRESMins", "GrpWall"].contains(&self.limit.limit.as_str())
    }

    fn holder(&self) -> String {
        let limit = self.limit;
        match (limit.qos.as_str(), limit.user.as_str()) {
            ("", "") => named("account", &limit.account),
            ("", _) => format!("your association with {}", named("account", &limit.account)),
            (qos, _) if self.through.is_empty() => named("QOS", qos),
            (qos, _) => format!(
                "{} of {}",
                named("QOS", qos),
                named("partition", self.through)
            ),
        }
    }

    /// Name in Slurm's words: `GrpTRES cpu`.
    fn name(&self) -> String {
        format!("{} {}", self.limit.limit, self.limit.tres)
            .trim_end()
            .to_owned()
    }

    fn amount(&self, amount: u64) -> String {
        let limit = self.limit;
        match (limit.limit.as_str(), limit.tres.as_str()) {
            ("GrpWall" | "MaxWallDurationPerJob", _) => duration(amount.saturating_mul(60)),
            ("GrpTRESMins" | "MaxTRESMinsPerJob", tres) => format!("{amount} {tres}-minutes"),
            (kind, tres) if kind.contains("RunMins") => format!("{amount} {tres}-minutes"),
            (_, "") => count(amount, "job", "jobs"),
            (_, "cpu") => count(amount, "CPU", "CPUs"),
            (_, "mem") => memory(amount),
            (_, "node") => count(amount, "node", "nodes"),
            (_, "gres/gpu") => count(amount, "GPU", "GPUs"),
            (_, tres) => format!("{amount} {tres}"),
        }
    }

    fn blocker(&self, evidence: &Evidence) -> Blocker {
        Blocker {
            holder: self.holder(),
            have: self.limit.used,
            most: Some(self.limit.value),
            need: Some(self.need),
            missing: Some(self.missing()),
            unit: match self.limit.tres.as_str() {
                "mem" => "MiB".to_owned(),
                tres => tres.to_owned(),
            },
            ..blocker(evidence, "limit", &self.name(), "assoc_mgr")
        }
    }
}

/// A limit that the job exceeds by itself, in every partition that admits it.
pub fn never(request: &Request<'_>, evidence: &Evidence) -> Option<PendingCause> {
    let applied = in_every_partition(request, evidence, |applied| applied.is_never())?;
    let more = if applied.limit.limit == "MinTRESPerJob" {
        ("at least", "Ask for more, or use another QOS or account.")
    } else {
        (
            "at most",
            "Ask for less (scontrol update, or submit again), or use another QOS or account; an administrator may raise the limit.",
        )
    };
    let summary = format!(
        "It can never start like this: it needs {}, and {} allows {} {} ({}).",
        applied.amount(applied.need),
        applied.holder(),
        more.0,
        applied.amount(applied.limit.value),
        applied.name()
    );
    let mut finding = PendingCause::new(ReasonClass::Limit, Actor::User, summary, more.1)
        .blocked_by([applied.blocker(evidence)]);
    finding.limit = applied.name();
    Some(finding)
}

/// A limit whose use leaves no room for the job, in every partition that admits it.
pub fn used_up(request: &Request<'_>, evidence: &Evidence) -> Option<PendingCause> {
    let applied = in_every_partition(request, evidence, |applied| {
        applied.limit.used.is_some() && applied.missing() > 0
    })?;
    Some(full(&applied, request, evidence))
}

/// The limit that a reason names.
fn with_name<'a>(kind: &str, of_qos: bool, limits: Vec<AppliedLimit<'a>>) -> Vec<AppliedLimit<'a>> {
    let (limit, tres) = kind.split_once(' ').unwrap_or((kind, ""));
    let matches = |applied: &AppliedLimit<'_>| {
        let record = applied.limit;
        let is_tres = match tres {
            "" => true,
            prefix if prefix.ends_with("/*") => {
                record.tres.starts_with(prefix.trim_end_matches('*'))
            }
            tres => record.tres == tres,
        };
        is_tres && record.limit == limit && record.qos.is_empty() != of_qos
    };
    limits.into_iter().filter(matches).collect()
}

/// Judges a limit reason by the limit that it names.
pub fn of_reason(
    found: &Match,
    request: &Request<'_>,
    evidence: &Evidence,
) -> Option<PendingCause> {
    let row = found.row?;
    let of_qos = row.category.starts_with("qos_");
    if row.limit.is_empty() || !of_qos && !row.category.starts_with("assoc_") {
        return None;
    }
    if evidence.failed.contains_key("limits") {
        return None;
    }
    let mut limits = Vec::new();
    for partition in admitting(request, evidence) {
        limits.extend(applied(request, partition, evidence));
    }
    let mut limits = with_name(row.limit, of_qos, limits);
    limits.retain(|applied| applied.limit.used.is_some());
    limits.sort_by_key(|applied| std::cmp::Reverse(applied.missing()));
    let applied = limits.first()?;
    if applied.missing() > 0 {
        return Some(full(applied, request, evidence));
    }
    // What Slurm said at its last pass is not true any more. Amounts with units of their own are written with them.
    let used = match (applied.limit.limit.as_str(), applied.limit.tres.as_str()) {
        ("GrpWall", _) | (_, "mem") => applied.amount(applied.used()),
        _ => applied.used().to_string(),
    };
    let summary = format!(
        "{} ({}) stopped it at the scheduler's last pass. There is room by now: {used} of {} {} in use.",
        crate::domain::reason_text::capital(&applied.holder()),
        applied.name(),
        applied.amount(applied.limit.value),
        verb(applied.used())
    );
    let mut finding = PendingCause::new(
        ReasonClass::Limit,
        Actor::Wait,
        summary,
        "Nothing to do: the next scheduling cycle looks at it again, usually within a minute.",
    )
    .blocked_by([applied.blocker(evidence)]);
    finding.limit = applied.name();
    Some(finding)
}

fn full(applied: &AppliedLimit<'_>, request: &Request<'_>, evidence: &Evidence) -> PendingCause {
    let (frees, enough_at) = frees(applied, request, evidence);
    let summary = format!(
        "{} has {} of {} in use ({}), and it needs {}: {} too many.",
        crate::domain::reason_text::capital(&applied.holder()),
        applied.amount(applied.used()),
        applied.amount(applied.limit.value),
        applied.name(),
        applied.amount(applied.need),
        applied.amount(applied.missing()),
    );
    let advice = match (applied.is_budget(), enough_at) {
        (true, _) => "Waiting helps only if the site lets past use decay. Shorten --time, use another account or QOS, or ask for more budget.".to_owned(),
        (false, Some(at)) => format!(
            "It fits when running jobs end, by {} at the latest. Asking for less may be quicker.",
            moment(at, request.now)
        ),
        (false, None) if frees.is_empty() => "It starts when others end. Asking for less, or another QOS or account, may be quicker.".to_owned(),
        (false, None) => "It starts when running jobs end; some have no time limit. Asking for less may be quicker.".to_owned(),
    };
    let actor = if applied.is_budget() {
        Actor::Admin
    } else {
        Actor::Wait
    };
    let mut finding = PendingCause::new(ReasonClass::Limit, actor, summary, advice)
        .blocked_by([applied.blocker(evidence)]);
    finding.limit = applied.name();
    finding.frees = frees;
    finding
}

/// The running jobs whose end gives the missing amount, in the order of their ends, and when it is enough.
fn frees(
    applied: &AppliedLimit<'_>,
    request: &Request<'_>,
    evidence: &Evidence,
) -> (Vec<Release>, Option<DateTime<Utc>>) {
    /// Longest list in an answer.
    const MAX_RELEASES: usize = 5;
    // Budgets count what was used: an end gives nothing back.
    if applied.is_budget() {
        return (Vec::new(), None);
    }
    let mut missing = applied.missing();
    let left = |job: &RunningJob| {
        let seconds = job.end - request.now.timestamp();
        u32::try_from(seconds / 60).ok()
    };
    let mut holders: Vec<(&RunningJob, u64)> = evidence
        .running
        .iter()
        .filter(|job| counts_under(job, applied.limit, evidence))
        .map(|job| (job, added(applied.limit, &of_running(job), 1, left(job))))
        .filter(|(_, amount)| *amount > 0)
        .collect();
    // Those without a limit end last.
    holders.sort_by_key(|(job, _)| if job.end > 0 { job.end } else { i64::MAX });
    let mut releases = Vec::new();
    let mut enough_at = None;
    for (job, amount) in holders {
        let at_latest = DateTime::from_timestamp(job.end, 0).filter(|_| job.end > 0);
        if releases.len() < MAX_RELEASES {
            releases.push(Release {
                // Jobs of others are none of the owner's business.
                job: if job.user == request.user {
                    job.display_id.clone()
                } else {
                    String::new()
                },
                amount,
                at_latest: at_latest.map(timestamp),
            });
        }
        missing = missing.saturating_sub(amount);
        if missing == 0 {
            enough_at = at_latest;
            break;
        }
    }
    (releases, enough_at)
}

fn of_running(job: &RunningJob) -> Tres {
    Tres::parse_lossy(&job.tres).0
}

fn counts_under(job: &RunningJob, limit: &Limit, evidence: &Evidence) -> bool {
    let is_user = limit.user.is_empty() || limit.user == job.user;
    if limit.qos.is_empty() {
        return is_user
            && evidence
                .accounts_above(&job.account)
                .contains(&limit.account.as_str());
    }
    let of_partition = evidence.partition(&job.partition);
    let is_qos = job.qos == limit.qos || of_partition.is_some_and(|part| part.qos == limit.qos);
    is_qos && is_user && (limit.account.is_empty() || limit.account == job.account)
}

/// What a job adds to the use of a limit.
fn added(limit: &Limit, tres: &Tres, nodes: u64, minutes: Option<u32>) -> u64 {
    let amount = match limit.tres.as_str() {
        "node" => tres.nodes().max(nodes),
        name => tres.get(name).unwrap_or(0),
    };
    let minutes = minutes.map_or(u64::MAX, u64::from);
    match limit.limit.as_str() {
        kind if kind.contains("Jobs") => 1,
        "GrpWall" | "MaxWallDurationPerJob" => minutes,
        kind if kind.contains("Mins") => amount.saturating_mul(minutes),
        _ => amount,
    }
}

/// The limits that count for a job in a partition. Those at submission are left out: it is submitted.
fn applied<'a>(
    request: &'a Request<'_>,
    partition: &'a str,
    evidence: &'a Evidence,
) -> Vec<AppliedLimit<'a>> {
    let partition_qos = evidence
        .partition(partition)
        .map_or("", |part| part.qos.as_str());
    let chain = evidence.accounts_above(request.account);
    let mut found: Vec<AppliedLimit<'_>> = Vec::new();
    let of_accounts: Vec<&Limit> = chain
        .iter()
        .flat_map(|account| evidence.limits_of_account(account))
        .collect();
    let of_job = evidence.limits_of_qos(request.qos).iter();
    let of_partition: &[Limit] = if partition_qos == request.qos {
        &[]
    } else {
        evidence.limits_of_qos(partition_qos)
    };
    let of_qos = of_job.chain(of_partition);
    for limit in of_qos.chain(of_accounts.iter().copied()) {
        let is_of_qos = !limit.qos.is_empty();
        let through = if is_of_qos && limit.qos == partition_qos && limit.qos != request.qos {
            partition
        } else {
            ""
        };
        let holds = if is_of_qos {
            (limit.qos == request.qos || !through.is_empty())
                && (limit.user.is_empty() || limit.user == request.user)
                && (limit.account.is_empty() || limit.account == request.account)
        } else {
            let is_own = limit.user == request.user && limit.account == request.account;
            let is_above = limit.user.is_empty() && chain.contains(&limit.account.as_str());
            (is_own || is_above) && (limit.partition.is_empty() || limit.partition == partition)
        };
        let at_submission = limit.limit.contains("Submit") || limit.limit.contains("Accrue");
        if !holds || at_submission || limit.limit == "MinPrioThreshold" {
            continue;
        }
        let need = match limit.limit.as_str() {
            // How it is spread is not known for several nodes.
            "MaxTRESPerNode" => request.per_node(&limit.tres),
            _ => added(limit, &request.tres, request.nodes, request.minutes),
        };
        // A limit on something that it does not ask for. Unlimited time is judged by the partition.
        if need == 0 && limit.limit != "MinTRESPerJob" || need == u64::MAX {
            continue;
        }
        found.push(AppliedLimit {
            limit,
            need,
            through,
        });
    }
    // Limits of one job count at the first level that sets them: the user's, then the nearest account's.
    let level = |limit: &Limit| match limit.user.is_empty() {
        false => 0,
        true => {
            1 + chain
                .iter()
                .position(|name| *name == limit.account)
                .unwrap_or(0)
        }
    };
    let nearest = |applied: &AppliedLimit<'_>| {
        let limit = applied.limit;
        let of_group = limit.limit.starts_with("Grp") || !limit.qos.is_empty();
        of_group
            || !of_accounts.iter().any(|other| {
                (other.limit.as_str(), other.tres.as_str())
                    == (limit.limit.as_str(), limit.tres.as_str())
                    && (other.user == request.user && other.account == request.account
                        || other.user.is_empty() && chain.contains(&other.account.as_str()))
                    && level(other) < level(limit)
            })
    };
    found.retain(nearest);
    found
}

/// The limit that holds in every partition that admits the job; the one of the first partition. `None` if one partition has none.
fn in_every_partition<'a>(
    request: &'a Request<'_>,
    evidence: &'a Evidence,
    holds: impl Fn(&AppliedLimit<'_>) -> bool,
) -> Option<AppliedLimit<'a>> {
    let mut first = None;
    for name in &request.partitions {
        if !admitting(request, evidence).contains(name) {
            continue;
        }
        let mut limits = applied(request, name, evidence);
        limits.retain(&holds);
        // The largest excess explains most.
        limits.sort_by_key(|applied| std::cmp::Reverse(applied.missing()));
        let limit = limits.into_iter().next()?;
        first = first.or(Some(limit));
    }
    first
}
