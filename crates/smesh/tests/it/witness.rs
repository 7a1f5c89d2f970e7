//! `smesh verify --witness`: a witness cosigns the checkpoints of a running mesh, and the verifier requires the cosignature.

use std::fs;

use mesh_testkit::WitnessServer;
use serde_json::Value;

use crate::forged::{DATABASE, copy, signed};
use crate::mesh::{Mesh, stderr, stdout};
use crate::others::with_an_event_of_alice;

/// Verifies with additional arguments. Returns the exit status and the output.
fn verify(mesh: &Mesh, args: &[&str]) -> (Option<i32>, Value) {
    let output = mesh.run(&[&["verify", "--json", "--key", "keys"], args].concat());
    let printed = serde_json::from_str(&stdout(&output));
    (
        output.status.code(),
        printed.unwrap_or_else(|_| panic!("{args:?}: {}", stderr(&output))),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn cosignatures_of_witnesses_can_be_required() {
    let (witness, url) = WitnessServer::start("witness.example/one", 1).await;
    let (unknown_witness, _) = WitnessServer::start("witness.example/two", 2).await;
    // Same name, other key.
    let (impostor, _) = WitnessServer::start("witness.example/one", 3).await;
    let (one, two) = (witness.vkey(), unknown_witness.vkey());
    let mut mesh = with_an_event_of_alice(|mesh| {
        let path = mesh.path("mesh.toml");
        let config = fs::read_to_string(&path).unwrap();
        let witnesses =
            format!("[[ledger.checkpoint.witnesses]]\nurl = \"{url}\"\nkey = \"{one}\"\n");
        fs::write(&path, format!("{config}\n{witnesses}")).unwrap();
    })
    .await;
    signed(&mesh, 8).await;
    let log = stdout(&mesh.run(&["ledger", "key", "show"]));
    fs::write(mesh.path("keys"), &log).unwrap();
    let required = |keys: &[&str], count: &str| -> Vec<String> {
        let keys = keys.iter().flat_map(|key| ["--witness", key]);
        let args = keys.chain(["--cosignatures", count]);
        args.map(str::to_owned).collect()
    };
    let check = |mesh: &Mesh, more: &[&str], keys: &[&str], count: &str, lacks: Option<&str>| {
        let required = required(keys, count);
        let required: Vec<&str> = required.iter().map(String::as_str).collect();
        let (status, printed) = verify(mesh, &[more, &required].concat());
        let reason = printed["reason"].as_str().unwrap_or_default();
        let expected = (Some(i32::from(lacks.is_some())), lacks.is_none());
        assert_eq!((status, printed["verified"] == true), expected, "{printed}");
        assert!(reason.contains(lacks.unwrap_or_default()), "{printed}");
        // What was compared is listed also if cosignatures are missing.
        let listed = [&printed["checked"], &printed["unchecked"]].map(ToString::to_string);
        assert!(
            listed.concat().contains("published checkpoints"),
            "{printed}"
        );
    };

    // The witness does not know the log yet.
    check(&mesh, &[], &[&one], "1", Some("0 of 1"));
    witness.know(log.trim());
    signed(&mesh, 9).await;
    fs::write(mesh.path("witnesses"), format!("{one}\n\n{two}\n")).unwrap();
    for way in [&[][..], &["--remote"]] {
        check(&mesh, way, &[&one], "1", None);
        check(&mesh, way, &["witnesses"], "1", None);
        check(&mesh, way, &["witnesses"], "2", Some("1 of 2"));
        check(&mesh, way, &[&two], "1", Some("0 of 1"));
        check(&mesh, way, &[&impostor.vkey()], "1", Some("0 of 1"));
    }
    // The key of a log is not a witness key. Without a number, nothing would be required.
    let refused = mesh.run(&["verify", "--witness", log.trim(), "--cosignatures", "1"]);
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    let refused = mesh.run(&["verify", "--witness", &one]);
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");

    // The cosignature of the newest checkpoint is modified: 16 characters, still valid base64.
    let note = stdout(&mesh.run(&["ledger", "checkpoint"]));
    mesh.end("-TERM");
    fs::create_dir(mesh.path("copy")).unwrap();
    copy(&mesh.path("data"), &mesh.path("copy"), &DATABASE);
    let line = note
        .lines()
        .find(|line| line.contains("witness.example/one"));
    let cosignature = line.unwrap().rsplit(' ').next().unwrap();
    let (begin, end) = cosignature.split_at(cosignature.len() - 24);
    let forged = format!("{begin}{}{}", "A".repeat(16), &end[16..]);
    let file = mesh.path("copy/ledger.db");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, replaced(&bytes, cosignature, &forged)).unwrap();
    let ledger = ["--database", "copy/ledger.db"];
    check(&mesh, &ledger, &[&two], "1", Some("0 of 1"));
    check(&mesh, &ledger, &[&one], "1", Some("bad cosignature"));
}

/// Replaces every occurrence of a text by another of the same length.
fn replaced(bytes: &[u8], text: &str, by: &str) -> Vec<u8> {
    let (mut bytes, mut count) = (bytes.to_vec(), 0);
    for at in 0..bytes.len() - text.len() {
        if bytes[at..].starts_with(text.as_bytes()) {
            bytes[at..at + by.len()].copy_from_slice(by.as_bytes());
            count += 1;
        }
    }
    assert!(count > 0, "the file has the text");
    bytes
}
