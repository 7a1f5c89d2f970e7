//! Bodies for 10,000 jobs, checked by the targets' own libraries and schemas, and against limits that only their
//! documentation states.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use axum::http::Method;
use event_message::Message;
use event_message::format::{Content, Format, ProviderState, Step};
use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType};
use mesh_runtime::api::Role;
use mesh_testkit::{ReceivedRequest, WebhookReceiver};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use url::Url;

use crate::generated::{PIECES, generated, summary, words};
use crate::harness::{Kind, Mesh, SECRET, event, signed};

const JOBS: usize = 10_000;
/// Number of formats that are messages for people.
const CHATS: usize = 4;

/// Renders and checks bodies, and shows the first faults.
fn checked(program: &mut Command, lines: &[Value]) {
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the checks; scripts/setup installs what they need");
    let mut stdin = child.stdin.take().unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let (faults, count): (Vec<_>, Vec<_>) =
        said.lines().partition(|line| !line.starts_with("checked "));
    assert!(
        faults.is_empty(),
        "{} faults: {:#?}",
        faults.len(),
        &faults[..faults.len().min(5)]
    );
    assert_eq!(count, [format!("checked {}", lines.len())]);
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/webhook-sdks")
}

fn sdks(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/sdks")
        .join(name)
}

fn node() -> Command {
    let mut command = Command::new("node");
    command.arg(sdks("check.mjs")).arg(tools());
    command
}

fn python() -> Command {
    let mut command = Command::new(tools().join("venv/bin/python"));
    command.arg(sdks("check.py"));
    command
}

fn format(text: &str) -> Format {
    serde_json::from_str(text).unwrap()
}

fn units(value: &Value) -> usize {
    match value {
        Value::String(text) => text.encode_utf16().count(),
        Value::Array(values) => values.iter().map(units).sum(),
        Value::Object(values) => values.values().map(units).sum(),
        _ => 0,
    }
}

fn strings<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
        Value::Object(values) => values.values().for_each(|value| strings(value, found)),
        _ => {}
    }
}

/// Checks that no library performs.
fn check(target: &str, text: &str, body: &Value) {
    let mut found = Vec::new();
    strings(body, &mut found);
    match target {
        "slack" => {
            assert!(units(body) <= 13_000, "{} in all", units(body));
            for text in found {
                let ours = |rest: &&str| rest.starts_with("!date^") || rest.starts_with("http");
                // The heading is plain text, where `<` has no meaning.
                let heading = body["blocks"][0]["text"]["text"] == text;
                assert!(
                    heading || text.split('<').skip(1).all(|rest| ours(&rest)),
                    "{text}"
                );
            }
        }
        "teams" => {
            assert!(text.len() <= 28_000, "{} bytes", text.len());
            assert!(found.iter().all(|text| !text.contains("{{")), "{text}");
        }
        "discord" => {
            let embed = &body["embeds"][0];
            assert!(units(embed) <= 6_000, "{} in all", units(embed));
            assert_eq!(body["allowed_mentions"], json!({"parse": []}));
            for field in embed["fields"].as_array().unwrap_or(&Vec::new()) {
                assert!(
                    !field["value"].as_str().unwrap().trim().is_empty(),
                    "{field}"
                );
            }
        }
        "pagerduty" => assert!(text.len() <= 512_000, "{} bytes", text.len()),
        _ => assert!(text.len() <= 65_000, "{} bytes", text.len()),
    }
}

/// The bodies of one event in every format.
fn bodies(
    event: &Event,
    cost: Option<&CostEvent>,
    formats: &[(&'static str, Format)],
) -> Vec<Value> {
    let address = Url::parse("https://target.example/").unwrap();
    let content = Content::Event {
        event: &event.clone().into(),
        cost,
        replay: None,
        spending: None,
        now: chrono::Utc::now(),
    };
    let kind = event.kind().unwrap();
    let mut lines = Vec::new();
    for (target, format) in formats {
        if !format.takes(kind, event) {
            continue;
        }
        let step = format
            .begin(&address, &content, &ProviderState::new())
            .unwrap();
        let Step::Send(request, _) = step else {
            panic!("nothing to send: {step:?}")
        };
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        check(target, str::from_utf8(&request.body).unwrap(), &body);
        lines.push(json!({"target": target, "body": body}));
    }
    lines
}

#[test]
fn bodies_for_any_job_keep_to_the_rules_of_their_targets() {
    let key = "0123456789abcdef0123456789abcdef";
    let formats = [
        ("slack", Format::Slack),
        (
            "slack",
            format(r#"{"type": "slack-api", "token": "xoxb-t", "channel": "jobs"}"#),
        ),
        ("teams", Format::Teams),
        ("discord", Format::Discord),
        (
            "pagerduty",
            format(&format!(
                r#"{{"type": "pagerduty", "routing_key": "{key}"}}"#
            )),
        ),
        (
            "github-repository",
            format(r#"{"type": "github", "token": "t", "repository": "a/b"}"#),
        ),
        (
            "github-workflow",
            format(
                r#"{"type": "github", "token": "t", "repository": "a/b", "workflow": "w.yml", "ref": "main",
                    "inputs": {"name": "job.name", "nodes": "job.nodes", "cost": "cost.total", "type": "type", "all": "job"}}"#,
            ),
        ),
    ];
    let mut rng = StdRng::seed_from_u64(5);
    let mut lines = Vec::new();
    for _ in 0..JOBS {
        let (event, cost) = generated(&mut rng);
        lines.extend(bodies(&event, cost.as_ref(), &formats));
    }
    let mut messages = vec![
        Message::away(u64::MAX, &words(&mut rng)),
        Message::test(&words(&mut rng), "c"),
    ];
    messages.extend((0..JOBS / 10).map(|_| summary(&mut rng).message()));
    for (target, format) in &formats[..CHATS] {
        for message in &messages {
            let content = Content::Message {
                id: "m",
                message,
                topic: None,
            };
            let address = Url::parse("https://target.example/").unwrap();
            let Ok(Step::Send(request, _)) =
                format.begin(&address, &content, &ProviderState::new())
            else {
                panic!("nothing to send")
            };
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            check(target, str::from_utf8(&request.body).unwrap(), &body);
            lines.push(json!({"target": target, "body": body}));
        }
    }
    assert!(lines.len() > 4 * JOBS, "{}", lines.len());
    let (slack, others): (Vec<_>, Vec<_>) = lines
        .into_iter()
        .partition(|line| line["target"] == "slack");
    std::thread::scope(|scope| {
        scope.spawn(|| checked(&mut python(), &slack));
        checked(&mut node(), &others);
    });
}

#[test]
fn the_checks_see_faults() {
    let broken = [
        json!({"target": "teams", "body": {"type": "message", "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": {"type": "AdaptiveCard", "version": "1.4", "body": [{"type": "Nope"}]}}]}}),
        json!({"target": "discord", "body": {"embeds": [{"title": "x".repeat(257)}]}}),
        json!({"target": "pagerduty", "body": {"routing_key": "k", "event_action": "open"}}),
        json!({"target": "github-workflow", "body": {"ref": "main", "inputs": {"n": 1}}}),
        json!({"target": "signature", "secret": SECRET, "headers": {}, "body": "{}"}),
    ];
    for line in broken {
        let seen = std::panic::catch_unwind(|| checked(&mut node(), std::slice::from_ref(&line)));
        assert!(seen.is_err(), "{line}");
    }
    let long = json!({"type": "section", "text": {"type": "mrkdwn", "text": "x".repeat(3_001)}});
    let broken = [
        json!({"target": "slack", "body": {"text": "x", "blocks": [long]}}),
        json!({"target": "signature", "secret": SECRET, "headers": {}, "body": "{}"}),
    ];
    for line in broken {
        let seen = std::panic::catch_unwind(|| checked(&mut python(), std::slice::from_ref(&line)));
        assert!(seen.is_err(), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_with_the_standard_libraries_verify_and_read_what_arrives() {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start(&[signed("pipeline", &receiver.url("/"), "types = [\"*\"]")]).await;
    let mut events = Vec::new();
    for job in 1..=20 {
        let mut event = event(EventType::JobFailed, job);
        if let Some(Payload::Job(payload)) = &mut event.payload {
            payload.job.as_mut().unwrap().name = PIECES.concat();
        }
        mesh.publish(&event).await;
        events.push(event);
    }
    mesh.wait_for_count("pipeline", "delivered", 20).await;
    let mut lines = Vec::new();
    for received in receiver.received() {
        let (headers, body) = headers_and_body(&received);
        lines.push(
            json!({"target": "signature", "secret": SECRET, "headers": headers, "body": body}),
        );
        let sent = events
            .iter()
            .find(|event| event.id == received.header("webhook-id"))
            .unwrap();
        let expected = json!({
            "id": sent.id,
            "source": format!("/clusters/{}", sent.cluster),
            "type": format!("org.slurm-mesh.{}.v1", sent.r#type),
            "subject": sent.entity_key(),
        });
        lines.push(
            json!({"target": "cloudevent", "headers": headers, "body": body, "expected": expected}),
        );
    }
    checked(&mut python(), &lines);
    lines.retain(|line| line["target"] == "signature");
    checked(&mut node(), &lines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_with_the_standard_libraries_verify_with_either_secret_while_it_changes() {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::on(Kind::Sqlite).await;
    mesh.settings = "allow_http = true\nallow_subnets = [\"127.0.0.0/8\"]".to_owned();
    mesh.run(&[]).await;
    let call = async |path: &str, body: &Value| {
        let (_, answer) = mesh
            .ask(Method::POST, path, "alice", Role::User, body)
            .await;
        answer["secret"].as_str().expect("a secret").to_owned()
    };
    let spec = json!({"name": "mine", "url": receiver.url("/"), "types": ["job.started"]});
    let old = call("/v1/webhooks", &spec).await;
    mesh.wait_for_positions(1).await;
    let new = call("/v1/webhooks/mine/rotate", &Value::Null).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("alice/mine", "delivered", 1).await;
    let received = receiver.received().remove(0);
    let (headers, body) = headers_and_body(&received);
    let signatures = received.header("webhook-signature").split(' ').count();
    assert_eq!(signatures, 2);
    let lines: Vec<Value> = [old, new]
        .iter()
        .map(|secret| {
            json!({"target": "signature", "secret": secret, "headers": headers, "body": body})
        })
        .collect();
    checked(&mut python(), &lines);
    checked(&mut node(), &lines);
}

/// Headers and body as the checkers expect them.
fn headers_and_body(received: &ReceivedRequest) -> (Value, String) {
    let names = [
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "content-type",
    ];
    let headers = names
        .iter()
        .map(|name| ((*name).to_owned(), received.header(name).into()))
        .collect();
    let body = String::from_utf8(received.body.clone()).unwrap();
    (Value::Object(headers), body)
}
