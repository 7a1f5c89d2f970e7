//! `smesh init --kubernetes`. What it writes is rendered by `make deploy-check`, which has Helm.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use mesh_testkit::{nats_server, write_private};
use smesh::services::SERVICES;

use crate::mesh::{stderr, stdout};

const SLURMRESTD: [&str; 2] = ["--slurmrestd", "http://slurm-restapi.slurm:6820"];

fn init(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smesh"));
    command
        .args(["init", "--kubernetes", "-M", "testbed"])
        .args(args)
        .current_dir(folder)
        .env_remove("SLURM_CONF")
        .env_remove("MESH_CONFIG");
    command.output().unwrap()
}

/// Modes of all files below a folder, by name.
fn modes(folder: &Path) -> Vec<(String, u32)> {
    let mut modes = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            modes.extend(self::modes(&entry.path()));
        } else {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            modes.push((entry.file_name().into_string().unwrap(), mode));
        }
    }
    modes
}

#[test]
fn the_secrets_of_every_role_are_written_once_and_only_for_their_owner() {
    let folder = tempfile::tempdir().unwrap();
    write_private(&folder.path().join("slurm.jwt"), "SLURM_JWT=token\n");
    let options = ["--slurm-token-file", "slurm.jwt", "--postgres", "db:5433"];
    let output = init(folder.path(), &[&SLURMRESTD[..], &options].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let printed = stdout(&output);
    for next in [
        "kubectl -n mesh create -f slurm-mesh-testbed/secrets.yaml",
        "psql -h db -p 5433 -f slurm-mesh-testbed/databases.sql",
        "helm install first deploy/helm/slurm-mesh -n mesh -f slurm-mesh-testbed/values.yaml",
        "helm test first",
    ] {
        assert!(printed.contains(next), "{next}: {printed}");
    }

    let made = folder.path().join("slurm-mesh-testbed");
    let mode = made.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    for (name, mode) in modes(&made) {
        let expected = if name == "values.yaml" { 0o644 } else { 0o600 };
        assert_eq!(mode, expected, "{name}");
    }
    let secrets = fs::read_to_string(made.join("secrets.yaml")).unwrap();
    let names: BTreeSet<&str> = secrets
        .lines()
        .filter_map(|line| {
            line.strip_prefix("metadata: {name: \"")?
                .strip_suffix("\"}")
        })
        .collect();
    let services = SERVICES.iter().map(|service| service.name());
    for role in services.chain(["admin"]) {
        assert!(
            names.contains(&*format!("slurm-mesh-nats-{role}")),
            "{names:?}"
        );
        let seed = fs::read_to_string(made.join(format!("nats/{role}.seed"))).unwrap();
        assert!(secrets.contains(seed.trim()), "{role}");
    }
    // Roles that the chart has no pods for.
    assert!(!names.contains("slurm-mesh-nats-reader") && !names.contains("slurm-mesh-nats-hook"));
    assert!(secrets.contains("SLURM_JWT=token"), "{secrets}");
    // The role that the ledger works with owns nothing.
    let sql = fs::read_to_string(made.join("databases.sql")).unwrap();
    assert!(
        sql.contains("CREATE DATABASE ledger OWNER ledger_owner"),
        "{sql}"
    );
    let password = sql.split("ledger_append LOGIN PASSWORD '").nth(1).unwrap();
    let password = password.split('\'').next().unwrap();
    let url = format!("postgres://ledger_append:{password}@db:5433/ledger");
    assert!(secrets.contains(&url), "{secrets}");
    let checked = Command::new(nats_server())
        .args(["-t", "-c"])
        .arg(made.join("nats/nats.conf"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", stderr(&checked));

    let again = init(folder.path(), &SLURMRESTD);
    assert_eq!(again.status.code(), Some(1), "{}", stderr(&again));
    assert!(
        stderr(&again).contains("slurm-mesh-testbed exists"),
        "{}",
        stderr(&again)
    );
    assert_eq!(
        fs::read_to_string(made.join("secrets.yaml")).unwrap(),
        secrets
    );
}

#[test]
fn choices_that_do_not_fit_are_refused_and_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("open.jwt"), "token").unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&[], 64, "--slurmrestd URL is missing"),
        (&["--nats", "3"], 64, "--slurmrestd URL is missing"),
        (&["--slurmrestd", "slurmctld:6820"], 64, "http://slurmrestd"),
        (&["--nats", "2"], 64, "1, 3, chart, or a URL"),
        (
            &[&SLURMRESTD[..], &["--nats-ca", "ca.pem"]].concat(),
            64,
            "--nats-ca is for",
        ),
        (
            &[&SLURMRESTD[..], &["--postgres", "me@db"]].concat(),
            64,
            "db.example.org:5432",
        ),
        (
            &[&SLURMRESTD[..], &["--force"]].concat(),
            64,
            "cannot be used with",
        ),
        (
            &[&SLURMRESTD[..], &["--slurm-token-file", "open.jwt"]].concat(),
            1,
            "chmod 600",
        ),
        (
            &[
                "--nats",
                "tls://nats.example.org",
                "--nats-ca",
                "absent.pem",
            ],
            1,
            "absent.pem",
        ),
    ];
    for (options, status, expected) in cases {
        let output = init(folder.path(), options);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{options:?}: {message}");
        assert!(message.contains(expected), "{options:?}: {message}");
        let files = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 1, "{options:?}");
    }
}

#[test]
fn secrets_for_a_store_are_documents_without_a_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let options = [
        "--nats",
        "tls://nats.example.org:4222",
        "--external-secrets",
        "vault",
    ];
    let output = init(
        folder.path(),
        &[&options[..], &["-o", "made", "--json"]].concat(),
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["cluster"], "testbed");
    let next = answer["next"].to_string();
    assert!(
        next.contains("on slurmctld's host") && next.contains("users.conf"),
        "{next}"
    );
    let made = folder.path().join("made");
    assert!(!made.join("secrets.yaml").exists());
    let ledger = fs::read(made.join("secrets/slurm-mesh-nats-ledger.json")).unwrap();
    let ledger: serde_json::Value = serde_json::from_slice(&ledger).unwrap();
    let seed = fs::read_to_string(made.join("nats/ledger.seed")).unwrap();
    assert_eq!(ledger["ledger.seed"], *seed);
    // These run on slurmctld's host, with their seeds from the folder.
    assert!(!made.join("secrets/slurm-mesh-nats-ingest.json").exists());
    assert!(made.join("nats/ingest.seed").exists());
    let values = fs::read_to_string(made.join("values.yaml")).unwrap();
    assert!(values.contains("ingest: {enabled: false}"), "{values}");
    assert!(values.contains("kind: \"SecretStore\""), "{values}");
}
