//! Access control: every route of every service, for every kind of caller, over the Unix socket and over TCP.

mod matrix;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use mesh_runtime::{ConfigFile, Context, Service};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::mesh::Mesh;
use crate::others::{as_other, with_an_event_of_alice};

use matrix::{MATRIX, TO_THE_OPERATORS};

const CALLERS: [&str; 9] = [
    "nobody",
    "wrong",
    "alice",
    "bob",
    "physics",
    "auditor",
    "admin",
    "unix nobody",
    "unix root",
];

/// An endpoint of the operator that gets no events by itself.
const PIPELINE: &str = "[[webhook-dispatcher.endpoints]]\nname = 'pipeline'\nurl = 'http://127.0.0.1:1/'\nallow_http = true\n\
    allow_private = ['127.0.0.0/8']\nsecret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'\ntypes = ['job.boot_fail']\n";

/// Tested elsewhere with streams and gRPC clients. This test only checks that a token is required.
const OTHERWISE: &[&str] = &[
    "/v1/events/stream",
    "/mesh.ledger.v1.EventsService/{*method}",
    "/mesh.ledger.v1.ProofService/{*method}",
    "/mesh.webhook.v1.WebhooksService/{*method}",
    "/mesh.ledger.v1.ReplayService/{*method}",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_each_role_as_permitted() {
    let tokens: BTreeMap<&str, String> = CALLERS[1..7]
        .iter()
        .map(|name| (*name, format!("the token of {name}, which is long")))
        .collect();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mesh = with_an_event_of_alice(|mesh| {
        let mut api = format!("[mesh.api]\nlisten = \"{address}\"\n");
        for (name, role) in [
            ("alice", "role = 'user'\nusers = ['alice']"),
            ("bob", "role = 'user'\nusers = ['bob']"),
            ("physics", "role = 'user'\naccounts = ['physics']"),
            ("auditor", "role = 'auditor'"),
            ("admin", "role = 'admin'"),
        ] {
            let file = mesh.path(&format!("{name}.token"));
            std::fs::write(&file, &tokens[name]).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            api.push_str(&format!(
                "[[mesh.api.tokens]]\nname = '{name}'\nfile = {file:?}\n{role}\n"
            ));
        }
        api.push_str(PIPELINE);
        configure(mesh, &api);
    })
    .await;

    let listed = routes(&mesh).await;
    let known =
        |path: &str| MATRIX.iter().any(|(route, _)| *route == path) || OTHERWISE.contains(&path);
    let unknown: Vec<&String> = listed.iter().filter(|path| !known(path)).collect();
    assert!(
        unknown.is_empty(),
        "who may ask these? add them to the matrix: {unknown:?}"
    );
    assert!(
        listed.len() >= 12,
        "the routers do not show their routes any more: {listed:?}"
    );

    mesh_runtime::install_crypto_provider();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let unix = reqwest::Client::builder()
        .unix_socket(mesh.path("data/api.sock"))
        .build()
        .unwrap();
    mesh_testkit::wait_until("the ledger is signed", crate::mesh::TIMEOUT, async || {
        let request = unix.get("http://mesh/v1/ledger/checkpoint");
        request.send().await.unwrap().status().is_success()
    })
    .await;
    let ask = async |name: &str, method: &str, path: &str, body: &'static str| -> u16 {
        let request = match name {
            "unix nobody" => return curl(&mesh, method, path, body),
            "unix root" => unix.request(method.parse().unwrap(), format!("http://mesh{path}")),
            name => {
                let method = method.parse().unwrap();
                let request = http.request(method, format!("http://{address}{path}"));
                match tokens.get(name) {
                    Some(token) => request.bearer_auth(token),
                    None => request,
                }
            }
        };
        let request = match body {
            "" => request,
            body => request.body(body),
        };
        request.send().await.unwrap().status().as_u16()
    };
    let message = ("POST", "/v1/replays", TO_THE_OPERATORS);
    let with_a_body = [(message, "{\"endpoint\": \"pipeline\"}")];
    let without = MATRIX.iter().map(|(_, row)| (*row, ""));
    let mut wrong = Vec::new();
    for ((method, path, expected), body) in without.chain(with_a_body) {
        for (name, expected) in CALLERS.iter().zip(expected) {
            let status = ask(name, method, path, body).await;
            if status != expected {
                wrong.push(format!(
                    "{method} {path} {body} as {name}: {status}, not {expected}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for path in [
        "/v1/events/stream",
        "/mesh.ledger.v1.EventsService/ListEvents",
        "/mesh.ledger.v1.EventsService/ExportEvents",
        "/mesh.ledger.v1.ProofService/RotateKey",
        "/mesh.webhook.v1.WebhooksService/ListWebhooks",
        "/mesh.ledger.v1.ReplayService/StartReplay",
    ] {
        let request = http
            .get(format!("http://{address}{path}"))
            .bearer_auth("wrong");
        assert_eq!(
            request.send().await.unwrap().status().as_u16(),
            401,
            "{path}"
        );
    }

    // Number of results for a caller, and what the audit records of it.
    let jobs = async |name: &str, query: &str| -> usize {
        let url = format!("http://{address}/v1/events?{query}");
        let request = http.get(url).bearer_auth(&tokens[name]);
        let answer: Value =
            serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
        answer["entries"].as_array().unwrap().len()
    };
    for (name, seen) in [
        ("alice", 1),
        ("bob", 0),
        ("physics", 1),
        ("auditor", 1),
        ("admin", 1),
    ] {
        assert_eq!(
            jobs(name, "job=7&type=job.started&limit=77").await,
            seen,
            "{name}"
        );
    }
    let reads = async || -> Vec<Value> {
        let request = unix.get("http://mesh/v1/events?type=audit.read&limit=1000");
        let text = request.send().await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let entries = answer["entries"].as_array().unwrap().iter();
        entries
            .map(|entry| entry["event"]["data"]["read"].clone())
            .collect()
    };
    let of_these = async || -> Vec<Value> {
        let mut found = reads().await;
        found.retain(|read| read["request"].as_str().unwrap().contains("limit=77"));
        found
    };
    mesh_testkit::wait_until(
        "the reads are in the ledger",
        crate::mesh::TIMEOUT,
        async || of_these().await.len() >= 3,
    )
    .await;
    let mut readers: Vec<(String, String)> = of_these()
        .await
        .iter()
        .map(|read| {
            assert_eq!(read["whose"], serde_json::json!(["alice"]), "{read}");
            assert_eq!(read["rows"], "1", "{read}");
            let text = |key: &str| read[key].as_str().unwrap().to_owned();
            (text("reader"), text("role"))
        })
        .collect();
    readers.sort();
    // One record each. None for alice, who read her own data, and none for bob, who got no data.
    assert_eq!(
        readers,
        [
            ("token:admin", "admin"),
            ("token:auditor", "auditor"),
            ("token:physics", "coordinator")
        ]
        .map(|(reader, role)| (reader.to_owned(), role.to_owned()))
    );
}

/// Replaces `[mesh.api]` of mesh.toml.
pub fn configure(mesh: &Mesh, api: &str) {
    let path = mesh.path("mesh.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("[mesh.api]\n").unwrap();
    let after = rest.split_once("\n[").map_or("", |(_, after)| after);
    mesh_testkit::write_private(&path, format!("{before}{api}\n[{after}"));
}

fn curl(mesh: &Mesh, method: &str, path: &str, body: &str) -> u16 {
    let socket = mesh.path("data/api.sock");
    let url = format!("http://mesh{path}");
    let output = as_other(
        "curl".as_ref(),
        &[
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-X",
            method,
            "--data",
            body,
            "--unix-socket",
            socket.to_str().unwrap(),
            &url,
        ],
    );
    String::from_utf8_lossy(&output.stdout).parse().unwrap()
}

/// Every path of the services' routers and of the server, as axum prints them.
async fn routes(mesh: &Mesh) -> Vec<String> {
    let path = mesh.path("routes.toml");
    let text = std::fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    // A separate data directory and no NATS: these routers get no requests.
    let folder = mesh.path("routes");
    std::fs::create_dir(&folder).unwrap();
    mesh_testkit::write_private(&path, &text);
    let config = ConfigFile::load(&smesh::services::sections(), Some(&path)).unwrap();
    let mut context = Context::new(config, CancellationToken::new()).unwrap();
    context.mesh.data_dir = folder;
    context.mesh.nats.url = "nats://127.0.0.1:1".into();
    let routers = [
        ledger::LedgerService::start(context.clone())
            .await
            .unwrap()
            .router,
        cost_engine::CostEngineService::start(context.clone())
            .await
            .unwrap()
            .router,
        pending_explainer::PendingExplainerService::start(context.clone())
            .await
            .unwrap()
            .router,
        webhook_dispatcher::WebhookDispatcherService::start(context.clone())
            .await
            .unwrap()
            .router,
    ];
    let mut paths: Vec<String> = routers
        .iter()
        .flat_map(|router| {
            let debug_text = format!("{router:?}");
            debug_text
                .split('"')
                // axum's internal entries handle requests without a route.
                .filter(|text| text.starts_with('/') && text.len() > 1)
                .filter(|text| !text.contains("__private__axum"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    paths.sort();
    paths.dedup();
    context.shutdown.cancel();
    paths
}
