//! Runs that wait for a person, and messages to people.

use axum::http::StatusCode;
use chrono::TimeDelta;
use mesh_bus::Bus;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::user::v1::{Notice, UserEvent};
use mesh_events::{Event, EventId, EventType};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::service::published_so_far;
use mesh_testkit::{NatsServer, wait_until};
use serde_json::{Value, json};

use crate::cluster::shared;
use crate::support::{DEADLINE, Site, Trigger, admin, alice, audit, bus, end, on_both, publish};

on_both!(
    an_approver_decides_and_nobody_else,
    nothing_happens_without_the_approvers,
    whoever_caused_a_chain_approves_no_part_of_it,
    a_message_reaches_the_bus_once_and_fires_nothing
);

pub const NO_SLURM: &str = "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";

pub fn user(name: &str) -> Caller {
    Caller::peer(name, 20_003, Role::User)
}

/// A rule of alice that only people fire, with an approval.
pub fn rule(name: &str, action: &str, approve: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\non = {{ manual = true }}\n[workflow-trigger.rules.action]\n{action}\napprove = {{ {approve} }}\n"
    )
}

pub const PUBLISH: &str = "publish = \"deployed\"";

pub async fn decide(
    trigger: &Trigger,
    caller: Caller,
    key: &str,
    how: &str,
) -> (StatusCode, Value) {
    let path = format!("/v1/trigger-runs/{key}/{how}");
    let body = (how == "reject").then(|| json!({"reason": "not today"}));
    trigger.ask(caller, "POST", &path, body).await
}

async fn fire_as(trigger: &Trigger, caller: Caller, rule: &str, id: &str) -> String {
    let path = format!("/v1/triggers/alice/{rule}/fire");
    let body = json!({"id": id});
    let (status, body) = trigger.ask(caller, "POST", &path, Some(body)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{body}");
    body["key"].as_str().unwrap().to_owned()
}

/// The user and the notice of each event of a type, in order.
pub async fn notices(bus: &Bus, kind: EventType) -> Vec<(String, Notice)> {
    let is_it = |event: &Event| event.r#type == kind.to_string();
    let events = published_so_far(bus, DEADLINE, is_it).await;
    let notice = |event: Event| match event.payload {
        Some(Payload::User(payload)) => (payload.user, payload.notice.unwrap()),
        other => panic!("{other:?}"),
    };
    events.into_iter().map(notice).collect()
}

async fn an_approver_decides_and_nobody_else(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let by = "by = [\"carol\", \"dave\"], not_requester = true";
    let tables = rule("deploy", PUBLISH, by) + &rule("own", PUBLISH, "") + NO_SLURM;
    let trigger = site.start(&nats, "", &tables).await;
    let key = trigger.fire("deploy", "1", json!({})).await;
    trigger.wait_run(&key, "approval").await;
    let mut asked = Vec::new();
    wait_until("both approvers are asked", DEADLINE, async || {
        asked = notices(&bus, EventType::UserApprovalRequested).await;
        asked.len() == 2
    })
    .await;
    assert_eq!((&*asked[0].0, &*asked[1].0), ("carol", "dave"));
    assert_eq!((&*asked[0].1.rule, &asked[0].1.run), ("alice/deploy", &key));
    assert!(asked[0].1.text.contains("publish deployed"));
    assert!(asked[0].1.expires.is_some());
    let (ok, no) = (StatusCode::OK, StatusCode::NOT_FOUND);
    let forbidden = StatusCode::FORBIDDEN;
    let auditor = Caller::peer("eve", 20_009, Role::Auditor);
    let metrics = Caller::peer("prometheus", 65_534, Role::Metrics);
    // Of an approver's name, but not with the role of one.
    let auditor_carol = Caller::peer("carol", 20_003, Role::Auditor);
    for (caller, reads, decides) in [
        (alice(), ok, forbidden),
        (user("bob"), no, no),
        (auditor, ok, forbidden),
        (auditor_carol, ok, forbidden),
        (metrics, no, no),
    ] {
        let path = format!("/v1/trigger-runs/{key}");
        let (status, _) = trigger.ask(caller.clone(), "GET", &path, None).await;
        assert_eq!(status, reads, "{}", caller.name);
        let (status, _) = decide(&trigger, caller.clone(), &key, "approve").await;
        assert_eq!(status, decides, "{} approves", caller.name);
        if caller.name != "alice" {
            let (status, _) = decide(&trigger, caller.clone(), &key, "reject").await;
            assert_eq!(status, decides, "{} rejects", caller.name);
        }
    }
    // An approver sees the runs of the rule, but neither the rule nor other runs of its owner.
    let other = trigger.fire("own", "1", json!({})).await;
    trigger.wait_run(&other, "approval").await;
    let path = "/v1/trigger-runs?state=approval";
    let (_, seen) = trigger.ask(user("carol"), "GET", path, None).await;
    let seen: Vec<&Value> = seen["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["key"])
        .collect();
    assert_eq!(seen, [&json!(key)]);
    for (method, path) in [
        ("GET", "/v1/triggers/alice/deploy"),
        ("POST", "/v1/triggers/alice/deploy/fire"),
    ] {
        let (status, _) = trigger
            .ask(user("carol"), method, path, Some(json!({})))
            .await;
        assert_eq!(status, no, "{path}");
    }
    let (status, _) = decide(&trigger, user("carol"), &other, "approve").await;
    assert_eq!(status, no);
    let (status, answer) = decide(&trigger, user("carol"), &key, "approve").await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let run = trigger.wait_run(&key, "done").await;
    assert_eq!(run["approved_by"], "carol");
    for how in ["approve", "reject"] {
        let (status, _) = decide(&trigger, user("dave"), &key, how).await;
        assert_eq!(status, StatusCode::CONFLICT, "{how}");
    }
    // The owner approves without `by`, and an administrator what he did not cause himself.
    let (status, _) = decide(&trigger, alice(), &other, "approve").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let of_root = fire_as(&trigger, admin(), "deploy", "of-root").await;
    let (status, _) = decide(&trigger, admin(), &of_root, "approve").await;
    assert_eq!(status, forbidden);
    let (status, _) = decide(&trigger, user("carol"), &of_root, "approve").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let mut acts = Vec::new();
    wait_until("the audit has the outcome", DEADLINE, async || {
        acts = audit(&bus, "fire:1").await;
        acts.retain(|act| act.key == key);
        acts.len() == 3
    })
    .await;
    let acts: Vec<(&str, &str)> = acts.iter().map(|act| (&*act.what, &*act.made_by)).collect();
    assert_eq!(
        acts,
        [("approval", "alice"), ("approved", "carol"), ("done", "")]
    );
    trigger.stop().await;
}

async fn nothing_happens_without_the_approvers(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let tables = rule("deploy", PUBLISH, "by = [\"carol\"]")
        + &rule("short", PUBLISH, "by = [\"carol\"], within = \"1s\"")
        + NO_SLURM;
    let trigger = site.start(&nats, "", &tables).await;
    let redrive = async |key: &str| {
        let path = format!("/v1/trigger-runs/{key}/redrive");
        trigger.ask(alice(), "POST", &path, None).await.0
    };
    let key = trigger.fire("deploy", "1", json!({})).await;
    let asked = async |times: usize| {
        wait_until("the approver is asked", DEADLINE, async || {
            notices(&bus, EventType::UserApprovalRequested).await.len() == times
        })
        .await;
    };
    asked(1).await;
    let (status, _) = decide(&trigger, user("carol"), &key, "reject").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let run = trigger.wait_run(&key, "refused").await;
    assert_eq!(run["error"], "rejected by carol: not today");
    // What was rejected waits again, and she is asked again.
    assert_eq!(redrive(&key).await, StatusCode::ACCEPTED);
    trigger.wait_run(&key, "approval").await;
    asked(2).await;
    // So does what a guard refused.
    let (pause, resume) = (
        "/v1/triggers/alice/deploy/pause",
        "/v1/triggers/alice/deploy/resume",
    );
    trigger.ask(alice(), "POST", pause, Some(json!({}))).await;
    let (status, _) = decide(&trigger, user("carol"), &key, "approve").await;
    assert_eq!(status, StatusCode::CONFLICT, "the rule is paused");
    let path = "/v1/triggers/alice/deploy/fire";
    let body = Some(json!({"id": "2"}));
    let (status, _) = trigger.ask(alice(), "POST", path, body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let refused = trigger.runs("state=refused").await[0]["key"]
        .as_str()
        .unwrap()
        .to_owned();
    trigger.ask(alice(), "POST", resume, None).await;
    assert_eq!(redrive(&refused).await, StatusCode::ACCEPTED);
    trigger.wait_run(&refused, "approval").await;
    // Nobody decides.
    let late = trigger.fire("short", "1", json!({})).await;
    let run = trigger.wait_run(&late, "refused").await;
    assert_eq!(run["error"], "nobody approved it within 1s");
    let (status, _) = decide(&trigger, user("carol"), &late, "approve").await;
    assert_eq!(status, StatusCode::CONFLICT);
    // The owner takes it back.
    let (status, _) = decide(&trigger, alice(), &refused, "reject").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (status, _) = decide(&trigger, user("carol"), &key, "approve").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    trigger.wait_run(&key, "done").await;
    assert_eq!(trigger.runs("state=done").await.len(), 1);
    let (_, list) = trigger.ask(alice(), "GET", "/v1/triggers", None).await;
    assert!(
        list["rules"][0]["paused_at"].is_null(),
        "refusals by people pause nothing"
    );
    trigger.stop().await;
}

async fn whoever_caused_a_chain_approves_no_part_of_it(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let action = format!("{PUBLISH}\napprove = {{ by = [\"carol\"], not_requester = true }}\n");
    let on = |name: &str, on: &str| {
        format!(
            "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\non = {{ {on} }}\n[workflow-trigger.rules.action]\n{action}"
        )
    };
    let tables = "[[workflow-trigger.rules]]\nname = \"build\"\nowner = \"alice\"\non = { manual = true }\naction = { publish = \"built\" }\n".to_owned()
        + &on("of-event", "source = \"publish\", types = [\"built\"]")
        + &on("of-job", "types = [\"job.completed\"]")
        + NO_SLURM;
    let trigger = site.start(&nats, "", &tables).await;
    let built = fire_as(&trigger, admin(), "build", "1").await;
    trigger.wait_run(&built, "done").await;
    // As if the run had submitted this job of alice.
    let mut event = end(EventType::JobCompleted, 7, "alice", TimeDelta::zero());
    if let Some(Payload::Job(payload)) = &mut event.payload {
        payload.job.as_mut().unwrap().comment = built.clone();
    }
    publish(&bus, &event).await;
    let mut waiting = Vec::new();
    wait_until("both rules wait for approval", DEADLINE, async || {
        waiting = trigger.runs("state=approval").await;
        waiting.len() == 2
    })
    .await;
    for run in &waiting {
        let key = run["key"].as_str().unwrap();
        assert_eq!(run["parent"], json!(built));
        let (status, answer) = decide(&trigger, admin(), key, "approve").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
        let (status, _) = decide(&trigger, user("carol"), key, "reject").await;
        assert_eq!(status, StatusCode::ACCEPTED);
    }
    // So it is for whoever redrives a run, which alice caused here.
    let other = end(EventType::JobCompleted, 8, "alice", TimeDelta::zero());
    publish(&bus, &other).await;
    let key = trigger.wait_run(&other.id, "approval").await["key"].clone();
    let key = key.as_str().unwrap();
    decide(&trigger, user("carol"), key, "reject").await;
    let path = format!("/v1/trigger-runs/{key}/redrive");
    let (status, _) = trigger.ask(admin(), "POST", &path, None).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (status, _) = decide(&trigger, admin(), key, "approve").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _) = decide(&trigger, user("carol"), key, "approve").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    trigger.wait_run(key, "done").await;
    trigger.stop().await;
}

async fn a_message_reaches_the_bus_once_and_fires_nothing(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let of_events = |name: &str, types: &str, action: &str| {
        format!(
            "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\non = {{ types = [{types:?}] }}\naction = {{ {action} }}\n"
        )
    };
    let action = "notify = \"{{ job.name }} is done\", data = { job = \"{{ job.job_id }}\" }";
    let tables = of_events("notify", "job.completed", action)
        + &of_events("loop", "user.*", "notify = \"again\"")
        + NO_SLURM;
    let trigger = site.start(&nats, "", &tables).await;
    let event = end(EventType::JobCompleted, 7, "alice", TimeDelta::zero());
    publish(&bus, &event).await;
    trigger.wait_run(&event.id, "done").await;
    // Of another event about a user, the second rule fires: it has read all that came before.
    let mut login = Event {
        id: EventId::sampled("testbed", "login", EventType::UserLogin, 1).to_string(),
        r#type: EventType::UserLogin.to_string(),
        ..event.clone()
    };
    login.payload = Some(Payload::User(UserEvent {
        user: "alice".to_owned(),
        ..UserEvent::default()
    }));
    publish(&bus, &login).await;
    trigger.wait_run(&login.id, "done").await;
    let sent = notices(&bus, EventType::UserNotified).await;
    let texts: Vec<&str> = sent.iter().map(|(_, notice)| &*notice.text).collect();
    let name = mesh_testkit::fixtures::job(7).name;
    assert_eq!(texts, [format!("{name} is done").as_str(), "again"]);
    let (user, first) = &sent[0];
    assert_eq!((&**user, &*first.event_id), ("alice", &*event.id));
    assert_eq!(first.data["job"], "7");
    assert_eq!(trigger.runs("").await.len(), 2);
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_job_runs_once_and_a_rejected_one_never() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let file = cluster.results.join("approved");
    site.script(
        "mark.sh",
        &format!("echo $1 $(id -un) >> {}", file.display()),
    );
    let action =
        "submit = \"mark.sh\"\nargs = [\"{{ id }}\"]\nmemory = \"10M\"\noutput = \"/dev/null\"";
    let tables = rule("deploy", action, "by = [\"carol\"]") + &cluster.submitter();
    let keys = "confirm_after = \"100ms\"";
    let trigger = site.start(&nats, keys, &tables).await;
    let approved = trigger.fire("deploy", "yes", json!({})).await;
    let rejected = trigger.fire("deploy", "no", json!({})).await;
    for key in [&approved, &rejected] {
        trigger.wait_run(key, "approval").await;
    }
    // A new process knows it, too.
    trigger.kill().await;
    let trigger = site.start(&nats, keys, &tables).await;
    decide(&trigger, user("carol"), &rejected, "reject").await;
    let deciding: Vec<_> = (0..5)
        .map(|_| decide(&trigger, user("carol"), &approved, "approve"))
        .collect();
    let decided = futures_util::future::join_all(deciding).await;
    let accepted = decided.iter().filter(|(status, _)| status.is_success());
    assert_eq!(accepted.count(), 1, "{decided:?}");
    let run = trigger.wait_run(&approved, "released").await;
    let job = u32::try_from(run["job_id"].as_u64().unwrap()).unwrap();
    cluster.wait_state(job, "COMPLETED").await;
    // As the rule's owner, whoever approved it.
    assert_eq!(cluster.lines("approved"), ["fire:yes alice"]);
    let (_, run) = trigger
        .ask(
            alice(),
            "GET",
            &format!("/v1/trigger-runs/{rejected}"),
            None,
        )
        .await;
    assert_eq!(
        (&run["state"], &run["job_id"]),
        (&json!("refused"), &Value::Null)
    );
    trigger.stop().await;
}
