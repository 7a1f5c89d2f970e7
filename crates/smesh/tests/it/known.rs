//! A server that hides the checkpoint of its ledger.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Output;

use serde_json::json;

use crate::mesh::{Mesh, stderr};

/// Answers every request with an empty page of events, but refuses those for the checkpoint.
fn server_without_checkpoint() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            lines.by_ref().find(String::is_empty);
            let (status, body) = match request.contains("/v1/ledger/checkpoint") {
                true => ("503 Service Unavailable", json!({"detail": "not now"})),
                false => ("200 OK", json!({"entries": []})),
            };
            let body = body.to_string();
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            drop((&stream).write_all(answer.as_bytes()));
        }
    });
    address
}

fn events(mesh: &Mesh, url: &str) -> Output {
    let mut smesh = mesh.smesh(&["events", "--url", url]);
    smesh.env("SMESH_TOKEN", "a token").output().unwrap()
}

#[test]
fn a_ledger_that_hides_its_checkpoint_is_believed_only_at_first_contact() {
    let mesh = Mesh::init();
    let url = format!("http://{}", server_without_checkpoint());
    let first = events(&mesh, &url);
    assert!(first.status.success(), "{}", stderr(&first));

    let seen = json!({ "keys": ["a key"], "checkpoint": "as it was" });
    // The file of a former version had the state of each address.
    let former = json!({ &url: seen });
    let known = json!({ "ledgers": { "a key": seen }, "addresses": { &url: "a key" } });
    for known in [former, known] {
        std::fs::write(mesh.path("known_ledgers.json"), known.to_string()).unwrap();
        let later = events(&mesh, &url);
        let printed = stderr(&later);
        assert_eq!(later.status.code(), Some(1), "{printed}");
        let expected =
            format!("the ledger at {url} cannot be compared with its earlier checkpoint: not now");
        assert!(printed.contains(&expected), "{printed}");
    }
}

#[test]
fn without_a_place_for_earlier_checkpoints_this_is_said() {
    let mesh = Mesh::init();
    let url = format!("http://{}", server_without_checkpoint());
    std::fs::create_dir(mesh.path("known_ledgers.json")).unwrap();
    let output = events(&mesh, &url);
    let printed = stderr(&output);
    assert!(output.status.success(), "{printed}");
    assert!(
        printed.contains("the ledger is not compared with earlier checkpoints"),
        "{printed}"
    );
}
