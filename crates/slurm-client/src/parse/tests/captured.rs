//! Output of real clusters.

use std::{collections::HashMap, fs, path::PathBuf};

use slurm_types::{JobBaseState, Lifecycle};

use super::super::*;
use crate::{ArrayTasks, CompletionRecord, HookEnv, JobRecord};

const VERSIONS: [&str; 3] = ["22.05", "24.11", "26.05"];

fn folder(version: &str, kind: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data", version, kind]
        .iter()
        .collect()
}

fn captures(version: &str, kind: &str) -> Vec<(String, String)> {
    let mut files: Vec<_> = fs::read_dir(folder(version, kind))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let stem = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    files
        .iter()
        .map(|path| (stem(path), fs::read_to_string(path).unwrap()))
        .collect()
}

pub(super) fn job_capture(version: &str, name: &str) -> Vec<JobRecord> {
    let (_, text) = captures(version, "jobs")
        .into_iter()
        .find(|(stem, _)| stem == name)
        .unwrap();
    let answer = jobs(&text, &HashMap::new());
    assert_eq!(answer.unclear, [], "{version} {name}");
    answer.records
}

#[test]
fn every_captured_job_is_read_without_loss() {
    for version in VERSIONS {
        for (name, text) in captures(version, "jobs") {
            let answer = jobs(&text, &HashMap::new());
            let lines = text
                .lines()
                .filter(|line| line.starts_with("JobId="))
                .count();
            assert_eq!(
                (answer.records.len(), answer.unclear.len()),
                (lines, 0),
                "{version} {name}"
            );
            for job in answer.records {
                assert_eq!(job.oddities.count(), 0, "{version} {name}: {job:?}");
                assert!(job.state.unknown.is_empty(), "{version} {name}");
                assert!(
                    job.uid.is_some() && job.submit.is_some() && job.job_ref().is_some(),
                    "{version} {name}"
                );
                assert_eq!(
                    job.was_allocated(),
                    !job.alloc_tres.is_empty(),
                    "{version} {name}"
                );
                assert_ne!(
                    slurm_types::Reason::lookup(&job.reason).class(),
                    slurm_types::ReasonClass::Unknown,
                    "{version} {}",
                    job.reason
                );
                assert_eq!(
                    (job.stdin.as_str(), job.work_dir.as_str()),
                    ("/dev/null", "/tmp"),
                    "{version} {name}"
                );
            }
        }
    }
}

#[test]
fn records_of_three_versions_look_the_same() {
    for version in VERSIONS {
        for name in [
            "array-2-partly-running",
            "failed-exit3",
            "gpu-running",
            "het-2-running",
            "pending-ReqNodeNotAvail",
            "suspended",
        ] {
            insta::assert_json_snapshot!(
                format!("job-{version}-{name}"),
                job_capture(version, name)
            );
        }
    }
}

#[test]
fn fields_of_events_exist_in_every_version() {
    for version in VERSIONS {
        let failed = &job_capture(version, "failed-exit3")[0];
        assert!(failed.state.is(JobBaseState::Failed), "{version}");
        assert_eq!(failed.exit_code.unwrap().to_string(), "3:0", "{version}");

        let array = job_capture(version, "array-2-partly-running");
        let tasks: Vec<_> = array
            .iter()
            .map(|job| job.array_tasks.clone().unwrap())
            .collect();
        assert!(tasks.contains(&ArrayTasks::Task(0)), "{version} {tasks:?}");
        assert!(
            tasks
                .iter()
                .any(|tasks| matches!(tasks, ArrayTasks::Remainder(_))),
            "{version} {tasks:?}"
        );

        let het = job_capture(version, "het-2-running");
        let offsets: Vec<_> = het
            .iter()
            .map(|job| (job.het_job_id == het[0].job_id, job.het_job_offset))
            .collect();
        assert_eq!(offsets, [(true, Some(0)), (true, Some(1))], "{version}");

        let gpu = &job_capture(version, "gpu-running")[0];
        assert_eq!(gpu.alloc_tres.gpus(), 2, "{version}");
        assert_eq!(gpu.tres_per.len(), 1, "{version} {:?}", gpu.tres_per);
    }
}

#[test]
fn every_captured_node_has_its_stage_of_life() {
    let stages = [
        ("allocated", Lifecycle::Active),
        ("draining", Lifecycle::Draining),
        ("drained", Lifecycle::Drained),
        ("down-by-admin", Lifecycle::Down),
        ("not-responding-down", Lifecycle::Down),
        ("maint", Lifecycle::Drained),
        ("reserved", Lifecycle::Active),
        ("cloud-IDLE_CLOUD_POWERED_DOWN", Lifecycle::Terminated),
        (
            "cloud-MIXED_CLOUD_NOT_RESPONDING_POWERING_UP",
            Lifecycle::Provisioning,
        ),
        ("cloud-MIXED_CLOUD_POWERED_DOWN", Lifecycle::Provisioning),
        ("cloud-IDLE_CLOUD_POWERING_DOWN", Lifecycle::Terminating),
    ];
    let mut seen = 0;
    for version in VERSIONS {
        for (name, text) in captures(version, "nodes") {
            let (nodes, unread) = nodes(&text);
            assert_eq!((nodes.len(), unread.count), (1, 0), "{version} {name}");
            let node = &nodes[0];
            let (_, stage) = stages.iter().find(|(stem, _)| *stem == name).unwrap();
            assert_eq!(node.lifecycle(), *stage, "{version} {name}: {}", node.state);
            assert_eq!(
                (
                    node.oddities.count(),
                    node.state.unknown.len(),
                    node.cpus_total
                ),
                (0, 0, 4),
                "{version} {name}"
            );
            if name.starts_with("drain") {
                assert!(
                    ["bad disk", "test drain"].contains(&node.reason.as_str()),
                    "{version} {name}: {}",
                    node.reason
                );
                assert_eq!(node.reason_user, "root", "{version} {name}");
                assert!(node.reason_time.is_some(), "{version} {name}");
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 27);
}

/// Rearranges captured columns into our order and separation; columns that were not captured are empty.
fn relaid(text: &str, separator: &Separator) -> (String, usize) {
    let mut lines = text.lines();
    let header: Vec<_> = lines.next().unwrap().split('|').collect();
    let rows: Vec<String> = lines
        .map(|line| {
            let values: HashMap<_, _> = header.iter().copied().zip(line.split('|')).collect();
            let row: Vec<_> = ACCOUNTING_FIELDS
                .iter()
                .map(|field| values.get(field).copied().unwrap_or_default())
                .collect();
            separator.join(&row) + "\n"
        })
        .collect();
    (rows.concat(), rows.len())
}

#[test]
fn every_captured_accounting_row_is_read() {
    for version in VERSIONS {
        let text = fs::read_to_string(folder(version, "sacct.txt")).unwrap();
        let separator = Separator::random();
        let (relaid, rows) = relaid(&text, &separator);
        let (records, unread) = accounting(&relaid, &separator).unwrap();
        assert_eq!((records.len(), unread.count), (rows, 0), "{version}");
        for record in &records {
            assert!(
                record.submit.is_some()
                    && record.state.unknown.is_empty()
                    && record.oddities.count() == 0,
                "{version} {record:?}"
            );
            if record.state.ends_run_in_accounting() {
                assert!(record.ended(), "{version} {record:?}");
            }
        }
        assert!(
            records.iter().any(|record| record.cancelled_by.is_some()),
            "{version}"
        );
        assert!(
            records
                .iter()
                .any(|record| record.het_job_offset == Some(1)),
            "{version}"
        );
        assert!(
            records
                .iter()
                .any(|record| matches!(&record.array, Some(array) if array.tasks.task().is_some())),
            "{version}"
        );
        let requeued: Vec<_> = records
            .iter()
            .filter(|record| record.state.to_string() == "REQUEUED")
            .collect();
        assert!(
            requeued
                .iter()
                .all(|record| record.ended() && record.was_allocated()),
            "{version}"
        );
    }
}

#[test]
fn hook_environments_of_every_version_are_read() {
    for version in VERSIONS {
        for (hook, text) in captures(version, "env") {
            let env = text
                .lines()
                .filter_map(|line| line.split_once('='))
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .collect();
            if hook.starts_with("JobComp") {
                let record = CompletionRecord::from_env(&env).unwrap();
                assert!(
                    record.state.is(JobBaseState::Completed)
                        && record.was_allocated()
                        && !record.requeued(),
                    "{version} {hook}"
                );
                assert_eq!(
                    record.array_task_id.is_some(),
                    hook.contains("array"),
                    "{version} {hook}"
                );
                assert_eq!(
                    record.array_task_id.is_some(),
                    record.array_job_id.is_some(),
                    "{version} {hook}"
                );
                assert!(
                    record.submit < record.end && record.start <= record.end,
                    "{version} {hook}"
                );
                assert_eq!(
                    record.time_limit.and_then(|limit| limit.minutes()),
                    Some(10),
                    "{version} {hook}"
                );
            } else {
                let record = HookEnv::from_env(&env).unwrap();
                assert!(
                    record.job_id.is_some()
                        && record.uid == Some(20_001)
                        && !record.nodes.is_empty(),
                    "{version} {hook}"
                );
                assert_eq!(
                    record.array_task_id.is_some(),
                    hook.contains("array"),
                    "{version} {hook}"
                );
                assert_eq!(
                    record.exit_code.is_some(),
                    hook.starts_with("Epilog"),
                    "{version} {hook}"
                );
            }
        }
    }
    assert!(CompletionRecord::from_env(&[("JOBID".to_owned(), "1".to_owned())].into()).is_err());
    assert!(HookEnv::from_env(&[("SLURM_JOB_ID".to_owned(), "0".to_owned())].into()).is_err());
}

#[test]
fn captured_facts_about_scheduling_are_read() {
    for version in VERSIONS {
        let texts: HashMap<_, _> = captures(version, "scheduling").into_iter().collect();
        let found = limits(&texts["assoc_mgr"]).unwrap();
        let parent = |account: &str| found.accounts.get(account).map(String::as_str);
        assert_eq!(
            (parent("physics"), parent("root")),
            (Some("acme"), Some(""))
        );
        let value = |qos: &str, account: &str, user: &str, limit: &str, tres: &str| {
            let same = found.limits.iter().find(|record| {
                (
                    record.qos.as_str(),
                    record.account.as_str(),
                    record.user.as_str(),
                ) == (qos, account, user)
                    && (record.limit, record.tres.as_str()) == (limit, tres)
            });
            same.map(|record| (record.value, record.used.is_some()))
        };
        assert_eq!(value("limited", "", "", "GrpTRES", "cpu"), Some((2, true)));
        // The user is named by its number on 22.05.
        assert_eq!(
            value("limited", "", "alice", "MaxJobsPerUser", ""),
            Some((1, true)),
            "{version}"
        );
        assert_eq!(
            value("short", "", "", "MaxWallDurationPerJob", ""),
            Some((5, false))
        );
        assert_eq!(value("", "tiny", "", "GrpTRES", "cpu"), Some((2, true)));
        assert_eq!(value("limited", "", "", "GrpTRES", "mem"), None);

        let (rows, unread) = running(&texts["running"]);
        assert_eq!(unread.count, 0, "{version}");
        let gpu = rows.iter().find(|row| row.partition == "gpu").unwrap();
        assert_eq!((gpu.tres.gpus(), gpu.nodes.as_str()), (2, "n3"));
        assert!(gpu.start.is_some() && gpu.end.is_some());

        let (found, unread) = reservations(&texts["reservations"]);
        assert_eq!((found.len(), unread.count), (2, 0));
        let maintenance = found.iter().find(|found| found.name == "maint1").unwrap();
        assert!(maintenance.flags.contains(&"MAINT".to_owned()));
        assert!(maintenance.start < maintenance.end);

        let (found, unread) = licenses(&texts["licenses"]);
        assert_eq!((found.len(), unread.count), (2, 0));
        assert_eq!(found[1].total, 2);

        let stats = backfill(&texts["sdiag"]).unwrap();
        assert!(stats.last_cycle.is_some() && stats.queue_length > 0);
        every_line_of_sdiag_is_read(version, &texts["sdiag"]);

        let (found, _) = partitions(&texts["partitions"]);
        let closed = found.iter().find(|found| found.name == "closed").unwrap();
        assert_eq!(closed.allow_accounts, ["ml"]);
        assert_eq!((closed.max_nodes, closed.allow_qos.len()), (None, 0));
    }
    let text = captures("22.05", "scheduling");
    let (_, text) = text.iter().find(|(name, _)| name == "sprio").unwrap();
    let (rows, unread) = priorities(text);
    assert_eq!(unread.count, 0);
    assert!(rows[0].factors.contains(&("partition", 1_000)), "{rows:?}");
}

/// Every number that sdiag prints is a figure or a call, and what they are named after is what is printed.
fn every_line_of_sdiag_is_read(version: &str, text: &str) {
    let stats = statistics(text).unwrap();
    let (figures, calls) = text.split_once("Remote Procedure Call").unwrap();
    let printed = figures.lines().filter(|line| {
        let value = line.rsplit_once(':').map(|(_, value)| value.trim());
        value.is_some_and(|value| value.starts_with(|c: char| c.is_ascii_digit()))
            // Only in some versions.
            && !line.starts_with("RPC queue enabled")
    });
    assert_eq!(stats.figures.len(), printed.count(), "{version}: {stats:?}");
    let is_known = |name| crate::record::FIGURES.contains(name);
    assert!(stats.figures.keys().all(is_known));
    let rows = calls.lines().filter(|line| line.contains("ave_time:"));
    let read = stats.calls_by_type.len() + stats.calls_by_user.len();
    assert_eq!(read, rows.count(), "{version}");
    let value = |label: &str| {
        let (_, part) = text.split_once("Backfilling stats").unwrap();
        let line = part.lines().find(|line| line.trim().starts_with(label));
        leading::<i64>(line.unwrap().rsplit_once(':').unwrap().1)
    };
    for (name, label) in [
        ("bf_cycle_last", "Last cycle:"),
        ("bf_last_depth", "Last depth cycle:"),
        ("bf_last_depth_try", "Last depth cycle (try sched):"),
        ("bf_depth_mean", "Depth Mean:"),
    ] {
        assert_eq!(stats.figures.get(name).copied(), value(label), "{version}");
    }
    let root = stats
        .calls_by_user
        .iter()
        .find(|calls| calls.name == "root");
    assert!(root.unwrap().count > 0);
    // Before the first cycle.
    let time = stats.figures["bf_when_last_cycle"];
    let at = text.lines().find(|line| line.contains("Last cycle when"));
    let never = text.replace(at.unwrap(), "\tLast cycle when: N/A");
    let never = statistics(&never).unwrap();
    assert!(time > 0);
    assert_eq!(never.figures["bf_when_last_cycle"], 0, "{version}");
}

#[test]
fn shares_of_accounts_and_users_are_read() {
    // 22.05 with Fair Tree: accounts have no factor, and `inf` is the level of who used nothing.
    let text = "root|||0.000000|4620||1.000000||\n root|root|1|0.500000|0|0.000000|0.000000|1.000000|inf\n";
    let (_, unread) = shares(text);
    assert_eq!(unread.count, 2, "columns of another format");
    let text = " physics||2|0.333333|4620|0.250000||1.333333\n  physics|alice|parent|0.5|120|0.01|0.875|inf\n";
    let (rows, unread) = shares(text);
    assert_eq!(unread.count, 0);
    let physics = &rows[0];
    assert_eq!(
        (physics.account.as_str(), physics.raw_shares),
        ("physics", 2)
    );
    assert_eq!(
        (physics.fairshare, physics.level_fairshare),
        (None, Some(1.333_333))
    );
    let alice = &rows[1];
    assert_eq!((alice.user.as_str(), alice.raw_shares), ("alice", 0));
    assert_eq!(
        (alice.fairshare, alice.level_fairshare),
        (Some(0.875), None)
    );
}
