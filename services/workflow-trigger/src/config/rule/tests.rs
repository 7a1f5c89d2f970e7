use std::path::PathBuf;

use event_filter::{DecodedEvent, sample};
use mesh_events::EventType;
use serde_json::json;

use super::*;

struct Scripts(tempfile::TempDir);

impl Scripts {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plot.sh"), "#!/bin/sh\ntrue\n").unwrap();
        std::fs::write(folder.path().join("bare.sh"), "true\n").unwrap();
        Self(folder)
    }

    fn read(&self, rule: &str) -> Result<Rule, Vec<String>> {
        let value: toml::Value = toml::from_str(rule).unwrap();
        let value = serde_json::to_value(value).unwrap();
        let folder: PathBuf = self.0.path().into();
        all(context(&folder), &[value]).map(|mut rules| rules.remove(0))
    }
}

fn context(scripts: &Path) -> RuleContext<'_> {
    RuleContext {
        cluster: CLUSTER,
        scripts: Some(scripts),
        sources: &["github"],
        author: RuleAuthor::Administrator,
    }
}

/// The cluster of the sample events.
const CLUSTER: &str = "example";

const PLOT: &str = r#"
name = "plot"
owner = "alice"
[on]
types = ["job.failed"]
when = 'job.exit_code == 1'
[action]
submit = "plot.sh"
args = ["{{ job.work_dir }}", "a b"]
work_dir = "/tmp"
time = "{{ 30 if job.gpus > 1 else 240 }}m"
nodes = 2
"#;

#[test]
fn a_rule_fires_on_its_owners_events_only() {
    let scripts = Scripts::new();
    let fires = |rule: &str, kind: EventType| {
        let event: DecodedEvent = sample::event(kind).into();
        scripts.read(rule).unwrap().matches(kind, &event)
    };
    assert!(fires(PLOT, EventType::JobFailed));
    assert!(!fires(PLOT, EventType::JobCompleted));
    let of_bob = PLOT.replace("alice", "bob");
    assert!(!fires(&of_bob, EventType::JobFailed));
    let of_all = of_bob.replace("[on]", "[on]\nusers = [\"*\"]");
    assert!(fires(&of_all, EventType::JobFailed));
}

#[test]
fn a_rule_acts_on_jobs_of_its_own_cluster_only() {
    let scripts = Scripts::new();
    let fires = |rule: &str, cluster: &str| {
        let mut event = sample::event(EventType::JobFailed);
        event.cluster = cluster.to_owned();
        let event: DecodedEvent = event.into();
        scripts
            .read(rule)
            .unwrap()
            .matches(EventType::JobFailed, &event)
    };
    assert!(fires(PLOT, CLUSTER) && !fires(PLOT, "west"));
    let of_both = PLOT.replace("[on]", &format!("[on]\nclusters = [{CLUSTER:?}, \"west\"]"));
    assert!(fires(&of_both, CLUSTER) && fires(&of_both, "west"));
    let cancels = "name = \"x\"\nowner = \"alice\"\non = { types = [\"job.failed\"], clusters = [\"west\"] }\naction = { cancel = \"{{ job.job_id }}\" }\n";
    let faults = scripts.read(cancels).unwrap_err();
    assert!(faults[0].contains("on.clusters: only"), "{faults:?}");
}

#[test]
fn jitter_is_for_schedules_and_at_most_an_hour() {
    let scripts = Scripts::new();
    let nightly = "name = \"nightly\"\nowner = \"alice\"\non = { cron = \"0 2 * * *\", jitter = \"5m\" }\naction = { submit = \"plot.sh\" }\n";
    let EventSelector::Cron(schedule) = scripts.read(nightly).unwrap().on else {
        panic!("no schedule");
    };
    assert!(schedule.delay() <= chrono::TimeDelta::minutes(5));
    let faults = scripts.read(&nightly.replace("5m", "61m")).unwrap_err();
    assert!(faults[0].contains("on.jitter: at most 1h"), "{faults:?}");
    let of_events = PLOT.replace("[on]", "[on]\njitter = \"5m\"");
    let faults = scripts.read(&of_events).unwrap_err();
    assert!(
        faults[0].contains("on.jitter: not with on.types"),
        "{faults:?}"
    );
}

#[test]
fn faults_name_the_rule_and_the_key() {
    let scripts = Scripts::new();
    for (from, to, fault) in [
        (
            "time = ",
            "tim = ",
            "rule \"plot\": action.tim: unknown key; there are submit",
        ),
        (
            "job.failed",
            "job.explode",
            "rule \"plot\": on.types: unknown event type",
        ),
        (
            "job.exit_code ==",
            "job.exit ==",
            "rule \"plot\": on.when: character 1: no field \"job.exit\"",
        ),
        (
            "{{ job.work_dir }}",
            "{{ job.workdir }}",
            "rule \"plot\": action.args[0]: {{ job.workdir }}: character 1: no field",
        ),
        ("plot.sh", "bare.sh", "rule \"plot\": action.submit: "),
        (
            "plot.sh",
            "../plot.sh",
            "rule \"plot\": action.submit: the name of a file",
        ),
        (
            "submit = \"plot.sh\"",
            "submit = \"plot.sh\"\ncancel = 7",
            "rule \"plot\": action: exactly one of submit",
        ),
        (
            "work_dir = \"/tmp\"",
            "work_dir = \"/tmp\"\npartition = \"--uid=0\"",
            "rule \"plot\": action.partition: ",
        ),
        (
            "nodes = 2",
            "environment = { LD_PRELOAD = \"x\" }",
            "rule \"plot\": action.environment.LD_PRELOAD: capitals",
        ),
        ("nodes = 2", "nodes = 0", "rule \"plot\": action.nodes: "),
        (
            "nodes = 2",
            "approve = { within = \"8d\" }",
            "rule \"plot\": action.approve.within: from 1s to 7d",
        ),
        (
            "nodes = 2",
            "approve = { by = [\"a b\"] }",
            "rule \"plot\": action.approve.by: ",
        ),
        (
            "nodes = 2",
            "approve = { who = [\"bob\"] }",
            "rule \"plot\": action.approve: who: unknown field",
        ),
        (
            "job.failed",
            "user.notified",
            "rule \"plot\": on.types: no rule fires on user.notified",
        ),
        (
            "owner = \"alice\"",
            "owner = \"a/b\"",
            "rule \"plot\": owner: ",
        ),
    ] {
        let faults = scripts.read(&PLOT.replace(from, to)).unwrap_err();
        assert!(
            faults.iter().any(|found| found.starts_with(fault)),
            "{fault}: {faults:?}"
        );
    }
}

#[test]
fn the_other_actions_are_read() {
    let scripts = Scripts::new();
    let rule = |action: &str| {
        scripts.read(&format!(
            "name = \"r\"\nowner = \"alice\"\n[on]\ntypes = [\"job.timeout\"]\n[action]\n{action}"
        ))
    };
    assert!(rule("requeue = \"{{ job.job_id }}\"").is_ok());
    assert!(rule("signal = \"{{ job.job_id }}\"\nsignal_name = \"USR1\"").is_ok());
    assert!(rule("update = \"{{ job.job_id }}\"\ntime = \"4h\"").is_ok());
    assert!(rule("retry = { time = \"x1.5\", time_max = \"1d\" }").is_ok());
    let notify = "notify = \"{{ job.name }}\"\ndata = { id = \"{{ job.job_id }}\" }";
    assert_eq!(rule(notify).unwrap().approval, None);
    let approval = rule("requeue = 7\napprove = { }")
        .unwrap()
        .approval
        .unwrap();
    assert_eq!(approval.by, ["alice".to_owned()].into());
    for (action, key) in [
        (
            "publish = \"p\"\nsignal_name = \"USR1\"",
            "action.signal_name: not with publish",
        ),
        (
            "notify = \"x\"\nbatch_only = false",
            "action.batch_only: not with notify",
        ),
        ("cancel = 7\ndata = { }", "action.data: not with cancel"),
        (
            "signal = 7\nsignal_name = \"USR1\"\nargs = [ ]",
            "action.args: not with signal",
        ),
        (
            "update = 7\ntime = \"4h\"\njob_name = \"x\"",
            "action.job_name: not with update",
        ),
        (
            "retry = { time = \"x2\" }\nenvironment = { }",
            "action.environment: not with retry",
        ),
        (
            "submit = \"plot.sh\"\ndata = { }",
            "action.data: not with submit",
        ),
        (
            "retry = { time_max = \"1d\" }",
            "action.retry.time_max: only with time",
        ),
        (
            "retry = { memory = \"x2\" }",
            "action.retry.memory: only with job.out_of_memory",
        ),
        (
            "retry = { exit_codes = [75] }",
            "action.retry.exit_codes: only with job.failed",
        ),
    ] {
        let faults = rule(action).unwrap_err();
        let key = format!("rule \"r\": {key}");
        assert!(
            matches!(&faults[..], [fault] if fault.starts_with(&key)),
            "{key}: {faults:?}"
        );
    }
    for (more, key) in [
        ("[limits]\nmax_event_age = \"1h\"", "limits.max_event_age"),
        ("allow_self = true", "allow_self"),
        ("[action]\nretry = { }", "action.retry"),
    ] {
        let action = if more.starts_with("[action]") {
            ""
        } else {
            "[action]\npublish = \"p\"\n"
        };
        let (before, after) = if more.starts_with('[') {
            ("", more)
        } else {
            (more, "")
        };
        let rule = format!(
            "name = \"r\"\nowner = \"alice\"\n{before}\n[on]\nmanual = true\n{action}{after}"
        );
        let faults = scripts.read(&rule).unwrap_err();
        let key = format!("rule \"r\": {key}: only with on.types");
        assert!(
            matches!(&faults[..], [fault] if fault.starts_with(&key)),
            "{key}: {faults:?}"
        );
    }
    for refused in [
        "approve = { }",
        "notify = \"x\"\ntime = \"4h\"",
        "notify = \"x\"\nargs = [\"x\"]",
        "notify = \"x\"\npublish = \"y\"",
        "update = 7",
        "signal = 7",
        "cancel = 7\ntime = \"4h\"",
        "retry = { time = \"1.5\" }",
        "retry = { attempts = 0 }",
        "hold = 7\nargs = [\"x\"]",
    ] {
        assert!(rule(refused).is_err(), "{refused}");
    }
}

#[test]
fn concurrency_is_of_a_queue() {
    let scripts = Scripts::new();
    let limits = |action: &str, limits: &str| {
        scripts.read(&format!(
            "name = \"r\"\nowner = \"alice\"\non = {{ manual = true }}\naction = {{ {action} }}\nlimits = {{ {limits} }}\n"
        ))
    };
    let submit = "submit = \"plot.sh\"";
    for (action, keys, fault) in [
        (submit, "queue = \"a\", concurrency = \"replace\"", None),
        (
            "notify = \"x\"",
            "queue = \"a\", concurrency = \"skip\"",
            None,
        ),
        (
            submit,
            "concurrency = \"skip\"",
            Some("limits.concurrency: only with limits.queue"),
        ),
        (
            submit,
            "queue = \"a\", concurrency = \"allow\"",
            Some("limits.concurrency: unknown variant"),
        ),
        (
            submit,
            "queue = \"a\", running = 2, concurrency = \"replace\"",
            Some("limits.running: not with"),
        ),
        (
            "notify = \"x\"",
            "queue = \"a\", concurrency = \"replace\"",
            Some("limits.concurrency: replace: only with submit"),
        ),
        (
            "submit = \"plot.sh\", approve = { }",
            "queue = \"a\", concurrency = \"replace\"",
            Some("limits.concurrency: replace: not with action.approve"),
        ),
    ] {
        let read = limits(action, keys);
        match fault {
            None => drop(read.unwrap()),
            Some(fault) => {
                let faults = read.unwrap_err();
                let fault = format!("rule \"r\": {fault}");
                assert!(faults[0].starts_with(&fault), "{fault}: {faults:?}");
            }
        }
    }
}

#[test]
fn a_rule_that_acts_as_others_says_as_whom_and_where() {
    let scripts = Scripts::new();
    let on = |keys: &str| {
        scripts.read(&format!(
            "name = \"r\"\nowner = \"root\"\nrun_as = \"owner_of_event\"\non = {{ {keys} }}\naction = {{ retry = {{ }} }}\n"
        ))
    };
    let valid = "types = [\"job.preempted\"], users = [\"*\"], partitions = [\"cpu\"]";
    assert_eq!(on(valid).unwrap().run_as, RunAs::OwnerOfEvent);
    for (keys, fault) in [
        (valid.replace(", users = [\"*\"]", ""), "on.users: name"),
        (
            valid.replace(", partitions = [\"cpu\"]", ""),
            "run_as: name on.accounts or on.partitions",
        ),
        (
            valid.to_owned() + ", clusters = [\"west\"]",
            "on.clusters: only",
        ),
        ("manual = true".to_owned(), "run_as: only with on.types"),
    ] {
        let faults = on(&keys).unwrap_err();
        let fault = format!("rule \"r\": {fault}");
        assert!(
            faults.iter().any(|found| found.starts_with(&fault)),
            "{fault}: {faults:?}"
        );
    }
    let value = json!({
        "name": "r", "owner": "alice", "run_as": "owner_of_event", "action": {"notify": "x"},
        "on": {"types": ["job.failed"], "users": ["alice"], "accounts": ["a"]},
    });
    let by_owner = RuleContext {
        author: RuleAuthor::Owner,
        scripts: None,
        ..context(scripts.0.path())
    };
    let faults = check(by_owner, &value, RuleOrigin::File).unwrap_err();
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("run_as: only rules of administrators"));
}

#[test]
fn two_rules_of_one_owner_have_different_names() {
    let scripts = Scripts::new();
    let value: toml::Value = toml::from_str(PLOT).unwrap();
    let value = serde_json::to_value(value).unwrap();
    let faults = all(context(scripts.0.path()), &[value.clone(), value]).unwrap_err();
    assert_eq!(faults.len(), 1);
}
