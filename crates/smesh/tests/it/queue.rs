//! `smesh queue replay` on files and generated traces.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::mesh::{Mesh, stderr, stdout};

#[test]
fn squeue_runs_the_wrapper_of_a_site_and_never_itself() {
    let mesh = Mesh::init();
    let config = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    let bin = mesh.path("bin");
    let wrapper = |text: &str| {
        fs::create_dir_all(&bin).unwrap();
        let program = bin.join("squeue");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let section = format!("[slurm]\nbin_dir = {bin:?}");
    fs::write(
        mesh.path("mesh.toml"),
        config.replacen("[slurm]", &section, 1),
    )
    .unwrap();
    // A program that is not a script, where PATH has it.
    let path = mesh.path("path");
    fs::create_dir(&path).unwrap();
    fs::copy("/bin/echo", path.join("squeue")).unwrap();
    let squeue = || {
        let mut command = mesh.smesh(&["squeue", "--start", "-n", "x"]);
        stdout(&command.env("PATH", &path).output().unwrap())
    };

    wrapper("#!/bin/sh\necho site \"$@\"\n");
    assert_eq!(squeue(), "site --start -n x\n");
    let own = env!("CARGO_BIN_EXE_smesh");
    wrapper(&format!("#!/bin/sh\nexec {own} squeue \"$@\"\n"));
    assert_eq!(squeue(), "--start -n x\n");
}

#[test]
fn a_generated_trace_is_replayed_the_same_way_again() {
    let mesh = Mesh::init();
    let replay = |output: &str| {
        let answer = mesh.run(&[
            "--json",
            "queue",
            "replay",
            "stationary",
            "--jobs",
            "2000",
            "--every",
            "3h",
            "--output",
            output,
        ]);
        let report: Value = serde_json::from_slice(&answer.stdout).unwrap();
        (report, fs::read_to_string(mesh.path(output)).unwrap())
    };
    let (report, rows) = replay("one.csv");
    assert_eq!(report, replay("other.csv").0);
    assert_eq!(rows, fs::read_to_string(mesh.path("other.csv")).unwrap());
    let header =
        "job,asked_at,kind,waited_s,plan_s,p50_s,p90_s,class,method,n_calibration,started_at";
    assert_eq!(rows.lines().next(), Some(header));
    assert_eq!(
        rows.lines().count() as u64 - 1,
        report["estimates"].as_u64().unwrap()
    );
    let goals = report["goals"].as_array().unwrap();
    let prefix = goals.iter().find(|goal| goal["id"] == "G8").unwrap();
    assert_eq!(prefix["met"], true);
}

#[test]
fn a_trace_that_cannot_be_read_is_named_with_its_line() {
    let mesh = Mesh::init();
    fs::write(mesh.path("bad.swf"), "; MaxProcs: 4\n1 2 3\n").unwrap();
    let bad = mesh.run(&["queue", "replay", "bad.swf"]);
    assert!(
        !bad.status.success() && stderr(&bad).contains("bad.swf: line 2: 18 columns expected"),
        "{bad:?}"
    );
    fs::write(
        mesh.path("size.swf"),
        "1 0 5 60 1 -1 -1 1 60 -1 1 1 1 -1 1 1 -1 -1\n",
    )
    .unwrap();
    let bad = mesh.run(&["queue", "replay", "size.swf"]);
    assert!(stderr(&bad).contains("MaxProcs"), "{bad:?}");
    let good = mesh.run(&["queue", "replay", "size.swf", "--cpus", "4"]);
    assert!(stdout(&good).starts_with("1 jobs"), "{good:?}");
}
