//! The same jobs and nodes as text and as JSON, of three releases.

use std::{collections::HashMap, fs, path::PathBuf};

use serde_json::Value;
use slurm_types::JobFlag;

use super::*;
use crate::{
    parse,
    record::{AccountingRecord, JobRecord, NodeRecord},
};

mod access;

const VERSIONS: [&str; 3] = ["22.05", "24.11", "26.05"];

fn folder(version: &str, kind: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/captures", version, kind]
        .iter()
        .collect()
}

/// Every capture of a kind: its name and its folder.
fn captures(version: &str, kind: &str) -> Vec<(String, PathBuf)> {
    let mut found: Vec<_> = fs::read_dir(folder(version, kind))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn items<T>(body: &[u8], list: &str, read: impl FnMut(&Value) -> T) -> Vec<T> {
    answer(body, list, read).unwrap().items.unwrap()
}

/// Captures whose text and JSON were taken before and after a change.
const CHANGING: [(&str, &str); 6] = [
    ("22.05", "requeued-1"),
    ("22.05", "pending-in-maint"),
    ("22.05", "nodedown-job-requeued"),
    ("24.11", "nodedown-job-requeued"),
    ("26.05", "resume-after-down"),
    ("26.05", "resumed"),
];

type Compared = Vec<(&'static str, String)>;

fn debug_text(value: &dyn std::fmt::Debug) -> String {
    format!("{value:?}")
}

/// The fields that a job's text and JSON have in common.
fn job_fields(job: &JobRecord) -> Compared {
    vec![
        (
            "array",
            debug_text(&(job.array_job_id, &job.array_tasks, job.array_throttle)),
        ),
        (
            "het",
            debug_text(&(job.het_job_id, job.het_job_offset, &job.het_job_id_set)),
        ),
        ("name", job.name.clone()),
        (
            "owner",
            debug_text(&(&job.user, job.uid, &job.group, job.gid, &job.account)),
        ),
        (
            "place",
            debug_text(&(&job.partition, &job.qos, &job.wckey, &job.reservation)),
        ),
        (
            "base",
            debug_text(&job.state.base.filter(|_| !hides_base(job))),
        ),
        // 26.05 writes `RaisedSignal:9(Killed)` in text.
        ("reason", job.reason.split(':').next().unwrap().to_owned()),
        ("failed_node", job.failed_node.clone()),
        ("priority", debug_text(&(job.priority, job.nice))),
        (
            "restarts",
            debug_text(&(job.restarts, job.requeue, job.batch)),
        ),
        (
            "submit",
            debug_text(&(job.submit, job.eligible, job.accrue)),
        ),
        ("start", debug_text(&(job.start, job.end))),
        (
            "suspend",
            debug_text(&(job.suspend_time, job.pre_suspend_secs)),
        ),
        ("preempt", debug_text(&job.preempt_time)),
        (
            "limits",
            debug_text(&(
                job.time_limit.and_then(slurm_types::TimeLimit::minutes),
                job.deadline,
            )),
        ),
        ("nodes", debug_text(&(&job.nodes, &job.batch_host))),
        ("alloc_tres", job.alloc_tres.to_string()),
        (
            "mem",
            debug_text(&(job.min_mem_node_mib, job.min_mem_cpu_mib)),
        ),
        ("dependency", job.dependency.clone()),
        (
            "asked",
            debug_text(&(&job.features, &job.licenses, &job.req_nodes, &job.exc_nodes)),
        ),
        (
            "comments",
            debug_text(&(&job.comment, &job.admin_comment, &job.system_comment)),
        ),
        (
            "paths",
            debug_text(&(&job.command, &job.work_dir, &job.stdin, &job.stdout)),
        ),
        ("exit", debug_text(&job.exit_code)),
    ]
}

/// scontrol shows one keyword; a flag may hide the base state.
fn hides_base(job: &JobRecord) -> bool {
    [JobFlag::Completing, JobFlag::SpecialExit, JobFlag::Requeued]
        .into_iter()
        .any(|flag| job.state.has(flag))
}

fn differences(what: &str, text: Compared, json: Compared) -> Vec<String> {
    let pairs = text.into_iter().zip(json);
    pairs
        .filter(|((_, text), (_, json))| text != json)
        .map(|((field, text), (_, json))| format!("{what}: {field}: text {text}, json {json}"))
        .collect()
}

#[test]
fn a_job_is_the_same_as_text_and_as_json() {
    let (mut count, mut found) = (0, Vec::new());
    for version in VERSIONS {
        for (name, folder) in captures(version, "jobs") {
            let json = ["scontrol.json", "squeue.json"]
                .into_iter()
                .find_map(|file| fs::read(folder.join(file)).ok());
            let (Some(json), Ok(text)) = (json, fs::read_to_string(folder.join("scontrol.txt")))
            else {
                continue;
            };
            let from_json: HashMap<_, _> = items(&json, "jobs", job)
                .into_iter()
                .map(|job| job.unwrap())
                .map(|job| (job.job_id, job))
                .collect();
            for text in &parse::jobs(&text, &HashMap::new()).records {
                let what = format!("{version} {name}");
                let Some(json) = from_json.get(&text.job_id) else {
                    continue;
                };
                assert_eq!(
                    (json.oddities.count(), json.state.unknown.len()),
                    (0, 0),
                    "{what}"
                );
                count += 1;
                if CHANGING.contains(&(version, name.as_str())) {
                    continue;
                }
                // 22.05 leaves out more in JSON in places, and prints one list of resources as text.
                if !text.req_tres.is_empty() {
                    assert_eq!(text.req_tres, json.req_tres, "{what}");
                }
                if let (Some(text), Some(json)) = (text.num_cpus, json.num_cpus) {
                    assert_eq!(text, json, "{what}");
                }
                // v0.0.45 does not report it for a pending job.
                if version != "26.05" || text.was_allocated() {
                    assert_eq!(text.exclusive, json.exclusive, "{what}");
                }
                let mut pairs = (job_fields(text), job_fields(json));
                if name == "cloud-running" {
                    // Its prolog ended between the two captures.
                    pairs.0.retain(|(field, _)| *field != "reason");
                    pairs.1.retain(|(field, _)| *field != "reason");
                }
                found.extend(differences(&what, pairs.0, pairs.1));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(count > 130, "{count}");
}

/// Rows of `sacct -P` with column names.
fn sacct_text(text: &str) -> Vec<AccountingRecord> {
    let mut lines = text.lines();
    let header: Vec<_> = lines.next().unwrap().split('|').collect();
    let rows = lines.filter_map(|line| {
        let values: HashMap<_, _> = header.iter().copied().zip(line.split('|')).collect();
        let row: Vec<_> = parse::ACCOUNTING_FIELDS
            .iter()
            .map(|field| values.get(field).copied().unwrap_or_default())
            .collect();
        parse::accounting_row(&row)
    });
    rows.collect()
}

/// The fields that a row's text and JSON have in common.
fn row_fields(row: &AccountingRecord, lost: bool) -> Compared {
    let mut fields = vec![
        (
            "array",
            debug_text(&row.array.as_ref().map(|array| {
                let tasks: Vec<u32> = array.tasks.set().unwrap().iter().collect();
                (array.array_job_id, tasks)
            })),
        ),
        ("het", debug_text(&(row.het_job_id, row.het_job_offset))),
        ("name", row.name.clone()),
        ("owner", debug_text(&(&row.user, &row.account))),
        ("place", debug_text(&(&row.partition, &row.qos))),
        ("state", row.state.to_string()),
        ("cancelled_by", debug_text(&row.cancelled_by)),
        ("times", debug_text(&(row.submit, row.eligible))),
        ("start", debug_text(&(row.start, row.end))),
        ("nodes", debug_text(&(&row.nodes, row.node_count))),
        ("req_tres", row.req_tres.to_string()),
        ("alloc_tres", row.alloc_tres.to_string()),
        ("priority", debug_text(&row.priority)),
        ("time_limit", debug_text(&row.time_limit)),
        ("reason", row.reason.clone()),
        ("ended", debug_text(&(row.ended(), row.was_allocated()))),
    ];
    if !lost {
        fields.push(("exit", debug_text(&(row.exit_code, row.derived_exit_code))));
    }
    fields
}

#[test]
fn a_canceller_whom_this_host_does_not_know_keeps_the_name() {
    let row = |user: &str| {
        let row = serde_json::json!({
            "job_id": 1, "state": {"current": "CANCELLED"}, "kill_request_user": user,
        });
        let row = accounting(&row, ExitCodes::Lost, captured_users).unwrap();
        (row.cancelled_by, row.canceller)
    };
    assert_eq!(row("alice"), (Some(20_001), String::new()));
    assert_eq!(row("carol"), (None, "carol".to_owned()));
    assert_eq!(row(""), (None, String::new()));
}

/// The users of the captured clusters.
fn captured_users(user: &str) -> Option<u32> {
    match user {
        "root" => Some(0),
        "alice" => Some(20_001),
        "bob" => Some(20_002),
        _ => None,
    }
}

#[test]
fn a_row_of_accounting_is_the_same_as_text_and_as_json() {
    let (mut count, mut found) = (0, Vec::new());
    for version in VERSIONS {
        let all = fs::read_to_string(folder(version, "sacct-all.txt")).unwrap_or_default();
        let codes = match version {
            "22.05" => ExitCodes::Lost,
            _ => ExitCodes::Reported,
        };
        for (name, folder) in captures(version, "jobs") {
            let text = fs::read_to_string(folder.join("sacct.txt")).unwrap_or(all.clone());
            let Ok(json) = fs::read(folder.join("sacct.json")) else {
                continue;
            };
            let rows = sacct_text(&text);
            for json in items(&json, "jobs", |row| accounting(row, codes, captured_users)) {
                let (json, what) = (json.unwrap(), format!("{version} {name}"));
                assert_eq!(
                    (json.oddities.count(), json.state.unknown.len()),
                    (0, 0),
                    "{what}"
                );
                let same = |row: &&AccountingRecord| {
                    (row.job_id, row.submit) == (json.job_id, json.submit)
                };
                let Some(text) = rows.iter().find(same) else {
                    continue;
                };
                count += 1;
                if json.provisional {
                    assert_eq!((version, json.ended()), ("22.05", false), "{what}");
                    continue;
                }
                // 22.05's text is of a later moment.
                if version == "22.05" && text.ended() != json.ended() {
                    continue;
                }
                let lost = codes == ExitCodes::Lost;
                if let (true, Some(found)) = (lost, json.exit_code) {
                    assert_eq!(Some(found), text.exit_code, "{what}");
                }
                found.extend(differences(
                    &what,
                    row_fields(text, lost),
                    row_fields(&json, lost),
                ));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(count > 100, "{count}");
}

fn node_fields(node: &NodeRecord) -> Compared {
    vec![
        ("name", node.name.clone()),
        ("state", node.state.to_string()),
        ("cpus", debug_text(&(node.cpus_total, node.cpus_alloc))),
        (
            "memory",
            debug_text(&(node.real_memory_mib, node.alloc_memory_mib)),
        ),
        ("gres", debug_text(&(&node.gres, node.gpus()))),
        (
            "features",
            debug_text(&(&node.available_features, &node.active_features)),
        ),
        ("partitions", debug_text(&node.partitions)),
        (
            "reason",
            debug_text(&(&node.reason, &node.reason_user, node.reason_time)),
        ),
        (
            "boot",
            debug_text(&(node.boot_time, node.slurmd_start_time)),
        ),
        (
            "instance",
            debug_text(&(&node.instance_id, &node.instance_type)),
        ),
        ("address", debug_text(&(&node.addr, &node.hostname))),
        ("tres", debug_text(&(&node.cfg_tres, &node.alloc_tres))),
        ("text", debug_text(&(&node.comment, &node.extra))),
    ]
}

#[test]
fn a_node_is_the_same_as_text_and_as_json() {
    let (mut count, mut found) = (0, Vec::new());
    for version in VERSIONS {
        for (name, folder) in captures(version, "nodes") {
            let json = ["scontrol.json", "sinfo.json"]
                .into_iter()
                .find_map(|file| fs::read(folder.join(file)).ok());
            let (Some(json), Ok(text)) = (json, fs::read_to_string(folder.join("scontrol.txt")))
            else {
                continue;
            };
            let (nodes, _) = parse::nodes(&text);
            for json in items(&json, "nodes", node) {
                let (json, what) = (json.unwrap(), format!("{version} {name}"));
                assert_eq!(
                    (json.oddities.count(), json.state.unknown.len()),
                    (0, 0),
                    "{what}"
                );
                let Some(text) = nodes.iter().find(|node| node.name == json.name) else {
                    continue;
                };
                count += 1;
                if !CHANGING.contains(&(version, name.as_str())) {
                    found.extend(differences(&what, node_fields(text), node_fields(&json)));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(count > 40, "{count}");
}
