//! A damaged database: only its service fails and reports what to do, the others continue, and a command recovers the file.

use std::fs;
use std::path::Path;

use mesh_testkit::write_private;

use crate::mesh::{Mesh, stderr, stdout};

/// Page size of SQLite, in bytes.
const PAGE: usize = 4096;
const SERVICES: &[(&str, &str)] = &[
    ("ledger", "ledger.db"),
    ("cost-engine", "cost-engine.db"),
    ("webhook-dispatcher", "webhook-dispatcher.db"),
    ("exporter", "exporter.db"),
    ("workflow-trigger", "workflow-trigger.db"),
];
/// Turns on the services that are off by default.
const ENABLED: &str = "\n[exporter]\nenabled = true\n[[workflow-trigger.rules]]\nname = \"manual\"\nowner = \"alice\"\non = { manual = true }\naction = { cancel = \"{{ data.job }}\" }\n";

/// Overwrites a page, counted from the start or, if negative, from the end.
fn overwrite(path: &Path, page: isize) {
    let mut bytes = fs::read(path).unwrap();
    let pages = bytes.len() / PAGE;
    let page = if page < 0 {
        pages.strict_add_signed(page)
    } else {
        page.unsigned_abs()
    };
    bytes[page * PAGE..(page + 1) * PAGE].fill(0xAA);
    fs::write(path, bytes).unwrap();
}

/// Failed conditions of a service that concern its file or its work.
fn condition_of(mesh: &Mesh, service: &str) -> String {
    ["file", "running"]
        .map(|what| mesh.problem(&format!("{service}.{what}")))
        .join(" ")
}

fn damaged_alone(service: &'static str, file: &str, page: isize) -> Mesh {
    let mut mesh = Mesh::init();
    let config = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    write_private(&mesh.path("mesh.toml"), config + ENABLED);
    mesh.start();
    mesh.end("-TERM");
    overwrite(&mesh.path("data").join(file), page);
    mesh.spawn();
    mesh.wait_until("readiness names the file", || {
        mesh.listens() && condition_of(&mesh, service).contains(file)
    });
    let printed = condition_of(&mesh, service);
    assert!(printed.contains("`smesh up`"), "{printed}");
    for (other, _) in SERVICES.iter().filter(|(name, _)| *name != service) {
        assert_eq!(condition_of(&mesh, other).trim(), "", "{other}");
    }
    mesh.wait_until("those that lead do", || {
        let roles = &mesh.readiness()["roles"];
        roles["ingest"] == "leader" && roles["node-watcher"] == "leader"
    });
    if service != "ledger" {
        mesh.wait_until("the ledger answers", || {
            mesh.run(&["events"]).status.success()
        });
    }
    let doctor = stdout(&mesh.run(&["doctor"]));
    assert!(doctor.contains(file), "{doctor}");
    mesh
}

fn recovers(service: &'static str, file: &str, page: isize) {
    let mut mesh = damaged_alone(service, file, page);
    let running = mesh.run(&["recover", service]);
    assert!(stderr(&running).contains("already uses"), "{running:?}");
    mesh.end("-TERM");
    let recovered = mesh.run(&["recover", service]);
    assert!(recovered.status.success(), "{recovered:?}");
    mesh.start();
    mesh.wait_until("the service works", || {
        condition_of(&mesh, service).trim().is_empty()
    });
    mesh.wait_until("the rest is restored from the bus", || {
        !mesh.path(&format!("data/{file}.recovered")).exists()
    });
    // The recovered file was checked completely.
    let log = fs::read_to_string(mesh.path("up.log")).unwrap();
    let since = log.rfind("nats-server started").unwrap();
    assert!(!log[since..].contains("is damaged"), "{}", &log[since..]);
}

#[test]
fn a_damaged_cost_page_affects_no_other_service_and_is_recovered() {
    for page in [1, -1] {
        recovers("cost-engine", "cost-engine.db", page);
    }
}

#[test]
fn a_damaged_webhook_page_affects_no_other_service_and_is_recovered() {
    for page in [1, -1] {
        recovers("webhook-dispatcher", "webhook-dispatcher.db", page);
    }
}

#[test]
fn a_damaged_counter_page_affects_no_other_service_and_is_recovered() {
    for page in [1, -1] {
        recovers("exporter", "exporter.db", page);
    }
}

#[test]
fn a_damaged_page_of_triggers_affects_no_other_service_and_is_recovered() {
    for page in [1, -1] {
        recovers("workflow-trigger", "workflow-trigger.db", page);
    }
}

#[test]
fn a_damaged_ledger_page_affects_no_other_service_and_is_reported() {
    for page in [1, -1] {
        let mut mesh = damaged_alone("ledger", "ledger.db", page);
        mesh.end("-TERM");
        let refused = mesh.run(&["recover", "ledger"]);
        assert!(!refused.status.success());
        assert!(stderr(&refused).contains("backup"), "{refused:?}");
    }
}
