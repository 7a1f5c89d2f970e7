//! Events from outside: what is forged, replayed, too large or no event fires nothing.

use async_nats::jetstream;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{TimeDelta, Utc};
use mesh_bus::RawMessage;
use mesh_events::catalogue::MESH_IN;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::CLUSTER;
use mesh_testkit::{NatsServer, wait_until};
use ring::hmac::{HMAC_SHA256, Key, sign};
use serde_json::{Value, json};

use crate::support::{DEADLINE, Site, Trigger, alice, bus, on_both};

on_both!(
    what_a_source_has_not_signed_fires_nothing,
    what_people_publish_fires_their_own_rules,
    a_user_who_publishes_too_much_is_refused_and_sources_go_on,
    a_purge_of_events_that_no_rule_has_seen_is_said,
    objects_that_minio_publishes_fire_once,
    a_chain_of_published_events_stops_at_the_guard
);

const SELDOM: &str = "retry_initial_interval = \"1m\"";
const NO_SLURM: &str = "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";
const SECRET: &str = "It's a Secret to Everybody";
pub const KEY: &[u8] = b"a key of twenty-four bytes";

fn rule(name: &str, source: &str, more: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\non = {{ source = {source:?}{more} }}\naction = {{ submit = \"true.sh\", args = [\"{{{{ type }}}}\", \"{{{{ data.key }}}}\"] }}\n"
    )
}

fn source(site: &Site, name: &str, signature: &str, secret: &str) -> String {
    mesh_testkit::write_private(&site.path(name), format!("old secret\n{secret}\n"));
    format!(
        "[[workflow-trigger.sources]]\nname = {name:?}\nsignature = {signature:?}\nsecret_file = {name:?}\n"
    )
}

fn github(body: &str) -> String {
    let tag = sign(&Key::new(HMAC_SHA256, SECRET.as_bytes()), body.as_bytes());
    format!("sha256={}", hex::encode(tag.as_ref()))
}

/// Time and signature of Standard Webhooks.
pub fn standard(id: &str, age: TimeDelta, body: &str) -> (String, String) {
    let time = (Utc::now() - age).timestamp().to_string();
    let tag = sign(
        &Key::new(HMAC_SHA256, KEY),
        format!("{id}.{time}.{body}").as_bytes(),
    );
    (time, format!("v1,{}", BASE64_STANDARD.encode(tag.as_ref())))
}

/// Waits until an event that is sent last has fired, and returns all that have.
async fn fired(trigger: &Trigger, last: &str) -> Vec<Value> {
    let mut runs = Vec::new();
    wait_until("the last event has fired", DEADLINE, async || {
        runs = trigger.runs("").await;
        runs.iter().any(|run| run["event_type"] == last)
    })
    .await;
    runs
}

async fn what_a_source_has_not_signed_fires_nothing(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let key = format!("whsec_{}", BASE64_STANDARD.encode(KEY));
    let tables = [
        source(&site, "github", "github", SECRET),
        source(&site, "ci", "standard", &key),
        source(&site, "lab", "bearer", "token"),
        "[[workflow-trigger.sources]]\nname = \"minio\"\nkind = \"nats\"\nformat = \"s3\"\n"
            .to_owned(),
        rule(
            "push",
            "github",
            ", types = [\"push\"], when = 'data.key is startingwith \"v\"'",
        ),
        rule("ci", "ci", ""),
        rule("lab", "lab", ""),
        NO_SLURM.to_owned(),
    ];
    let trigger = site.start(&nats, SELDOM, &tables.concat()).await;
    let body = json!({"key": "v1"}).to_string();
    let tag = github(&body);
    let signed = |delivery| {
        [
            ("x-hub-signature-256", tag.as_str()),
            ("x-github-event", "push"),
            ("x-github-delivery", delivery),
        ]
    };
    let (ok, first) = trigger
        .send("/v1/in/github", &signed("1"), body.clone())
        .await;
    assert_eq!(ok, StatusCode::ACCEPTED, "{first}");
    // Captured and sent again, with what is not signed changed.
    let (ok, again) = trigger
        .send("/v1/in/github", &signed("2"), body.clone())
        .await;
    assert_eq!((ok, &again), (StatusCode::ACCEPTED, &first));
    let large = format!("{{\"key\": \"{}\"}}", "v".repeat(256 * 1024));
    let (large_tag, text_tag) = (github(&large), github("v1"));
    let fresh = standard("m1", TimeDelta::zero(), &body);
    // Five minutes are tolerated; at 301 s `early` would be accepted a second later.
    let stale = standard("m2", TimeDelta::seconds(400), &body);
    let early = standard("m3", TimeDelta::seconds(-400), &body);
    let ci = |id: &'static str, (time, tag): &'static (String, String)| {
        [
            ("webhook-id", id),
            ("webhook-timestamp", time.as_str()),
            ("webhook-signature", tag.as_str()),
        ]
    };
    let leaked = |pair| -> &'static (String, String) { Box::leak(Box::new(pair)) };
    let (fresh, stale, early) = (leaked(fresh), leaked(stale), leaked(early));
    let other = body.replace("v1", "v2");
    let (unauthorized, bad) = (StatusCode::UNAUTHORIZED, StatusCode::BAD_REQUEST);
    for (path, headers, body, expected) in [
        ("github", signed("3").to_vec(), other.as_str(), unauthorized),
        (
            "github",
            vec![("x-github-event", "push")],
            &body,
            unauthorized,
        ),
        (
            "github",
            [
                signed("4").as_slice(),
                &[("x-hub-signature-256", "sha256=00")],
            ]
            .concat(),
            &body,
            unauthorized,
        ),
        (
            "github",
            vec![("x-hub-signature-256", large_tag.as_str())],
            &large,
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
        (
            "github",
            vec![("x-hub-signature-256", text_tag.as_str())],
            "v1",
            bad,
        ),
        ("ci", ci("m1", fresh).to_vec(), &other, unauthorized),
        ("ci", ci("other", fresh).to_vec(), &body, unauthorized),
        ("ci", ci("m2", stale).to_vec(), &body, unauthorized),
        ("ci", ci("m3", early).to_vec(), &body, unauthorized),
        (
            "lab",
            vec![("authorization", "Bearer tokens")],
            &body,
            unauthorized,
        ),
        ("lab", vec![], &body, unauthorized),
        // One whose events come by NATS, one that does not exist, and that of people.
        ("minio", vec![], &body, StatusCode::NOT_FOUND),
        ("other", vec![], &body, StatusCode::NOT_FOUND),
        ("publish", vec![], &body, StatusCode::NOT_FOUND),
    ] {
        let path = format!("/v1/in/{path}");
        let (status, answer) = trigger.send(&path, &headers, body.to_owned()).await;
        assert_eq!(status, expected, "{path} {headers:?}: {answer}");
    }
    // Not selected by the rule.
    let (unselected, ping) = (
        json!({"key": "x1"}).to_string(),
        json!({"key": "v9"}).to_string(),
    );
    for (body, kind) in [(unselected, "push"), (ping, "ping")] {
        let tag = github(&body);
        let headers = [
            ("x-hub-signature-256", tag.as_str()),
            ("x-github-event", kind),
        ];
        let (status, _) = trigger.send("/v1/in/github", &headers, body).await;
        assert_eq!(status, StatusCode::ACCEPTED);
    }
    for _ in 0..2 {
        let (status, _) = trigger
            .send("/v1/in/ci", &ci("m1", fresh), body.clone())
            .await;
        assert_eq!(status, StatusCode::ACCEPTED);
    }
    let last = json!({"key": "k", "type": "last"}).to_string();
    let (status, _) = trigger
        .send("/v1/in/lab", &[("authorization", "Bearer token")], last)
        .await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let runs = fired(&trigger, "last").await;
    let mut rules: Vec<&str> = runs
        .iter()
        .map(|run| run["rule"].as_str().unwrap())
        .collect();
    rules.sort_unstable();
    assert_eq!(rules, ["alice/ci", "alice/lab", "alice/push"]);
    trigger.stop().await;
}

async fn what_people_publish_fires_their_own_rules(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let tables = rule("own", "publish", ", types = [\"step.*\"]")
        + &rule("all", "publish", ", types = [\"step.*\"], users = [\"*\"]")
        + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    let event = |kind: &str| Some(json!({"type": kind, "data": {"key": "k"}, "id": "e1"}));
    let bob = Caller::peer("bob", 20_002, Role::User);
    for (caller, body, expected) in [
        (alice(), event("step.done"), StatusCode::ACCEPTED),
        // The same id again, and of another user.
        (alice(), event("step.done"), StatusCode::ACCEPTED),
        (bob.clone(), event("step.done"), StatusCode::ACCEPTED),
        (alice(), event(""), StatusCode::BAD_REQUEST),
        (
            alice(),
            Some(json!({"type": "t", "user": "root"})),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            Caller::peer("eve", 20_009, Role::Auditor),
            event("step.done"),
            StatusCode::FORBIDDEN,
        ),
        (
            Caller::peer("prometheus", 65_534, Role::Metrics),
            event("step.done"),
            StatusCode::FORBIDDEN,
        ),
    ] {
        let name = caller.name.clone();
        let (status, answer) = trigger.ask(caller, "POST", "/v1/in", body.clone()).await;
        assert_eq!(status, expected, "{name} {body:?}: {answer}");
    }
    let headers = [("content-type", "application/json")];
    let (status, _) = trigger
        .send("/v1/in", &headers, "{\"type\": \"step.done\"}")
        .await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let last = Some(json!({"type": "step.last", "data": {"key": "k"}}));
    trigger.ask(bob, "POST", "/v1/in", last).await;
    let runs = fired(&trigger, "step.last").await;
    let mut found: Vec<String> = runs
        .iter()
        .map(|run| {
            format!(
                "{} {} by {}",
                run["rule"], run["event_type"], run["fired_by"]
            )
            .replace('"', "")
        })
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "alice/all step.done by alice",
            "alice/all step.done by bob",
            "alice/all step.last by bob",
            "alice/own step.done by alice",
        ]
    );
    trigger.stop().await;
}

async fn a_user_who_publishes_too_much_is_refused_and_sources_go_on(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let tables = [
        source(&site, "lab", "bearer", "token"),
        rule("lab", "lab", ""),
        NO_SLURM.to_owned(),
    ];
    let trigger = site.start(&nats, SELDOM, &tables.concat()).await;
    let event = |bytes: usize| json!({"type": "t", "data": {"key": "k".repeat(bytes)}});
    let (status, _, text) = trigger.publish(alice(), &event(64 * 1024)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    let mut accepted = 0;
    let (status, after, text) = loop {
        let answer = trigger.publish(alice(), &event(60 * 1024)).await;
        match answer.0 {
            StatusCode::ACCEPTED => accepted += 1,
            _ => break answer,
        }
    };
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    assert!((1..=60).contains(&after), "{after}");
    // 1 MiB, and what a slow machine refills meanwhile.
    assert!((16..100).contains(&accepted), "{accepted}");
    let bob = Caller::peer("bob", 20_002, Role::User);
    let (status, _, text) = trigger.publish(bob.clone(), &event(1)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{text}");

    // Half of the stream is used.
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let stream = context.get_stream(MESH_IN).await.unwrap();
    let info = stream.cached_info();
    let mut config = info.config.clone();
    config.max_bytes = i64::try_from(info.state.bytes * 2).unwrap();
    context.update_stream(config).await.unwrap();
    let (status, after, text) = trigger.publish(bob, &event(1)).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    assert!(after > 60 && text.contains(MESH_IN), "{after} {text}");
    let headers = [("authorization", "Bearer token")];
    let last = json!({"key": "k", "type": "last"}).to_string();
    let (status, answer) = trigger.send("/v1/in/lab", &headers, last).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    fired(&trigger, "last").await;
    trigger.stop().await;
}

async fn a_purge_of_events_that_no_rule_has_seen_is_said(site: Site) {
    let nats = NatsServer::start().await;
    let admin = bus(&nats).await;
    let tables = rule("own", "publish", "") + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    let event = json!({"type": "first", "data": {"key": "k"}});
    let (status, _, text) = trigger.publish(alice(), &event).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{text}");
    fired(&trigger, "first").await;
    assert!(!trigger.notes().contains("purged"), "{}", trigger.notes());
    trigger.stop().await;
    for id in ["a", "b"] {
        let message = RawMessage {
            subject: format!("mesh.{CLUSTER}.in.publish"),
            id: id.to_owned(),
            body: "{}".into(),
        };
        admin.publish_many(&[message]).await.remove(0).unwrap();
    }
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let stream = context.get_stream(MESH_IN).await.unwrap();
    stream.purge().await.unwrap();
    let trigger = site.start(&nats, SELDOM, &tables).await;
    wait_until("the purge is said", DEADLINE, async || {
        trigger
            .notes()
            .contains("MESH_IN was purged: messages that workflow-trigger had not read are lost")
    })
    .await;
    trigger.stop().await;
}

async fn objects_that_minio_publishes_fire_once(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let tables =
        "[[workflow-trigger.sources]]\nname = \"minio\"\nkind = \"nats\"\nformat = \"s3\"\n"
            .to_owned()
            + &rule(
                "reads",
                "minio",
                ", types = [\"s3.object_created\", \"last\"], when = 'data.key is endingwith \".gz\"'",
            )
            + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    let now = Utc::now().to_rfc3339();
    let record = |key: &str, sequencer: &str| json!({"eventName": "s3:ObjectCreated:Put", "eventTime": now, "s3": {"bucket": {"name": "b"}, "object": {"key": key, "size": 5, "sequencer": sequencer}}});
    let send = async |source: &str, id: &str, body: String| {
        let message = RawMessage {
            subject: format!("mesh.{CLUSTER}.raw.{source}"),
            id: id.to_owned(),
            body: body.into(),
        };
        bus.publish_many(&[message]).await.remove(0).unwrap();
    };
    let first =
        json!({"Records": [record("a+b.gz", "1"), record("c.txt", "2"), record("d.gz", "3")]});
    send("minio", "1", first.to_string()).await;
    // Again, as another message, as MinIO does after a lost acknowledgement.
    send("minio", "2", first.to_string()).await;
    send("minio", "3", "no JSON".to_owned()).await;
    send("other", "4", first.to_string()).await;
    send(
        "minio",
        "5",
        json!({"Records": [record("last.gz", "9")]}).to_string(),
    )
    .await;
    wait_until("the last object has fired", DEADLINE, async || {
        trigger.runs("").await.len() >= 3
    })
    .await;
    let mut keys = Vec::new();
    for run in trigger.runs("").await {
        let path = format!("/v1/trigger-runs/{}", run["key"].as_str().unwrap());
        let (_, run) = trigger.ask(alice(), "GET", &path, None).await;
        keys.push(run["action"]["job"]["args"][1].as_str().unwrap().to_owned());
    }
    keys.sort_unstable();
    assert_eq!(keys, ["a b.gz", "d.gz", "last.gz"]);
    trigger.stop().await;
}

async fn a_chain_of_published_events_stops_at_the_guard(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    // Two rules that fire each other.
    let rule = |name: &str, on: &str, publishes: &str| {
        format!(
            "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\non = {{ source = \"publish\", types = [{on:?}] }}\naction = {{ publish = {publishes:?}, data = {{ key = \"{{{{ data.key }}}}\" }} }}\n"
        )
    };
    let tables = rule("ping", "a", "b") + &rule("pong", "b", "a") + NO_SLURM;
    let trigger = site.start(&nats, "", &tables).await;
    let body = Some(json!({"type": "a", "data": {"key": "k"}, "id": "first"}));
    trigger.ask(alice(), "POST", "/v1/in", body).await;
    wait_until("the chain ends", DEADLINE, async || {
        let dead = trigger.runs("state=refused").await;
        let error = dead.first().and_then(|run| run["error"].as_str());
        // The last event is published before its run is done.
        error.is_some_and(|error| error.contains("limits.depth"))
            && trigger.runs("state=done").await.len() == 8
    })
    .await;
    let root = "in:publish:alice:first";
    let mut runs = trigger.runs(&format!("root={root}")).await;
    assert_eq!(runs.len(), 9, "{runs:?}");
    // Each is caused by the one before, and the data went through all of them.
    runs.sort_by_key(|run| run["depth"].as_u64());
    assert_eq!(runs[0]["event_id"], root);
    for pair in runs.windows(2) {
        assert_eq!(pair[1]["parent"], pair[0]["key"]);
        assert_eq!(pair[0]["state"], "done");
    }
    trigger.stop().await;
}
