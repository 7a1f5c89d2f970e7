//! Rules by API: who may make which, where they take effect, and that they stay.

use axum::http::StatusCode;
use chrono::TimeDelta;
use mesh_events::EventType;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::CLUSTER;
use mesh_testkit::{NatsServer, Postgres, wait_for, wait_until};
use serde_json::{Value, json};

use crate::cluster::shared;
use crate::support::{
    DEADLINE, Site, Trigger, admin, alice, audit, bus, end, on_both, publish, rule,
    submitter_of_users,
};

const ON: &str = "api_rules = true";
const SCRIPT: &str = "#!/bin/bash\ntrue\n";

on_both!(
    rules_are_made_by_their_owners_and_administrators,
    rules_outlive_the_process_and_fire,
    a_rule_of_mesh_toml_goes_before_one_by_api,
);

fn caller(name: &str) -> Caller {
    match name {
        "root" => admin(),
        "eve" => Caller::peer("eve", 20_009, Role::Auditor),
        "prometheus" => Caller::peer("prometheus", 65_534, Role::Metrics),
        "bob" => Caller::peer("bob", 20_002, Role::User),
        _ => alice(),
    }
}

/// A rule that publishes an event when a job of its owner completes.
fn definition() -> Value {
    json!({"on": {"types": ["job.completed"]}, "action": {"publish": "done"}})
}

async fn put(trigger: &Trigger, who: &str, rule: &str, body: &Value) -> (StatusCode, Value) {
    let path = format!("/v1/triggers/{rule}");
    let body = Some(body.clone());
    trigger.ask(caller(who), "PUT", &path, body).await
}

async fn delete(trigger: &Trigger, who: &str, rule: &str) -> (StatusCode, Value) {
    let path = format!("/v1/triggers/{rule}");
    trigger.ask(caller(who), "DELETE", &path, None).await
}

async fn list(trigger: &Trigger) -> Value {
    let (status, list) = trigger.ask(admin(), "GET", "/v1/triggers", None).await;
    assert_eq!(status, StatusCode::OK, "{list}");
    list
}

/// The rule in the list, if it is there.
async fn listed(trigger: &Trigger, name: &str) -> Option<Value> {
    let list = list(trigger).await;
    let mut rules = list["rules"].as_array().unwrap().iter();
    rules.find(|rule| rule["rule"] == name).cloned()
}

fn detail(answer: &Value) -> &str {
    answer["detail"].as_str().unwrap_or_default()
}

async fn rules_are_made_by_their_owners_and_administrators(site: Site) {
    const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;
    const NOT_FOUND: StatusCode = StatusCode::NOT_FOUND;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let tables = submitter_of_users(&site);
    let trigger = site.start(&nats, ON, &tables).await;
    let people = ["bob", "eve", "prometheus"];
    for who in people {
        let (status, answer) = put(&trigger, who, "alice/mine", &definition()).await;
        assert_eq!(status, FORBIDDEN, "{who}: {answer}");
    }
    let (status, answer) = put(&trigger, "alice", "alice/mine", &definition()).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert_eq!(answer["result"], "created");
    assert_eq!(answer["rule"]["defined_in"], "api");
    assert_eq!(answer["rule"]["changed_by"], "alice");
    let (status, answer) = put(&trigger, "alice", "alice/mine", &definition()).await;
    assert_eq!(
        (status, &answer["result"]),
        (StatusCode::OK, &json!("unchanged"))
    );
    // An administrator's rule may do more, so it is another one.
    let (status, answer) = put(&trigger, "root", "alice/mine", &definition()).await;
    assert_eq!(
        (status, &answer["result"]),
        (StatusCode::OK, &json!("changed"))
    );
    for (who, expected) in people.into_iter().zip([NOT_FOUND, FORBIDDEN, NOT_FOUND]) {
        let (status, answer) = delete(&trigger, who, "alice/mine").await;
        assert_eq!(status, expected, "{who}: {answer}");
    }
    for (method, body) in [("PUT", definition().to_string()), ("DELETE", String::new())] {
        let headers = [("content-type", "application/json")];
        let path = "/v1/triggers/alice/mine";
        let (status, _) = trigger.send_as(method, path, &headers, body).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "nobody: {method}");
    }
    // For whom trigger-submitter does not act.
    for (owner, words) in [
        ("root", "root"),
        ("nobody", "not in users"),
        ("no-such-user", "no such user"),
    ] {
        let (status, answer) = put(&trigger, "root", &format!("{owner}/x"), &definition()).await;
        assert_eq!(status, FORBIDDEN, "{owner}: {answer}");
        assert!(detail(&answer).contains(words), "{answer}");
    }
    let (status, _) = delete(&trigger, "alice", "alice/mine").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _) = delete(&trigger, "root", "alice/mine").await;
    assert_eq!(status, NOT_FOUND);
    wait_until("the audit has all changes", DEADLINE, async || {
        let acts = audit(&bus, "").await;
        let acts: Vec<_> = acts
            .iter()
            .map(|act| (act.what.as_str(), act.rule.as_str(), act.made_by.as_str()))
            .collect();
        acts == [
            ("created", "alice/mine", "alice"),
            ("changed", "alice/mine", "root"),
            ("deleted", "alice/mine", "alice"),
        ]
    })
    .await;
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_or_not_permitted_is_named() {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    mesh_testkit::write_private(
        &site.path("lab.secret"),
        "a secret of 32 bytes and some more",
    );
    let source = |name: &str, users: &str| {
        format!(
            "[[workflow-trigger.sources]]\nname = {name:?}\nsignature = \"bearer\"\nsecret_file = \"lab.secret\"\nusers = {users}\n"
        )
    };
    let tables =
        submitter_of_users(&site) + &source("lab", "[\"bob\"]") + &source("open", "[\"*\"]");
    let keys = "api_rules = true\nlimits = { rules_per_user = 2 }";
    let trigger = site.start(&nats, keys, &tables).await;
    let submit = |action: Value| json!({"on": {"manual": true}, "action": action});
    let on = |on: Value| json!({"on": on, "action": {"publish": "done"}});
    let long = format!("#!/bin/sh\n{}", "x".repeat(64 * 1024));
    // (body, key, whether an administrator may)
    for (body, words, admin_may) in [
        (json!([]), "not a JSON object", false),
        (json!({"on": {"manual": true}}), "action", false),
        (on(json!({"manual": true, "tipes": []})), "on.tipes", false),
        (
            json!({"name": "other", "on": {"manual": true}, "action": {"publish": "p"}}),
            "name: \"other\"",
            false,
        ),
        (
            json!({"owner": "bob", "on": {"manual": true}, "action": {"publish": "p"}}),
            "owner: \"bob\"",
            false,
        ),
        (
            submit(json!({"submit": "true.sh"})),
            "action.script: missing",
            false,
        ),
        (
            submit(json!({"submit": "../true.sh", "script": SCRIPT})),
            "action.submit: the name",
            false,
        ),
        (
            submit(json!({"submit": "/etc/true.sh", "script": SCRIPT})),
            "action.submit: the name",
            false,
        ),
        (
            submit(json!({"submit": "a.sh", "script": "true\n"})),
            "action.script: no `#!`",
            false,
        ),
        (
            submit(json!({"submit": "a.sh", "script": long})),
            "action.script: larger than",
            false,
        ),
        (
            submit(json!({"submit": "a.sh", "script": SCRIPT, "partition": "--uid=0"})),
            "action.partition",
            false,
        ),
        (
            submit(json!({"publish": "p", "script": SCRIPT})),
            "action.script: not with publish",
            false,
        ),
        (on(json!({"source": "gone"})), "on.source: no source", false),
        (
            on(json!({"types": ["job.completed"], "users": ["*"]})),
            "on.users",
            true,
        ),
        (
            on(json!({"types": ["job.completed"], "users": ["bob"]})),
            "on.users",
            true,
        ),
        (
            on(json!({"source": "publish", "users": ["bob"]})),
            "on.users",
            true,
        ),
        (
            on(json!({"types": ["job.completed"], "clusters": ["west"]})),
            "on.clusters",
            true,
        ),
        (on(json!({"source": "lab"})), "on.source: no source", true),
    ] {
        let (status, answer) = put(&trigger, "alice", "alice/new", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer}");
        assert!(detail(&answer).contains(words), "{words}: {answer}");
        let (status, answer) = put(&trigger, "root", "alice/new?dry_run=true", &body).await;
        let expected = match admin_may {
            true => StatusCode::OK,
            false => StatusCode::BAD_REQUEST,
        };
        assert_eq!(status, expected, "{body}: {answer}");
    }
    let (status, _) = put(&trigger, "alice", "alice/a%20b", &definition()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, _) = put(&trigger, "alice", "alice/new?dry=true", &definition()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    // Nothing of that is stored.
    assert_eq!(list(&trigger).await["rules"], json!([]));
    // As many as the limit permits, and more by administrators.
    for (who, name, expected) in [
        ("alice", "one", StatusCode::CREATED),
        ("alice", "two", StatusCode::CREATED),
        ("alice", "three", StatusCode::CONFLICT),
        ("alice", "two", StatusCode::OK),
        ("root", "three", StatusCode::CREATED),
    ] {
        let body = on(json!({"source": "open"}));
        let (status, answer) = put(&trigger, who, &format!("alice/{name}"), &body).await;
        assert_eq!(status, expected, "{who} {name}: {answer}");
    }
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_by_api_are_off_unless_they_are_permitted() {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let tables = submitter_of_users(&site);
    let trigger = site.start(&nats, ON, &tables).await;
    let (status, _) = put(&trigger, "alice", "alice/mine", &definition()).await;
    assert_eq!(status, StatusCode::CREATED);
    trigger.stop().await;
    let trigger = site.start(&nats, "", &tables).await;
    let (status, answer) = put(&trigger, "alice", "alice/mine", &definition()).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(detail(&answer).contains("api_rules"), "{answer}");
    assert_eq!(list(&trigger).await["rules"], json!([]));
    trigger.stop().await;
}

/// Events of others, and of nobody, fire no rule that its owner made.
async fn rules_outlive_the_process_and_fire(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let tables = submitter_of_users(&site);
    let trigger = site.start(&nats, ON, &tables).await;
    let all = json!({"on": {"types": ["job.*", "node.*"]}, "action": {"notify": "{{ type }}"}});
    for (who, rule) in [("alice", "alice/mine"), ("root", "bob/nodes")] {
        let (status, answer) = put(&trigger, who, rule, &all).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    trigger.kill().await;
    let trigger = site.start(&nats, ON, &tables).await;
    let of_bob = end(EventType::JobCompleted, 1, "bob", TimeDelta::zero());
    let mut of_nobody = event_filter::sample::event(EventType::NodeDown);
    of_nobody.cluster = CLUSTER.to_owned();
    of_nobody.occurred_at = of_bob.occurred_at;
    let of_alice = end(EventType::JobFailed, 2, "alice", TimeDelta::zero());
    for event in [&of_bob, &of_nobody, &of_alice] {
        publish(&bus, event).await;
    }
    trigger.wait_run(&of_alice.id, "done").await;
    trigger.wait_run(&of_nobody.id, "done").await;
    let mut fired: Vec<(String, String)> = trigger
        .runs("")
        .await
        .iter()
        .map(|run| {
            let text = |key: &str| run[key].as_str().unwrap().to_owned();
            (text("rule"), text("event_type"))
        })
        .collect();
    fired.sort();
    let expected = [
        ("alice/mine", "job.failed"),
        ("bob/nodes", "job.completed"),
        ("bob/nodes", "node.down"),
    ];
    assert_eq!(
        fired,
        expected.map(|(rule, event)| (rule.to_owned(), event.to_owned()))
    );
    trigger.stop().await;
}

async fn a_rule_of_mesh_toml_goes_before_one_by_api(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let tables = submitter_of_users(&site);
    let in_file = |name: &str| rule(name, "dry_run = true");
    let trigger = site.start(&nats, ON, &(in_file("one") + &tables)).await;
    let (status, answer) = put(&trigger, "alice", "alice/one", &definition()).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let words = "rule \"alice/one\" is defined in mesh.toml";
    assert!(detail(&answer).starts_with(words), "{answer}");
    let (status, answer) = delete(&trigger, "alice", "alice/one").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(detail(&answer).starts_with(words), "{answer}");
    let (status, _) = put(&trigger, "alice", "alice/two", &definition()).await;
    assert_eq!(status, StatusCode::CREATED);

    // The operator takes the name.
    let both = in_file("one") + &in_file("two") + &tables;
    site.configure(&nats, ON, &both);
    let defined_in = async |place: &str| {
        let description = format!("alice/two is defined in {place}");
        wait_until(&description, DEADLINE, async || {
            let rule = listed(&trigger, "alice/two").await;
            rule.is_some_and(|rule| rule["defined_in"] == place)
        })
        .await;
    };
    defined_in("mesh.toml").await;
    let unusable = &list(&trigger).await["unusable"][0];
    assert_eq!(unusable["rule"], "alice/two");
    assert!(
        trigger
            .notes()
            .contains("rule alice/two by API is not used")
    );
    site.configure(&nats, ON, &(in_file("one") + &tables));
    defined_in("api").await;
    assert!(!trigger.notes().contains("alice/two"));

    // Its source goes: it is named, and the others stay in use.
    site.configure(&nats, ON, &both);
    defined_in("mesh.toml").await;
    let (status, _) = delete(&trigger, "alice", "alice/two").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert!(list(&trigger).await["unusable"].is_null());
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_without_its_source_is_not_used_and_named() {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    mesh_testkit::write_private(
        &site.path("lab.secret"),
        "a secret of 32 bytes and some more",
    );
    let tables = submitter_of_users(&site);
    let source = "[[workflow-trigger.sources]]\nname = \"lab\"\nsignature = \"bearer\"\nsecret_file = \"lab.secret\"\nusers = [\"alice\"]\n";
    let with_source = tables.clone() + source;
    let trigger = site.start(&nats, ON, &with_source).await;
    let of_lab = json!({"on": {"source": "lab"}, "action": {"publish": "done"}});
    for (name, body) in [("lab", of_lab), ("other", definition())] {
        let (status, answer) = put(&trigger, "alice", &format!("alice/{name}"), &body).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    site.configure(&nats, ON, &tables);
    wait_until("the rule is not used", DEADLINE, async || {
        listed(&trigger, "alice/lab").await.is_none()
    })
    .await;
    assert!(listed(&trigger, "alice/other").await.is_some());
    let path = "/v1/triggers/alice/lab";
    let (status, answer) = trigger.ask(alice(), "GET", path, None).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(detail(&answer).contains("on.source: no source"), "{answer}");
    let (status, _) = trigger.ask(caller("bob"), "GET", path, None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    site.configure(&nats, ON, &with_source);
    wait_until("the rule is used again", DEADLINE, async || {
        listed(&trigger, "alice/lab").await.is_some()
    })
    .await;
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_replicas_use_and_lose_a_rule() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let url = Postgres::shared().await.create_database();
    let sites = [Site::new(&url), Site::new(&url)];
    let one = sites[0]
        .start(&nats, ON, &submitter_of_users(&sites[0]))
        .await;
    let two = sites[1]
        .start(&nats, ON, &submitter_of_users(&sites[1]))
        .await;
    let all = json!({"on": {"types": ["job.*"]}, "action": {"notify": "{{ type }}"}});
    let (status, _) = put(&one, "alice", "alice/mine", &all).await;
    assert_eq!(status, StatusCode::CREATED);
    assert!(listed(&one, "alice/mine").await.is_some());
    wait_until("the other one uses it", DEADLINE, async || {
        listed(&two, "alice/mine").await.is_some()
    })
    .await;
    let event = end(EventType::JobCompleted, 1, "alice", TimeDelta::zero());
    publish(&bus, &event).await;
    one.wait_run(&event.id, "done").await;
    assert_eq!(two.runs("").await.len(), 1);
    // A change, too.
    let mut changed = all.clone();
    changed["description"] = json!("changed");
    let (_, answer) = put(&two, "alice", "alice/mine", &changed).await;
    assert_eq!(answer["result"], "changed");
    wait_until("the change is there", DEADLINE, async || {
        let rule = listed(&one, "alice/mine").await;
        rule.is_some_and(|rule| rule["description"] == "changed")
    })
    .await;
    let (status, _) = delete(&two, "alice", "alice/mine").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    wait_until("it is gone", DEADLINE, async || {
        listed(&one, "alice/mine").await.is_none()
    })
    .await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_of_a_rule_runs_as_its_owner() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let keys = "api_rules = true\nconfirm_after = \"100ms\"";
    let trigger = site.start(&nats, keys, &cluster.submitter()).await;
    let results = cluster.results.display();
    let script = format!(
        "#!/bin/bash\necho \"$(id -un) $1\" > {results}/by_api.new\nmv {results}/by_api.new {results}/by_api\n"
    );
    let body = json!({
        "on": {"types": ["job.completed"]},
        "action": {"submit": "scripts/write.sh", "script": script, "args": ["{{ job.job_id }}"], "memory": "10M", "output": "/dev/null"},
    });
    let (status, answer) = put(&trigger, "alice", "alice/write", &body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let path = "/v1/triggers/alice/write";
    let (_, shown) = trigger.ask(alice(), "GET", path, None).await;
    assert_eq!(shown["script"], script);
    assert_eq!(shown["script_sha256"], answer["rule"]["script_sha256"]);
    assert_eq!(shown["definition"]["action"]["submit"], "scripts/write.sh");
    assert!(shown["definition"]["action"]["script"].is_null());
    let event = end(
        EventType::JobCompleted,
        1_000_001,
        "alice",
        TimeDelta::zero(),
    );
    publish(&bus, &event).await;
    trigger.wait_run(&event.id, "released").await;
    let lines = wait_for("the job has written", DEADLINE, async || {
        Some(cluster.lines("by_api")).filter(|lines| !lines.is_empty())
    })
    .await;
    assert_eq!(lines, ["alice 1000001"]);
    // The audit has the hash of what ran.
    let acts = wait_for("the audit has it", DEADLINE, async || {
        Some(audit(&bus, "").await).filter(|acts| !acts.is_empty())
    });
    let acts = acts.await;
    let hash = shown["script_sha256"].as_str().unwrap();
    assert!(acts[0].definition.contains(hash) && !acts[0].definition.contains("id -un"));
    trigger.stop().await;
}
