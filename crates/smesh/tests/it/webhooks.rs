//! `smesh webhooks`: shows given-up deliveries and redelivers them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use mesh_testkit::{CannedResponse, WebhookReceiver, write_private};
use serde_json::Value;

use crate::mesh::{Mesh, stderr, stdout};
use crate::others::with_an_event_of_alice;

/// A mesh with an endpoint at this receiver.
fn configure(mesh: &Mesh, url: &str) {
    let text = format!(
        "\n[[webhook-dispatcher.endpoints]]\nname = \"pipeline\"\nurl = \"{url}\"\nallow_http = true\nallow_private = [\"127.0.0.0/8\"]\n\
         secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\ntypes = [\"job.started\"]\nrate_limit = \"50/s\"\n"
    );
    let path = mesh.path("mesh.toml");
    let before = std::fs::read_to_string(&path).unwrap();
    write_private(&path, before + &text);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_inspected_and_redelivered() {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse {
        body: b"who are you?".to_vec(),
        ..CannedResponse::status(403)
    });
    let url = receiver.url("/hook");
    let mesh = with_an_event_of_alice(|mesh| configure(mesh, &url)).await;
    let run = |args: &[&str]| mesh.run(&[&["webhooks"], args].concat());
    let printed = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&printed(&[&["--json"], args].concat())).unwrap()
    };
    mesh.wait_until("it was given up", || {
        printed(&["dead", "pipeline"]).contains("refused")
    });

    let dead = printed(&[
        "dead", "pipeline", "--cause", "refused", "--type", "job.*", "--since", "1h",
    ]);
    for part in ["CAUSE", "job.started", "dead", "403", "who are you?"] {
        assert!(dead.contains(part), "{part}: {dead}");
    }
    assert!(printed(&["dead", "pipeline", "--until", "1h"]).contains("no such deliveries"));
    let listed = json(&["deliveries", "pipeline", "--state", "dead"]);
    let id = listed["deliveries"][0]["event_id"].as_str().unwrap();
    let one = printed(&["deliveries", "pipeline", id]);
    for part in [
        "STATUS",
        "403",
        "ANSWER",
        "who are you?",
        "\"specversion\": \"1.0\"",
    ] {
        assert!(one.contains(part), "{part}: {one}");
    }
    let full = json(&["deliveries", "pipeline", id]);
    assert_eq!(full["tried"][0]["snippet"], "who are you?", "{full}");
    for (args, code, problem) in [
        (&["deliveries", "other"][..], 1, "no webhook \"other\""),
        (&["deliveries", "pipeline", "x"], 1, "no delivery \"x\""),
        (
            &["dead", "pipeline", "--cause", "x"],
            1,
            "allowed: refused, gone",
        ),
        (&["dead", "pipeline", "--since", "x"], 64, "is not a time"),
        (&["redeliver", "pipeline", "x"], 1, "no delivery \"x\""),
        (
            &["redeliver", "pipeline", "--all", "--rate", "0"],
            1,
            "rate: from 1",
        ),
        (
            &["redeliver", "pipeline", "--rate", "5"],
            64,
            "--rate: select dead letters",
        ),
        (
            &["redeliver", "pipeline", id, "--all"],
            64,
            "cannot be used with",
        ),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains(problem), "{output:?}");
    }
    let listed = printed(&["list"]);
    assert!(
        listed.contains("TROUBLE") && listed.contains("last error: status 403"),
        "{listed}"
    );

    assert!(printed(&["redeliver", "pipeline"]).contains("no redeliveries"));
    receiver.answer_always(CannedResponse::status(204));
    assert!(printed(&["redeliver", "pipeline", id]).contains("shows how far it is"));
    mesh.wait_until("it was delivered", || {
        printed(&["deliveries", "pipeline", id]).contains("delivered")
    });
    let jobs = printed(&["redeliver", "pipeline"]);
    assert!(jobs.contains("done") && jobs.contains(id), "{jobs}");
    let asked = json(&["redeliver", "pipeline", "--type", "job.*", "--rate", "10"]);
    assert_eq!(asked["filter"]["rate"], 10, "{asked}");
    let listing = printed(&["show", "pipeline"]);
    for part in ["1 delivered", "rate_limit 50/s", "active since"] {
        assert!(listing.contains(part), "{part}: {listing}");
    }
    assert_eq!(json(&["show", "pipeline"])["circuit"]["state"], "closed");
}

/// Refuses every request and returns its headers, as debug pages and firewalls do.
fn repeating_receiver() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(refuse));
    port
}

fn refuse(stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    let (mut repeated, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
        let line = line.to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.starts_with("x-api-key:") {
            repeated = line;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 403 Forbidden\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{repeated}",
        repeated.len()
    );
    let mut stream = stream.into_inner();
    stream.write_all(answer.as_bytes()).unwrap_or_default();
}

/// Files below a folder that contain a text.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if let Ok(content) = std::fs::read(&path)
            && content
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_that_a_receiver_repeats_is_in_any_file_of_the_mesh() {
    let url = format!("http://127.0.0.1:{}/", repeating_receiver());
    let mesh = with_an_event_of_alice(|mesh| {
        configure(mesh, &url);
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(mesh.path("mesh.toml"))
            .unwrap();
        writeln!(
            file,
            "headers = {{ x-api-key = \"s3cret-of-the-receiver\" }}"
        )
        .unwrap();
    })
    .await;
    mesh.wait_until("it was given up", || {
        stdout(&mesh.run(&["webhooks", "dead", "pipeline"])).contains("refused")
    });
    let data = mesh.path("data");
    // The ledger holds the answer without the secret.
    mesh.wait_until("the outcome is in the ledger", || {
        let found = files_with(&data, "[redacted]");
        found.iter().any(|file| file.contains("/ledger.db"))
    });
    for secret in ["s3cret-of-the-receiver", "czNjcmV0LW9mLXRoZS1yZWNlaXZl"] {
        assert_eq!(files_with(&data, secret), Vec::<String>::new());
    }
}

/// Runs a command with this text on standard input.
fn message(mut command: Command, text: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Answers the prompt for a URL, on a terminal provided by script(1).
fn prompted(mesh: &Mesh, address: &str) -> Output {
    let line = format!(
        "{} webhooks add prompted --format slack",
        env!("CARGO_BIN_EXE_smesh")
    );
    let mut child = Command::new("script")
        .args(["-q", "-e", "-c", &line, "/dev/null"])
        .current_dir(mesh.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut terminal = child.stdout.take().unwrap();
    let (mut printed, mut byte) = (Vec::new(), [0]);
    while !printed.ends_with(b"address (not echoed): ") {
        terminal.read_exact(&mut byte).unwrap();
        printed.push(byte[0]);
    }
    let mut keyboard = child.stdin.take().unwrap();
    writeln!(keyboard, "{address}").unwrap();
    terminal.read_to_end(&mut printed).unwrap();
    drop(keyboard);
    Output {
        status: child.wait().unwrap(),
        stdout: printed,
        stderr: Vec::new(),
    }
}

#[test]
fn secrets_need_not_stand_on_the_command_line() {
    let mesh = Mesh::started();
    let address = "https://hooks.slack.com/services/T0001/B0002/s3cretPathOfMine";
    write_private(&mesh.path("slack.url"), format!("{address}\n"));
    let bot = r#"{"type": "slack-api", "token": "xoxb-s3cret", "channel": "C1"}"#;
    write_private(&mesh.path("routing.key"), "s3cret-routing-key\n");
    let add = |name: &str, args: &[&str]| mesh.smesh(&[&["webhooks", "add", name], args].concat());
    let prompted = prompted(&mesh, address);
    let made = [
        prompted,
        message(add("file", &["@slack.url", "--format", "slack"]), ""),
        message(add("stdin", &["-", "--format", "slack"]), address),
        message(add("bot", &["--format", "-"]), bot),
        message(
            add("header", &["https://example.org/", "--header", "x-key: -"]),
            "s3cret-key\n",
        ),
        message(
            add(
                "pager",
                &[
                    "--format",
                    r#"{"type": "pagerduty", "routing_key": "@routing.key"}"#,
                ],
            ),
            "",
        ),
        message(
            add(
                "github",
                &[
                    "--format",
                    r#"{"type": "github", "token": "-", "repository": "a/b"}"#,
                ],
            ),
            "ghp_s3cret\n",
        ),
        message(
            add("set", &["--set", "url=@slack.url", "--format", "slack"]),
            "",
        ),
    ];
    for output in made {
        assert!(output.status.success(), "{output:?}");
        let printed = stdout(&output) + &stderr(&output);
        assert!(!printed.contains("s3cret"), "{printed}");
    }
    let listed = stdout(&mesh.run(&["webhooks", "list"]));
    for name in [
        "prompted", "file", "stdin", "bot", "header", "pager", "github", "set",
    ] {
        assert!(listed.contains(name), "{listed}");
    }
    let smesh = |args: &[&str]| mesh.smesh(&[&["webhooks"], args].concat());
    let changed = [
        message(smesh(&["edit", "file", "--address", "-"]), address),
        message(smesh(&["edit", "bot", "--format", "-"]), bot),
        message(
            smesh(&["edit", "header", "--header", "x-key: @routing.key"]),
            "",
        ),
        message(smesh(&["preview", "--format", "-"]), bot),
        message(smesh(&["preview", "bot"]), ""),
    ];
    for output in changed {
        assert!(output.status.success(), "{output:?}");
        let printed = stdout(&output) + &stderr(&output);
        assert!(!printed.contains("s3cret"), "{printed}");
    }
    // Names are per owner: deleting one endpoint does not affect another owner's.
    let alices = message(
        add("file", &["https://example.org/", "--owner", "alice"]),
        "",
    );
    assert!(alices.status.success(), "{alices:?}");
    let listing = stdout(&mesh.run(&["webhooks", "show", "alice/file"]));
    assert!(
        listing.contains("alice/file") && listing.contains("owner alice"),
        "{listing}"
    );
    let removed = mesh.run(&["webhooks", "remove", "alice/file"]);
    assert!(removed.status.success(), "{removed:?}");
    let listing = stdout(&mesh.run(&["webhooks", "show", "file"]));
    assert!(listing.contains("root/file"), "{listing}");

    let failed = [
        (
            message(add("x", &["-", "--header", "a: -"]), "s3cret"),
            "read already",
        ),
        (message(add("x", &["@none"]), ""), "none"),
        (message(add("x", &["-"]), " \n"), "empty"),
        (
            message(add("x", &["--format", "-"]), "{\"token\": \"s3cret\""),
            "--format",
        ),
    ];
    for (output, problem) in failed {
        assert!(!output.status.success(), "{output:?}");
        let printed = stdout(&output) + &stderr(&output);
        assert!(
            printed.contains(problem) && !printed.contains("s3cret"),
            "{printed}"
        );
    }
}
