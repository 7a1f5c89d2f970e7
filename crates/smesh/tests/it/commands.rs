//! Commands that need no cluster: help, prices, verification, hooks.

use std::fs;

use crate::mesh::{Mesh, stderr, stdout};

#[test]
fn the_help_teaches() {
    let mesh = Mesh::init();
    let mut text = stdout(&mesh.run(&["--help"]));
    for command in ["events", "wait", "cost", "up", "verify"] {
        text.push_str(&format!("\n==> smesh {command} --help\n"));
        text.push_str(&stdout(&mesh.run(&[command, "--help"])));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn cost_vectors_are_checked() {
    let mesh = Mesh::init();
    let vectors = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../services/cost-engine/tests/data/cost_vectors.json"
    );
    let good = mesh.run(&["price", "check", vectors]);
    assert!(
        good.status.success() && stdout(&good).contains("0 figures differ"),
        "{good:?}"
    );
    fs::write(mesh.path("bad.json"), "{}").unwrap();
    let bad = mesh.run(&["price", "check", "bad.json"]);
    assert!(
        !bad.status.success() && stderr(&bad).contains("bad.json"),
        "{bad:?}"
    );
}

#[test]
fn a_ledger_is_verified_and_a_missing_one_is_named() {
    let mut mesh = Mesh::started();
    mesh.end("-TERM");
    let good = mesh.run(&["verify", "--json"]);
    assert!(
        good.status.success() && stdout(&good).contains("\"verified\":true"),
        "{good:?}"
    );
    let absent = mesh.run(&["verify", "--database", "absent.db"]);
    assert!(
        !absent.status.success() && stderr(&absent).contains("absent.db"),
        "{absent:?}"
    );
}

#[test]
fn hook_scripts_keep_the_sites_own_programs() {
    let mesh = Mesh::init();
    let conf = fs::read_to_string(mesh.path("slurm.conf")).unwrap();
    fs::write(
        mesh.path("slurm.conf"),
        conf + "PrologSlurmctld=/site/prolog\n",
    )
    .unwrap();
    let printed = stdout(&mesh.run(&["hooks", "print", "--slurm-conf", "slurm.conf"]));
    assert!(
        printed.contains("--hook PrologSlurmctld --chain /site/prolog")
            && printed.contains("JobCompType=jobcomp/script"),
        "{printed}"
    );
    let installed = mesh.run(&[
        "hooks",
        "install",
        "hooks",
        "--slurm-conf",
        "slurm.conf",
        "--program",
        "/bin/echo",
    ]);
    assert!(installed.status.success(), "{installed:?}");
    let said = std::process::Command::new(mesh.path("hooks/epilog-slurmctld"))
        .arg("a b")
        .output()
        .unwrap();
    let hook_config = mesh.path("data/hook.toml");
    assert_eq!(
        stdout(&said),
        format!(
            "--config {} --hook EpilogSlurmctld -- a b\n",
            hook_config.display()
        )
    );
}
