//! Receivers that echo requests, as debug pages and firewalls do: no secret of an endpoint is recorded or displayed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use async_nats::jetstream;
use axum::http::Method;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use mesh_events::EventType;
use mesh_runtime::api::Role;
use mesh_testkit::wait_until;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::dispatcher::{Dispatcher, logs};
use crate::harness::{DEADLINE, Kind, Mesh, SECRET, endpoint, event, on_both, signed};

on_both!(no_secret_that_a_receiver_repeats_is_recorded_or_shown,);

/// Encodings in which pages echo a text.
const ENCODINGS: [fn(&str) -> String; 8] = [
    str::to_owned,
    |text| BASE64_STANDARD.encode(text),
    |text| BASE64_STANDARD.encode(format!(".{text}")),
    |text| BASE64_STANDARD.encode(format!("..{text}")),
    |text| BASE64_URL_SAFE_NO_PAD.encode(text),
    |text| url::form_urlencoded::byte_serialize(text.as_bytes()).collect(),
    |text| serde_json::to_string(text).unwrap(),
    |text| {
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;")
            .replace('\'', "&#39;")
    },
];
/// Maximum echoed pieces per request: parts of its target, headers and body.
const PIECES: usize = 4;
const EVENTS: usize = ENCODINGS.len() * PIECES;

/// Echoes one piece of each request in one encoding: in body, status reason and `Location`.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let counts = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, Arc::clone(&counts)));
        }
    });
    port
}

async fn answer(
    stream: TcpStream,
    counts: Arc<Mutex<HashMap<String, usize>>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut pieces, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        let name = line.split(':').next().unwrap_or_default().to_lowercase();
        if name == "content-length" {
            length = line[15..].trim().parse().unwrap();
        }
        if pieces.is_empty() || ["authorization", "x-api-key"].contains(&name.as_str()) {
            pieces.push(line);
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    pieces.push(String::from_utf8(body).unwrap());

    let path = pieces[0].split([' ', '?']).nth(1).unwrap().to_owned();
    let n = {
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(path.clone()).or_default();
        *count += 1;
        *count - 1
    };
    let encode = ENCODINGS[n % ENCODINGS.len()];
    let piece = pieces[n / ENCODINGS.len() % pieces.len()].clone();
    // Recorded texts end after 200 or 1,024 characters: some are cut within the secret.
    let piece = format!("{}{piece}", " ".repeat([0, 150, 170][n / 3 % 3]));
    let shown = encode(&piece);
    let (status, body) = match (path.as_str(), n % 3) {
        ("/api/chat.postMessage", 0) => (200, json!({"ok": false, "error": shown}).to_string()),
        ("/api/chat.postMessage", 1) => {
            let posted = json!({"ok": true, "channel": shown, "ts": shown});
            (200, posted.to_string())
        }
        (_, 2) => (302, shown.clone()),
        _ => (400, shown.clone()),
    };
    let line: String = shown.chars().filter(|c| !c.is_control()).collect();
    let answer = format!(
        "HTTP/1.1 {status} {line}\r\nlocation: https://example.org/?{line}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// The secrets in all echoed forms.
fn needles() -> Vec<String> {
    let secrets = [
        "p4ss&w0rd\"/+x",
        "p4ss&w0rd%22%2F+x",
        "query<s3cret>/+=",
        "query%3Cs3cret%3E%2F%2B%3D",
        "api-key'\"<9f8e7d6c>\\&",
        "Path/S3cret+Token",
        "S3cret+Token",
        "xoxb-123456-\"abc&def",
        "routing-key-\"0123456789&",
        SECRET,
        &SECRET[6..],
    ];
    let mut needles = Vec::new();
    for secret in secrets {
        needles.extend(ENCODINGS.iter().map(|encode| {
            let encoded = encode(secret);
            encoded.trim_matches(['"', '=']).to_owned()
        }));
        // Inside a longer text only the middle depends on the secret alone.
        for before in 0..3 {
            let encoded = BASE64_STANDARD.encode(format!("{}{secret}", "x".repeat(before)));
            needles.push(encoded[4..encoded.len() - 4].to_owned());
        }
    }
    needles
}

async fn stream(mesh: &Mesh, name: &str) -> String {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let mut stream = jetstream::new(client).get_stream(name).await.unwrap();
    let state = stream.info().await.unwrap().state.clone();
    let mut text = String::new();
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let payload = String::from_utf8_lossy(&message.payload);
        writeln!(text, "{} {:?} {payload}", message.subject, message.headers).unwrap();
    }
    text
}

fn endpoints(port: u16) -> Vec<String> {
    let types = "types = [\"job.failed\"]";
    let at = |rest: &str| format!("http://127.0.0.1:{port}{rest}");
    vec![
        signed(
            "pipeline",
            &format!(
                "http://bot:p4ss&w0rd%22%2F+x@127.0.0.1:{port}/hook?key=query%3Cs3cret%3E%2F%2B%3D"
            ),
            &format!("{types}\nheaders = {{ x-api-key = '''api-key'\"<9f8e7d6c>\\&''' }}"),
        ),
        endpoint(
            "chat",
            &at("/services/Path/S3cret+Token"),
            &format!("{types}\nformat = \"slack\""),
        ),
        endpoint(
            "bot",
            &at("/api/"),
            &format!(
                "{types}\nformat = {{ type = \"slack-api\", token = 'xoxb-123456-\"abc&def', channel = \"C1\", current = true }}"
            ),
        ),
        endpoint(
            "pager",
            &at("/enqueue"),
            &format!(
                "{types}\nformat = {{ type = \"pagerduty\", routing_key = 'routing-key-\"0123456789&' }}"
            ),
        ),
    ]
}

async fn answers(mesh: &Mesh) -> String {
    let mut text = String::new();
    let mut add = |(status, answer): (axum::http::StatusCode, Value)| {
        writeln!(text, "{status} {answer}").unwrap();
        answer
    };
    add(mesh.call(Method::GET, "/v1/webhooks").await);
    for name in ["pipeline", "chat", "bot", "pager"] {
        let at = format!("/v1/webhooks/{name}");
        add(mesh.call(Method::GET, &at).await);
        for _ in 0..ENCODINGS.len() {
            add(mesh.call(Method::POST, &format!("{at}/test")).await);
        }
        let draft = json!({"webhook": name, "type": "job.failed"});
        let preview = "/v1/webhooks/preview";
        let shown = mesh
            .ask(Method::POST, preview, "root", Role::Admin, &draft)
            .await;
        assert!(add(shown)["requests"].is_array(), "{name}");
        let page = add(mesh
            .call(Method::GET, &format!("{at}/deliveries?limit=100"))
            .await);
        let deliveries = page["deliveries"].as_array().unwrap();
        assert_eq!(deliveries.len(), EVENTS, "{name}");
        for delivery in deliveries {
            let id = delivery["event_id"].as_str().unwrap();
            add(mesh
                .call(Method::GET, &format!("{at}/deliveries/{id}"))
                .await);
        }
    }
    text
}

async fn postgres(mesh: &Mesh) -> PgConnection {
    let options: PgConnectOptions = mesh.database.parse().unwrap();
    options.connect().await.unwrap()
}

/// Number of deliveries that are done and published.
async fn settled(mesh: &Mesh) -> i64 {
    let sql = "SELECT count(*) FROM deliveries WHERE state <> 'waiting' AND announced = 1";
    let count = if mesh.database.is_empty() {
        let query = sqlx::query_scalar(sql);
        query.fetch_one(&mut mesh.outsider().await).await
    } else {
        let query = sqlx::query_scalar(sql);
        query.fetch_one(&mut postgres(mesh).await).await
    };
    // The dispatcher has not created its tables yet.
    count.unwrap_or_default()
}

/// The whole database: the bytes of the file, or every column of every table.
async fn dump(mesh: &Mesh) -> String {
    if mesh.database.is_empty() {
        let file = std::fs::read(mesh.folder.path().join("webhook-dispatcher.db")).unwrap();
        return String::from_utf8_lossy(&file).into_owned();
    }
    let mut database = postgres(mesh).await;
    let columns: Vec<(String, String, String)> = sqlx::query_as(
        "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns WHERE table_schema = 'public'",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    let tables: std::collections::BTreeSet<&str> =
        columns.iter().map(|(table, ..)| table.as_str()).collect();
    for table in ["endpoints", "deliveries", "attempts", "kept", "acts"] {
        assert!(tables.contains(table), "{tables:?}");
    }
    let mut text = String::new();
    for (table, column, kind) in &columns {
        let value = match kind.as_str() {
            "bytea" => format!("\"{column}\""),
            _ => format!("convert_to(\"{column}\"::text, 'UTF8')"),
        };
        let sql = format!("SELECT {value} FROM \"{table}\" WHERE \"{column}\" IS NOT NULL");
        let query = sqlx::query_scalar(AssertSqlSafe(sql));
        let values: Vec<Vec<u8>> = query.fetch_all(&mut database).await.unwrap();
        for value in values {
            writeln!(text, "{table}.{column} {}", String::from_utf8_lossy(&value)).unwrap();
        }
    }
    text
}

async fn no_secret_that_a_receiver_repeats_is_recorded_or_shown(kind: Kind) {
    let mut mesh = Mesh::on(kind).await;
    mesh.settings = "cost_join_timeout = \"0s\"".to_owned();
    let endpoints = endpoints(echo().await);
    let config = mesh.write_config(&endpoints);
    let dispatcher = Dispatcher::start(&config, 1);
    mesh.wait_for_positions(endpoints.len()).await;
    for n in 0..EVENTS {
        let failed = event(EventType::JobFailed, u32::try_from(n).unwrap() + 1);
        mesh.publish(&failed).await;
    }
    wait_until("all are done and announced", DEADLINE, async || {
        settled(&mesh).await == (EVENTS * endpoints.len()) as i64
    })
    .await;
    drop(dispatcher);
    let log = logs(&config);
    mesh.run(&endpoints).await;
    let mut found = vec![
        ("API", answers(&mesh).await),
        ("log", log),
        ("MESH_DEAD", stream(&mesh, "MESH_DEAD").await),
        ("MESH_AUDIT", stream(&mesh, "MESH_AUDIT").await),
    ];
    mesh.stop().await;
    found.push(("database", dump(&mesh).await));

    let needles = needles();
    let mut leaks = Vec::new();
    for (place, text) in &found {
        assert!(!text.is_empty(), "{place}");
        let leaked = needles.iter().filter(|needle| text.contains(*needle));
        leaks.extend(leaked.map(|needle| format!("{place}: {needle}")));
    }
    assert!(leaks.is_empty(), "{} leaks: {leaks:#?}", leaks.len());
    // The responses were recorded, without the secrets.
    for (place, text) in &found {
        assert!(text.contains("[redacted]"), "{place}");
    }
}
