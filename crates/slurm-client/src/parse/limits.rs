//! `scontrol -o show assoc_mgr`: the limits that slurmctld enforces, with their use.
//!
//! `GrpTRES=cpu=128(96),mem=N(0)`: value and, in brackets, use; `N` is no limit. Limits of a single job have no use: `MaxWallPJ=5`.
//! The limits per user and account of a QOS are printed for those that have jobs: `User Limits= 20001={MaxJobsPU=1(1) …}` (22.05),
//! `alice(20001)={…}` (later). Everything else is alike on 22.05, 24.11 and 26.05.

use std::collections::HashMap;

use super::text;
use crate::record::{LimitRecord, Limits};

/// Slurm's short names, and those of the reason table. True for those that list resources.
const NAMES: [(&str, &str, bool); 26] = [
    ("GrpJobs", "GrpJobs", false),
    ("GrpSubmitJobs", "GrpSubmitJobs", false),
    ("GrpWall", "GrpWall", false),
    ("GrpTRES", "GrpTRES", true),
    ("GrpTRESMins", "GrpTRESMins", true),
    ("GrpTRESRunMins", "GrpTRESRunMins", true),
    ("MaxJobs", "MaxJobs", false),
    ("MaxSubmitJobs", "MaxSubmitJobs", false),
    ("MaxWallPJ", "MaxWallDurationPerJob", false),
    ("MaxTRESPJ", "MaxTRESPerJob", true),
    ("MaxTRESPN", "MaxTRESPerNode", true),
    ("MaxTRESMinsPJ", "MaxTRESMinsPerJob", true),
    ("MinTRESPJ", "MinTRESPerJob", true),
    ("MaxJobsPA", "MaxJobsPerAccount", false),
    ("MaxJobsAccruePA", "MaxJobsAccruePerAccount", false),
    ("MaxSubmitJobsPA", "MaxSubmitJobsPerAccount", false),
    ("MaxTRESPA", "MaxTRESPerAccount", true),
    ("MaxTRESRunMinsPA", "MaxTRESRunMinsPerAccount", true),
    ("MaxJobsPU", "MaxJobsPerUser", false),
    ("MaxJobsAccruePU", "MaxJobsAccruePerUser", false),
    ("MaxSubmitJobsPU", "MaxSubmitJobsPerUser", false),
    ("MaxTRESPU", "MaxTRESPerUser", true),
    ("MaxTRESRunMinsPU", "MaxTRESRunMinsPerUser", true),
    ("GrpJobsAccrue", "GrpJobsAccrue", false),
    ("MaxJobsAccrue", "MaxJobsAccrue", false),
    ("MinPrioThresh", "MinPrioThreshold", false),
];

/// The limits. `None` if the output is not that of `show assoc_mgr`.
pub(crate) fn limits(output: &str) -> Option<Limits> {
    if !output.starts_with("Current Association Manager state") {
        return None;
    }
    let mut limits = Limits::default();
    let mut users = HashMap::new();
    for line in output
        .lines()
        .filter(|line| line.starts_with("ClusterName="))
    {
        association(line, &mut limits, &mut users);
    }
    for line in output.lines().filter(|line| line.starts_with("QOS=")) {
        qos(line, &mut limits, &users);
    }
    Some(limits)
}

fn association(line: &str, limits: &mut Limits, users: &mut HashMap<String, String>) {
    let value = |key: &str| {
        let mut words = line.split(' ');
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    };
    let account = value("Account").unwrap_or_default().to_owned();
    let (user, uid) = name_and_id(value("UserName").unwrap_or_default());
    if user.is_empty() {
        let (parent, _) = name_and_id(value("ParentAccount").unwrap_or_default());
        limits.accounts.insert(account.clone(), parent.to_owned());
    } else {
        users.insert(uid.to_owned(), user.to_owned());
    }
    let holder = LimitRecord {
        account,
        user: user.to_owned(),
        partition: text(value("Partition").unwrap_or_default()),
        ..LimitRecord::default()
    };
    add(line, &holder, &mut limits.limits);
}

fn qos(line: &str, limits: &mut Limits, users: &HashMap<String, String>) {
    let Some((head, rest)) = line.split_once(" Account Limits=") else {
        return;
    };
    let (accounts, of_users) = rest.split_once(" User Limits=").unwrap_or((rest, ""));
    let Some((name, head)) = head
        .strip_prefix("QOS=")
        .and_then(|text| text.split_once(' '))
    else {
        return;
    };
    let holder = LimitRecord {
        qos: name_and_id(name).0.to_owned(),
        ..LimitRecord::default()
    };
    add(head, &holder, &mut limits.limits);
    for (account, text) in groups(accounts) {
        let holder = LimitRecord {
            account: name_and_id(account).0.to_owned(),
            ..holder.clone()
        };
        add(text, &holder, &mut limits.limits);
    }
    for (user, text) in groups(of_users) {
        let (name, uid) = name_and_id(user);
        let known = users.get(if uid.is_empty() { name } else { uid });
        let holder = LimitRecord {
            user: known.map_or_else(|| name.to_owned(), Clone::clone),
            ..holder.clone()
        };
        add(text, &holder, &mut limits.limits);
    }
}

/// `physics={…} ml={…}`.
fn groups(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.split('}');
    parts.filter_map(|part| {
        let (name, text) = part.split_once("={")?;
        Some((name.trim(), text))
    })
}

/// `alice(20001)`.
fn name_and_id(text: &str) -> (&str, &str) {
    match text.split_once('(') {
        Some((name, id)) => (name, id.trim_end_matches(')')),
        None => (text, ""),
    }
}

fn add(text: &str, holder: &LimitRecord, limits: &mut Vec<LimitRecord>) {
    for word in text.split(' ') {
        let Some((key, value)) = word.split_once('=') else {
            continue;
        };
        let Some((_, limit, lists)) = NAMES.iter().find(|(short, ..)| *short == key) else {
            continue;
        };
        let mut push = |tres: &str, amount: &str| {
            let (value, used) = name_and_id(amount);
            // Wall-clock use has a fraction: `GrpWall=60(0.55)`. Unlimited is `N`, and empty for a single job.
            let Some(value) = whole(value) else { return };
            limits.push(LimitRecord {
                limit,
                tres: tres.to_owned(),
                value,
                used: whole(used),
                ..holder.clone()
            });
        };
        if *lists {
            for item in value.split(',') {
                if let Some((tres, amount)) = item.split_once('=') {
                    push(tres, amount);
                }
            }
        } else {
            push("", value);
        }
    }
}

fn whole(text: &str) -> Option<u64> {
    match text.parse() {
        Ok(number) => Some(number),
        // `MaxTRESPJ=mem=4G`: a single job's memory is printed with its unit.
        Err(_) => match text.split_once('.') {
            Some((whole, _)) => whole.parse().ok(),
            None => slurm_types::parse_mem_mib(text),
        },
    }
}
