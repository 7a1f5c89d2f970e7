//! The auditor's tasks: stores checkpoints and keys, verifies exports without the ledger, and detects changes.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::mesh::{stderr, stdout};
use crate::others::{as_other, with_an_event_of_alice};

#[tokio::test(flavor = "multi_thread")]
async fn an_auditor_needs_nothing_but_the_public_key() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    mesh.wait_until("it is signed", || {
        mesh.run(&["ledger", "checkpoint"]).status.success()
    });
    let store_output = |name: &str, args: &[&str]| {
        let output = mesh.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        std::fs::write(mesh.path(name), &output.stdout).unwrap();
        stdout(&output)
    };
    let note = store_output("kept.note", &["ledger", "checkpoint"]);
    assert!(
        note.starts_with("slurm-mesh.org/ledger/testbed\n"),
        "{note}"
    );
    let first = store_output("first.keys", &["ledger", "key", "show"]);
    store_output("export.ndjson", &["ledger", "export"]);

    let verify = |args: &[&str], verified: bool| {
        let args = [&["verify", "--json"], args].concat();
        let output = mesh.run(&args);
        let found: Value = serde_json::from_str(&stdout(&output))
            .unwrap_or_else(|_| panic!("{args:?}: {}", stderr(&output)));
        assert_eq!(
            (found["verified"].as_bool(), output.status.success()),
            (Some(verified), verified),
            "{found}"
        );
        found
    };
    let signed = verify(&["--export", "export.ndjson", "--key", "first.keys"], true);
    assert_eq!(signed["signed"], signed["entries"]);
    verify(
        &[
            "--export",
            "export.ndjson",
            "--key",
            first.trim(),
            "--checkpoint",
            "kept.note",
        ],
        true,
    );
    verify(&["--key", "first.keys", "--checkpoint", "kept.note"], true);
    verify(&["--remote", "--key", "first.keys"], true);

    // For the configured ledger every comparison is possible, also with the checkpoints in NATS.
    let whole = verify(&[], true);
    assert_eq!(whole["unchecked"], serde_json::json!({}), "{whole}");
    let checked = whole["checked"].as_array().unwrap();
    assert!(checked.contains(&"published checkpoints".into()), "{whole}");
    // Every failure gives an answer.
    for wrong in [
        &["--key", "nonsense"][..],
        &["--export", "not-there", "--key", "first.keys"],
        &["--checkpoint", "not-there"],
        &["--checkpoint", "first.keys"],
        &["--database", "not-there"],
        &["--config", "not-there"],
    ] {
        let found = verify(wrong, false);
        assert!(found["error"].is_string(), "{wrong:?}: {found}");
    }

    // A changed body, and a truncated export.
    let export = std::fs::read_to_string(mesh.path("export.ndjson")).unwrap();
    std::fs::write(mesh.path("changed.ndjson"), with_another_body(&export)).unwrap();
    let found = verify(
        &["--export", "changed.ndjson", "--key", "first.keys"],
        false,
    );
    assert_eq!(found["first_bad_sequence"], 1, "{found}");
    let (header, _) = export.split_once('\n').unwrap();
    std::fs::write(mesh.path("cut.ndjson"), format!("{header}\n")).unwrap();
    let found = verify(&["--export", "cut.ndjson", "--key", "first.keys"], false);
    assert_eq!(found["first_bad_sequence"], 1, "{found}");

    // A new key, to which the former one hands over.
    let second = store_output("second.keys", &["ledger", "key", "rotate"]);
    let both = store_output("both.keys", &["ledger", "key", "show"]);
    assert_eq!(both, format!("{first}{second}"));
    verify(&["--key", "both.keys", "--checkpoint", "kept.note"], true);
    let unknown = mesh.run(&[
        "verify",
        "--export",
        "export.ndjson",
        "--key",
        "second.keys",
    ]);
    assert!(!unknown.status.success() && stderr(&unknown).contains("none of which is a given key"));

    // Other users may fetch checkpoints, but no export and no new key.
    let (smesh, socket) = (mesh.path("smesh"), mesh.path("data/api.sock"));
    let socket = socket.to_str().unwrap();
    let other = |args: &[&str]| as_other(&smesh, &[&["--socket", socket, "ledger"], args].concat());
    assert!(other(&["checkpoint"]).status.success());
    for refused in [&["export"][..], &["key", "rotate"]] {
        assert_eq!(other(refused).status.code(), Some(77), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_content_is_archived_while_the_ledger_runs() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    mesh.wait_until("it is signed", || {
        mesh.run(&["ledger", "checkpoint"]).status.success()
    });
    let json = |args: &[&str]| -> Value {
        let output = mesh.run(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let keys = stdout(&mesh.run(&["ledger", "key", "show"]));
    let wrong = mesh.run(&["ledger", "retain", "--before", "tomorrow"]);
    assert!(stderr(&wrong).contains("--before"), "{}", stderr(&wrong));
    let retain = [
        "ledger",
        "retain",
        "--before",
        "1ms",
        "--archive-dir",
        "old",
    ];
    let plan = json(&[&retain[..], &["--dry-run"]].concat());
    assert!(plan["to"].as_u64().unwrap() >= 1, "{plan}");
    assert!(!mesh.path("old").exists());
    let done = json(&retain);
    assert!(done["payloads_dropped"].as_u64().unwrap() >= 1, "{done}");
    let archives = json(&["ledger", "archives"]);
    let file = archives["archives"][0]["path"].as_str().unwrap().to_owned();
    assert_eq!(archives["archives"][0]["made_by"], "root");

    let alone = json(&["verify", "--export", &file, "--key", keys.trim()]);
    assert_eq!(
        (&alone["verified"], &alone["archived"]),
        (&Value::Bool(true), &0.into())
    );
    assert!(json(&["verify"])["archived"].as_u64().unwrap() >= 1);
    assert_eq!(json(&["verify", "--archive", "old"])["archived"], 0);
    mesh.wait_until("the audit says it", || {
        let listed = mesh.run(&["events", "--type", "audit.retention", "--json"]);
        stdout(&listed).contains("ledger-000000000001-")
    });
    assert_eq!(
        json(&["verify", "--archive", "old"])["unaudited_archives"],
        0
    );
    // A missing file is a fault, unless the operator says that it is elsewhere.
    std::fs::rename(mesh.path("old"), mesh.path("older")).unwrap();
    let missing = mesh.run(&["verify", "--json"]);
    let found: Value = serde_json::from_str(&stdout(&missing)).unwrap();
    assert_eq!(
        (&found["class"], missing.status.code()),
        (&"files of archives".into(), Some(1)),
        "{found}"
    );
    let name = file.rsplit('/').next().unwrap();
    let known = json(&["verify", "--elsewhere", name]);
    assert!(
        known["unchecked"]["files of archives"].is_string(),
        "{known}"
    );
    assert_eq!(json(&["verify", "--archive", "older"])["archived"], 0);
    let removed = mesh.run(&["verify", "--database", "smesh"]);
    let printed = stderr(&removed);
    assert!(
        !removed.status.success() && printed.contains("no ledger tables"),
        "{printed}"
    );
}

/// The export with the body of its first entry changed.
fn with_another_body(export: &str) -> String {
    let mut lines: Vec<String> = export.lines().map(str::to_owned).collect();
    let mut entry: Value = serde_json::from_str(&lines[1]).unwrap();
    entry["body"] = "AAAA".into();
    lines[1] = entry.to_string();
    lines.join("\n") + "\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_signs_with_a_key_that_was_made_before_it() {
    let mut made = String::new();
    let mesh = with_an_event_of_alice(|mesh| {
        let key = |args: &[&str]| {
            let output = mesh.run(&[&["ledger", "key", "new", "-M", "testbed"], args].concat());
            assert!(output.status.success(), "{}", stderr(&output));
            stdout(&output)
        };
        made = key(&[]);
        assert_ne!(made, key(&[]), "each is random");
        assert!(key(&["--origin", "example.org/l"]).starts_with("PRIVATE+KEY+example.org/l+"));
        let file = mesh.path("data/ledger-checkpoint.key");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &made).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o400)).unwrap();
    })
    .await;
    mesh.wait_until("it is signed", || {
        mesh.run(&["ledger", "checkpoint"]).status.success()
    });
    // Both are `NAME+ID+BASE64`, the private one after a prefix. Base64 may contain a `+`, too.
    let public = stdout(&mesh.run(&["ledger", "key", "show"]));
    let private = made.trim_start_matches("PRIVATE+KEY+");
    let label: Vec<&str> = private.split('+').take(2).collect();
    let label = label.join("+");
    assert!(public.starts_with(&format!("{label}+")), "{public}");
}
