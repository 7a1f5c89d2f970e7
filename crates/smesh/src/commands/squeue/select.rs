//! The jobs that squeue would show.

use super::Listing;
use super::arguments::SqueueRequest;

/// States of jobs that squeue shows without `--states`, as it prints them.
const LIVE: [&str; 5] = [
    "PENDING",
    "RUNNING",
    "SUSPENDED",
    "CONFIGURING",
    "COMPLETING",
];
/// States of jobs that have ended.
const ENDED: [&str; 9] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
];

/// `None` if only squeue knows.
pub(super) fn jobs<'a>(listing: &'a Listing, asked: &SqueueRequest) -> Option<Vec<&'a [String]>> {
    if let Some(users) = &asked.users {
        let own = |user: &String| listing.is_complete || listing.users.contains(user);
        // A number may be a uid.
        if !users
            .iter()
            .all(|user| own(user) && user.parse::<u32>().is_err())
        {
            return None;
        }
    } else if !listing.is_complete && asked.jobs.is_none() {
        return None;
    }
    let states = match &asked.states {
        Some(states) if states.iter().any(|state| state.eq_ignore_ascii_case("all")) => None,
        Some(states) => Some(named(states)?),
        None => Some(LIVE.to_vec()),
    };
    let lists = |list: &Option<Vec<String>>, text: &str| {
        list.as_ref()
            .is_none_or(|list| list.iter().any(|item| item == text))
    };
    let mut selected = Vec::new();
    let mut found = vec![false; asked.jobs.as_ref().map_or(0, Vec::len)];
    for job in &listing.jobs {
        let column = |letter| listing.column(job, letter);
        let state = column('T');
        if !LIVE.contains(&state) && !ENDED.contains(&state) {
            return None;
        }
        if let Some(ids) = &asked.jobs {
            let mut is_asked = false;
            for (index, id) in ids.iter().enumerate() {
                if is_called(listing, job, id) {
                    found[index] = true;
                    is_asked = true;
                }
            }
            if !is_asked {
                continue;
            }
        }
        let partitions = column('P').split(',');
        let in_partition = asked.partitions.as_ref().is_none_or(|asked| {
            let mut partitions = partitions;
            partitions.any(|partition| asked.iter().any(|asked| asked == partition))
        });
        if in_partition
            && lists(&asked.users, column('u'))
            && lists(&asked.accounts, column('a'))
            && lists(&asked.names, column('j'))
            && states.as_ref().is_none_or(|states| states.contains(&state))
        {
            selected.push(job.as_slice());
        }
    }
    // Unknown, too young, or somebody else's: never as if it were gone.
    found.iter().all(|found| *found).then_some(selected)
}

/// True if squeue shows the job for `--jobs=id`.
fn is_called(listing: &Listing, job: &[String], id: &str) -> bool {
    let column = |letter| listing.column(job, letter);
    let component = column('i').split_once('+').map(|(leader, _)| leader);
    [column('i'), column('A'), column('F')].contains(&id) || component == Some(id)
}

/// The states as squeue prints them. `None` if one may be hidden by a flag: a completing job has a state besides.
fn named(states: &[String]) -> Option<Vec<&'static str>> {
    let mut names = Vec::new();
    for state in states {
        match state.to_ascii_uppercase().as_str() {
            "PENDING" | "PD" => names.push("PENDING"),
            // The base state of both.
            "RUNNING" | "R" => names.extend(["RUNNING", "CONFIGURING"]),
            "SUSPENDED" | "S" => names.push("SUSPENDED"),
            "CONFIGURING" | "CF" => names.push("CONFIGURING"),
            "COMPLETING" | "CG" => names.push("COMPLETING"),
            _ => return None,
        }
    }
    Some(names)
}
