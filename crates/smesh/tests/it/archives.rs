//! `smesh verify` where archive files must not be read, and where the retention of an earlier
//! version removed audit entries about archives.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use mesh_events::EventType;
use mesh_testkit::{Postgres, fixtures};
use serde_json::Value;

use crate::mesh::{Mesh, stderr, stdout};
use crate::others::publish;
use crate::tampered::Victim;

const CLASS: &str = "audit entries about archives and keys";

/// Appends an event of a job and archives everything that is signed.
async fn archive(victim: &Victim, job: u32) {
    let event = fixtures::job_event(EventType::JobStarted, fixtures::job(job));
    publish(&victim.mesh, &event).await;
    victim.mesh.wait_until("the ledger has the event", || {
        let found = victim.mesh.run(&["events", "--job", &job.to_string()]);
        stdout(&found).contains("job.started")
    });
    victim.is_signed(1);
    let retain = [
        "ledger",
        "retain",
        "--before",
        "1ms",
        "--archive-dir",
        "old",
    ];
    let retained = victim.mesh.run(&retain);
    assert!(retained.status.success(), "{}", stderr(&retained));
}

/// Runs `smesh` as root without its right to read everything.
fn without_override(mesh: &Mesh, args: &[&str]) -> Output {
    let smesh = mesh.smesh(args);
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set=-dac_override,-dac_read_search", "--"])
        .arg(smesh.get_program())
        .args(smesh.get_args());
    if let Some(folder) = smesh.get_current_dir() {
        command.current_dir(folder);
    }
    for (name, value) in smesh.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.output().unwrap()
}

/// The only answer on standard output.
fn answer(output: &Output) -> Value {
    let text = stdout(output);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{}", stderr(output)))
}

fn backup(mesh: &Mesh) -> String {
    let made = mesh.run(&["backup", "--databases", "--json", "backup"]);
    answer(&made)["file"].as_str().unwrap().to_owned()
}

async fn an_archive_that_must_not_be_read_is_not_a_missing_one(url: Option<String>) {
    let victim = Victim::start(url);
    archive(&victim, 1).await;
    let mesh = &victim.mesh;
    let folder = mesh.path("old");
    let file = backup(mesh);
    let mut commands = vec![vec!["verify"]];
    // A dump of PostgreSQL is not verified.
    if victim.url.is_none() {
        commands.push(vec!["backup", "verify", &file]);
    }
    set_permissions(&folder, Permissions::from_mode(0o000)).unwrap();
    for command in &commands {
        let denied = without_override(mesh, &[&command[..], &["--json"]].concat());
        let found = answer(&denied);
        assert_eq!(
            (&found["verified"], denied.status.code()),
            (&false.into(), Some(77)),
            "{found}"
        );
        let path = found["unreadable"].as_str().unwrap_or_default();
        assert!(path.contains("/old/ledger-000000000001-"), "{found}");
        let said = stderr(&without_override(mesh, command));
        assert!(
            said.contains(path) && said.contains("as a user who may read it"),
            "{said}"
        );
    }
    set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    for command in &commands {
        let output = without_override(mesh, command);
        assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let (found, status) = victim.verify(&[]);
    assert_eq!(
        (&found["class"], status),
        (&"files of archives".into(), Some(1)),
        "{found}"
    );
    assert!(found["unreadable"].is_null(), "{found}");
}

async fn what_an_earlier_version_removed_must_be_named(url: Option<String>) {
    let victim = Victim::start(url);
    let mesh = &victim.mesh;
    for archives in 1..=2 {
        archive(&victim, archives).await;
        mesh.wait_until("the audit has the archive", || {
            let listed = mesh.run(&["events", "--type", "audit.retention", "--json"]);
            stdout(&listed).matches(".ndjson.gz").count() >= archives as usize
        });
    }
    // As an earlier version left it: no signature, and no payload in either range.
    let all = "seq <= (SELECT last_seq FROM archives WHERE number = 2)";
    let earlier = format!(
        "UPDATE archives SET note = NULL, ids = NULL WHERE number = 1;
         DELETE FROM event_nodes WHERE {all}; DELETE FROM event_index WHERE {all};
         DELETE FROM payloads WHERE {all};"
    );
    victim.tamper(&earlier).await;
    let (found, status) = victim.verify(&[]);
    assert_eq!(
        (&found["class"], status),
        (&CLASS.into(), Some(1)),
        "{found}"
    );
    let reason = found["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("(--removed SEQ)"), "{found}");
    let removed = found["first_bad_sequence"].to_string();
    let (still, status) = victim.verify(&["--removed", "1"]);
    assert_eq!(
        (&still["first_bad_sequence"], status),
        (&found["first_bad_sequence"], Some(1)),
        "{still}"
    );
    let (named, status) = victim.verify(&["--removed", &removed]);
    let said = format!("the content of {removed} was removed");
    let reports = |unchecked: &Value| {
        let unchecked = unchecked[CLASS].as_str().unwrap_or_default();
        assert!(unchecked.starts_with(&said), "{unchecked}");
    };
    assert_eq!(status, Some(0), "{named}");
    reports(&named["unchecked"]);
    let printed = stdout(&mesh.run(&["verify", "--removed", &removed]));
    assert!(
        printed.contains(&format!("{CLASS}: not checked: {said}")),
        "{printed}"
    );
    if victim.url.is_none() {
        let file = backup(mesh);
        let verified = mesh.run(&["backup", "verify", &file, "--json"]);
        reports(&answer(&verified)["ledger_unchecked"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_must_not_be_read_is_not_a_missing_one_on_sqlite() {
    an_archive_that_must_not_be_read_is_not_a_missing_one(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_must_not_be_read_is_not_a_missing_one_on_postgres() {
    let url = Postgres::shared().await.create_database();
    an_archive_that_must_not_be_read_is_not_a_missing_one(Some(url)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_version_removed_must_be_named_on_sqlite() {
    what_an_earlier_version_removed_must_be_named(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_version_removed_must_be_named_on_postgres() {
    let url = Postgres::shared().await.create_database();
    what_an_earlier_version_removed_must_be_named(Some(url)).await;
}
