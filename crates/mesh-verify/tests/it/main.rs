//! Runs the program as an auditor does: with files and public keys only.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something unexpected happens"
)]

mod ledger;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::ledger::Ledger;

/// A folder with the public key of a ledger.
struct Auditor {
    folder: TempDir,
    ledger: Ledger,
}

impl Auditor {
    fn of(entries: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::of(entries);
        std::fs::write(folder.path().join("ledger.pub"), ledger.vkey()).unwrap();
        Self { folder, ledger }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, lines: &[String]) -> String {
        let text = lines.join("\n") + "\n";
        let bytes = match name.ends_with(".gz") {
            true => ledger::compressed(text.as_bytes()),
            false => text.into_bytes(),
        };
        std::fs::write(self.path(name), bytes).unwrap();
        name.to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_mesh-verify"))
            .current_dir(self.folder.path())
            .args(["--key", "ledger.pub"])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs the program and returns its JSON. Also checks that the exit status agrees.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["--json"], arguments].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let status = i32::from(answer["verified"] != true);
        assert_eq!(output.status.code(), Some(status), "{answer}");
        answer
    }
}

#[test]
fn an_export_is_verified_with_nothing_but_its_key() {
    let auditor = Auditor::of(3_000);
    let plain = auditor.write("ledger.ndjson", &auditor.ledger.export(1, 3_000));
    let packed = auditor.write("ledger.ndjson.gz", &auditor.ledger.export(1, 3_000));
    for file in [&plain, &packed] {
        for threads in ["1", "2", "5"] {
            let answer = auditor.json(&["--threads", threads, file]);
            let export = &answer["exports"][0];
            assert_eq!(
                (&export["first"], &export["last"]),
                (&1.into(), &3_000.into())
            );
            assert_eq!(export["head"], hex::encode(auditor.ledger.head()));
            assert_eq!(export["without_content"], 0);
        }
    }
    let printed = auditor.run(&[&plain]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(
        printed.contains("entries 1 to 3000 of example.org/ledger are unchanged and signed"),
        "{printed}"
    );
}

#[test]
fn the_first_fault_is_reported_whichever_thread_finds_it() {
    let auditor = Auditor::of(3_000);
    let whole = auditor.ledger.export(1, 3_000);
    for at in [1_usize, 2, 777, 1_500, 2_999, 3_000] {
        for (what, tampered) in [
            ("content", ledger::with_another_body(&whole, at)),
            ("gone", ledger::without(&whole, at)),
            ("cut off", whole[..at].to_vec()),
            ("garbled", ledger::garbled(&whole, at)),
        ] {
            let file = auditor.write("tampered.ndjson", &tampered);
            let answer = auditor.json(&[&file]);
            assert_eq!(answer["first_bad_sequence"], at, "{what}: {answer}");
        }
    }
    // Two changed entries: the first must be reported, even if another thread meets the later one
    // earlier.
    let twice = ledger::with_another_body(&ledger::with_another_body(&whole, 2_500), 900);
    let file = auditor.write("tampered.ndjson", &twice);
    assert_eq!(auditor.json(&[&file])["first_bad_sequence"], 900);
    let printed = String::from_utf8(auditor.run(&[&file]).stdout).unwrap();
    assert!(
        printed.contains("NOT VERIFIED: the first bad entry is 900"),
        "{printed}"
    );
}

#[test]
fn archives_must_follow_each_other() {
    let auditor = Auditor::of(900);
    let first = auditor.write("a.ndjson.gz", &auditor.ledger.export(1, 300));
    let second = auditor.write("b.ndjson.gz", &auditor.ledger.export(301, 640));
    let third = auditor.write("c.ndjson.gz", &auditor.ledger.export(641, 900));
    let answer = auditor.json(&[&first, &second, &third]);
    assert_eq!(answer["exports"][2]["last"], 900);
    // Each export is also valid on its own.
    assert_eq!(auditor.json(&[&second])["verified"], true);
    for wrong in [[&first, &third], [&second, &first], [&first, &first]] {
        let answer = auditor.json(&[wrong[0], wrong[1]]);
        let reason = answer["reason"].as_str().unwrap();
        assert!(reason.contains("does not continue"), "{reason}");
    }
}

#[test]
fn stored_checkpoints_reveal_another_history_of_the_same_key() {
    let auditor = Auditor::of(100);
    std::fs::write(auditor.path("kept.note"), auditor.ledger.note(60)).unwrap();
    let file = auditor.write("ledger.ndjson", &auditor.ledger.export(1, 100));
    let with = ["--checkpoint", "kept.note", file.as_str()];
    assert_eq!(auditor.json(&with)["checkpoints"][0]["compared"], true);
    let forked = Ledger::forked_at(40, 100);
    auditor.write("ledger.ndjson", &forked.export(1, 100));
    // The file is consistent, and the key is the right one.
    assert_eq!(auditor.json(&[&file])["verified"], true);
    let answer = auditor.json(&with);
    assert_eq!(answer["first_bad_sequence"], 1, "{answer}");
    // A checkpoint beyond the end of all files is reported as not compared.
    auditor.write("ledger.ndjson", &auditor.ledger.export(1, 50));
    assert_eq!(auditor.json(&with)["checkpoints"][0]["compared"], false);
    // A checkpoint without an export.
    let alone = auditor.json(&["--checkpoint", "kept.note"]);
    assert_eq!(alone["checkpoints"][0]["size"], 60);
}

#[test]
fn whatever_happens_json_answers() {
    let auditor = Auditor::of(200);
    let export = auditor.ledger.export(1, 200);
    let packed = auditor.write("whole.ndjson.gz", &export);
    let bytes = std::fs::read(auditor.path(&packed)).unwrap();
    std::fs::write(auditor.path("cut.ndjson.gz"), &bytes[..bytes.len() - 9]).unwrap();
    std::fs::write(auditor.path("empty"), "").unwrap();
    std::fs::write(auditor.path("text"), "hello\n").unwrap();
    std::fs::write(auditor.path("bytes"), [0xff, 0xfe, 0]).unwrap();
    for (file, part) in [
        ("cut.ndjson.gz", "cannot be read"),
        ("empty", "is empty"),
        ("text", "not the header of an export"),
        ("bytes", "not the header of an export"),
        ("absent", "cannot be read"),
        (".", "cannot be read"),
    ] {
        let answer = auditor.json(&[file]);
        let reason = answer["reason"].as_str().unwrap();
        assert!(reason.contains(part), "{file}: {reason}");
    }
    // Signed, but not by a trusted key.
    std::fs::write(auditor.path("ledger.pub"), Ledger::other_vkey()).unwrap();
    let answer = auditor.json(&[&packed]);
    assert!(
        answer["reason"]
            .as_str()
            .unwrap()
            .contains("none of which is a given key"),
        "{answer}"
    );
    std::fs::write(auditor.path("ledger.pub"), "\n").unwrap();
    assert_eq!(auditor.json(&[&packed])["reason"], "it contains no key");
}

#[test]
fn an_invalid_command_line_is_not_a_contradiction() {
    let auditor = Auditor::of(1);
    for arguments in [&[][..], &["--threads", "0", "x"], &["--wrong"]] {
        assert_eq!(auditor.run(arguments).status.code(), Some(2));
    }
    let help = auditor.run(&["--help"]);
    assert!(help.status.success());
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("Examples:")
    );
}

/// An auditor has to read only this crate, `ledger-format`, and libraries for hashes, signatures,
/// JSON and gzip.
#[test]
fn it_links_no_service() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p}", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let tree = String::from_utf8(tree.stdout).unwrap();
    let own: std::collections::BTreeSet<&str> = tree
        .lines()
        .filter(|line| line.contains('/'))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(own, ["ledger-format", "mesh-verify"].into());
    for heavy in [
        "tokio",
        "sqlx",
        "tonic",
        "async-nats",
        "axum",
        "reqwest",
        "prost",
    ] {
        assert!(!tree.lines().any(|line| line.starts_with(heavy)), "{heavy}");
    }
}
