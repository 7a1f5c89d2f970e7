//! Sentences for limits of QOS and associations, which are two thirds of the reason table.
//!
//! Slurm's limits are regular: a *kind* (shared by a group, per job, per user, a budget of minutes, …) on a *resource* at a *holder*
//! (a QOS or an association). The table names kind and resource in the column `limit` (`GrpTRESMins cpu`) and the holder in the
//! category, so one sentence per kind covers them all.
//! Meaning of the limits: resource_limits.html and sacctmgr(1), Slurm 22.05 to 26.05.

use mesh_events::proto::mesh::job::v1::Job;
use slurm_types::Tres;
use slurm_types::reasons::ReasonRow;

use super::pending_job::PendingJob;
use super::reason_text::{ReasonText, capital, count, memory, named, time_limit};

/// Sentences for a limit. `None` if the row is not about a limit of a QOS or an association.
pub fn reason_text(row: &ReasonRow, waiting: &PendingJob<'_>) -> Option<ReasonText> {
    let job = waiting.job;
    let holder = LimitHolder::of(row.category, waiting)?;
    let (kind, tres) = row.limit.split_once(' ').unwrap_or((row.limit, ""));
    let resource = Resource::of(tres);
    let known = resource.asked(job);
    let asked = known
        .clone()
        .unwrap_or_else(|| "what it asks for".to_owned());
    let asks_for = known.as_ref().map_or_else(
        || "asks for".to_owned(),
        |asked| format!("asks for {asked},"),
    );
    let fit = known.as_ref().map_or_else(
        || "this job does not fit yet".to_owned(),
        |asked| format!("the {asked} of this job do not fit yet"),
    );
    let (many, one, name) = (resource.many, resource.one, row.limit);
    let under = if kind.starts_with("Grp") {
        holder.group
    } else {
        holder.under
    };
    let account = named("account", waiting.account);
    let in_all = known
        .as_ref()
        .map_or_else(String::new, |asked| format!("; in all it asks for {asked}"));
    let longest = time_limit(job.time_limit_minutes);
    let other = holder.other;
    let ends_free = |holders: &str| {
        format!(
            "It starts when {holders} end and release {many}. Asking for less, or {other}, may be quicker."
        )
    };
    let ages = |holders: &str| {
        format!(
            "It starts as {holders} end or come closer to their time limit. A shorter --time for this job helps at once."
        )
    };

    let (summary, advice) = match kind {
        "GrpTRES" => (
            format!(
                "Running jobs under {under} have reached their shared limit on {many} ({name}): {fit}."
            ),
            ends_free("some of them"),
        ),
        "GrpTRESMins" | "GrpTRESMins/GrpWall" => (
            format!(
                "The budget of {one}-minutes of {under} ({name}) is used up, or too little is left for {asked} over {longest}."
            ),
            format!(
                "Waiting helps only if the site lets past use decay. Shorten --time to fit what is left, use {other}, or ask for more budget."
            ),
        ),
        "GrpWall" => (
            format!(
                "The wall-clock budget of {under} ({name}) is used up, or too little is left for {longest}."
            ),
            format!(
                "Waiting helps only if the site lets past use decay. Shorten --time, use {other}, or ask for more budget."
            ),
        ),
        "GrpTRESRunMins" => (
            format!(
                "Running jobs under {under} already have all {one}-minutes that may be promised at a time ({name}): no room yet for {asked} over {longest}."
            ),
            ages("those jobs"),
        ),
        "GrpJobs" => (
            format!("As many jobs as allowed already run under {under} ({name})."),
            format!("It starts when one of them ends; {other} may be quicker."),
        ),
        "GrpSubmitJobs" => (
            format!("As many jobs as allowed already run or wait under {under} ({name})."),
            format!("It proceeds when one of them leaves the queue; {other} may be quicker."),
        ),
        "MaxTRESPerJob" => (
            format!(
                "This job {asks_for} more {many} than one job may have under {under} ({name})."
            ),
            format!(
                "It will not start like this: ask for less (scontrol update, or submit again), or use {other}."
            ),
        ),
        "MaxTRESPerNode" => (
            format!(
                "This job asks for more {many} on one node than {under} allows ({name}){in_all}."
            ),
            format!(
                "It will not start like this: spread it over more nodes, ask for less per node, or use {other}."
            ),
        ),
        "MaxTRESMinsPerJob" => (
            format!(
                "This job asks for more {one}-minutes than one job may use under {under} ({name}): {asked} over {longest}."
            ),
            format!("It will not start like this: shorten --time, ask for less, or use {other}."),
        ),
        "MaxWallDurationPerJob" => (
            format!(
                "The time limit of this job ({longest}) is above the longest that {under} allows ({name})."
            ),
            format!(
                "It will not start like this: shorten --time (scontrol update, or submit again), or use {other}."
            ),
        ),
        "MinTRESPerJob" => (
            format!("This job {asks_for} less than each job must have under {under} ({name})."),
            format!("It will not start like this: ask for more, or use {other}."),
        ),
        "MaxTRESPerUser" => (
            format!(
                "Your running jobs have reached the limit on {many} for one user under {under} ({name}): {fit}."
            ),
            ends_free("your own jobs"),
        ),
        "MaxTRESRunMinsPerUser" => (
            format!(
                "Your running jobs already have all {one}-minutes that one user may be promised under {under} ({name}): no room yet for {asked} over {longest}."
            ),
            ages("your own jobs"),
        ),
        "MaxTRESPerAccount" => (
            format!(
                "Running jobs of {account} have reached the limit on {many} for one account under {under} ({name}): {fit}."
            ),
            ends_free("jobs of that account"),
        ),
        "MaxTRESRunMinsPerAccount" => (
            format!(
                "Running jobs of {account} already have all {one}-minutes that one account may be promised under {under} ({name}): no room yet for {asked} over {longest}."
            ),
            ages("jobs of that account"),
        ),
        "MaxJobsPerUser" | "MaxJobs" => (
            format!("You already run as many jobs as one user may run under {under} ({name})."),
            "It starts when one of your running jobs ends.".to_owned(),
        ),
        "MaxSubmitJobsPerUser" | "MaxSubmitJobs" => (
            format!(
                "You already have as many running and waiting jobs as one user may have under {under} ({name})."
            ),
            "It proceeds when one of your jobs leaves the queue.".to_owned(),
        ),
        "MaxJobsPerAccount" => (
            format!(
                "{} already runs as many jobs as one account may run under {under} ({name}).",
                capital(&account)
            ),
            "It starts when a running job of that account ends.".to_owned(),
        ),
        "MaxSubmitJobsPerAccount" => (
            format!(
                "{} already has as many running and waiting jobs as one account may have under {under} ({name}).",
                capital(&account)
            ),
            "It proceeds when a job of that account leaves the queue.".to_owned(),
        ),
        _ => return None,
    };
    Some(ReasonText {
        summary,
        advice,
        evidence: holder.evidence,
    })
}

/// The QOS or association that sets the limit.
struct LimitHolder {
    under: String,
    /// Name for limits shared by a group, where those of every parent account count too.
    group: String,
    other: String,
    evidence: Vec<String>,
}

impl LimitHolder {
    fn of(category: &str, waiting: &PendingJob<'_>) -> Option<Self> {
        let job = waiting.job;
        if category.starts_with("qos_") {
            // A QOS reason may mean the QOS of the partition: Slurm checks both and prints the same keyword for either.
            let under = format!(
                "{} or the QOS of {}",
                named("QOS", &job.qos),
                named("partition", &job.partition)
            );
            let evidence = [
                ("qos", job.qos.as_str()),
                ("partition", job.partition.as_str()),
            ];
            Some(Self {
                group: under.clone(),
                under,
                other: "another QOS".into(),
                evidence: evidence_of(&evidence),
            })
        } else if category.starts_with("assoc_") {
            let account = named("account", waiting.account);
            let (under, group) = (
                format!("your association with {account}"),
                format!("{account} or one above it"),
            );
            Some(Self {
                under,
                group,
                other: "another account".into(),
                evidence: evidence_of(&[("account", waiting.account)]),
            })
        } else {
            None
        }
    }
}

fn evidence_of(facts: &[(&str, &str)]) -> Vec<String> {
    facts
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key} {value}"))
        .collect()
}

/// The limited resource.
struct Resource {
    one: &'static str,
    many: &'static str,
    tres: &'static str,
}

impl Resource {
    fn of(tres: &str) -> Self {
        let (one, many, tres) = match tres {
            "cpu" => ("CPU", "CPUs", "cpu"),
            "mem" => ("memory", "memory", "mem"),
            "node" => ("node", "nodes", "node"),
            "energy" => ("energy", "energy", "energy"),
            "gres/*" => ("GPU", "GPUs or other generic resources", "gres/"),
            "license/*" => ("license", "licenses", "license/"),
            "bb" => ("burst-buffer", "burst buffer space", "bb/"),
            "billing" => ("billing", "billing units", "billing"),
            _ => ("resource", "resources", ""),
        };
        Self { one, many, tres }
    }

    /// Amount that the job requests, from its requested TRES. `None` if the record does not contain it.
    fn asked(&self, job: &Job) -> Option<String> {
        let (tres, _) = Tres::parse_lossy(&job.req_tres);
        let amount = |name| tres.get(name).filter(|amount| *amount > 0);
        match self.tres {
            "" => None,
            "cpu" => Some(count(amount("cpu")?, "CPU", "CPUs")),
            "mem" => Some(format!("{} of memory", memory(amount("mem")?))),
            "node" => Some(count(amount("node")?, "node", "nodes")),
            "billing" => Some(count(amount("billing")?, "billing unit", "billing units")),
            prefix if prefix.ends_with('/') => {
                let all: Vec<_> = tres
                    .iter()
                    .filter_map(|(name, amount)| Some((name.strip_prefix(prefix)?, amount)))
                    .collect();
                // A typed amount (`gpu:a100`) is included in the untyped one.
                let plain = all.iter().filter(|(name, _)| {
                    !name.contains(':')
                        || !all
                            .iter()
                            .any(|(other, _)| name.split(':').next() == Some(other))
                });
                let texts: Vec<_> = plain.map(|(name, amount)| item(name, *amount)).collect();
                (!texts.is_empty()).then(|| super::reason_text::list(&texts, 3))
            }
            name => Some(format!("{} of {}", amount(name)?, self.many)),
        }
    }
}

fn item(name: &str, amount: u64) -> String {
    match name {
        "gpu" => count(amount, "GPU", "GPUs"),
        name => format!("{amount} × {}", super::reason_text::name(name)),
    }
}
