//! A configuration fault is reported in one line that names it, with a non-zero exit status.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use crate::mesh::{Mesh, stderr, stdout};

/// `smesh up` with an edited mesh.toml must end with this status and a line that contains the text.
fn refused(edit: impl Fn(String) -> String, code: i32, expected: &str) {
    let mesh = Mesh::init();
    let text = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    fs::write(mesh.path("mesh.toml"), edit(text)).unwrap();
    let output = mesh.run(&["up"]);
    let stderr = stderr(&output);
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|line| line.starts_with("error:"))
        .collect();
    assert_eq!(output.status.code(), Some(code), "{expected}: {stderr}");
    assert!(
        errors.len() == 1 && errors[0].contains(expected),
        "{expected}: {stderr}"
    );
}

#[test]
fn an_unknown_key_is_named() {
    refused(|text| text.replace("cluster =", "clutser ="), 78, "clutser");
    refused(|text| text + "\n[ledger]\nbatch = 3\n", 1, "batch");
}

#[test]
fn every_old_key_is_named_with_its_new_name_in_one_line() {
    let old = "\n[ledger]\nmax_story = 9\n[ledger.replay]\nkeep = \"1h\"\n[webhook-dispatcher]\nfirst_wait = \"1s\"\n\
               [[webhook-dispatcher.endpoints]]\nname = \"a\"\ncircuit_after = 3\n";
    let expected = "[ledger] max_story: renamed to max_history_events; [ledger] replay.keep: renamed to replay.retention; \
                    [webhook-dispatcher] first_wait: renamed to retry.initial_interval; [webhook-dispatcher] \
                    endpoints[0].circuit_after: renamed to endpoints[0].circuit_breaker.failure_threshold";
    refused(|text| text + old, 1, expected);
}

#[test]
fn a_file_that_is_no_toml_is_named() {
    refused(|text| text + "\n[[[", 78, "mesh.toml");
}

#[test]
fn a_broken_price_book_is_named() {
    let mesh = Mesh::init();
    fs::write(mesh.path("price-book.toml"), "currency = 7\n").unwrap();
    let output = mesh.run(&["up"]);
    assert!(
        !output.status.success() && stderr(&output).contains("price-book.toml"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_bad_nats_address_is_named() {
    refused(
        |text| text + "\n[mesh.nats]\nurl = \"nats://:::\"\n",
        1,
        "nats://:::",
    );
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mesh = Mesh::init();
    let output = mesh.run(&["up", "--nats-port", &port]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(&port) && stderr(&output).contains("--nats-port"),
        "{}",
        stderr(&output)
    );
    let token = mesh.path("api.token");
    fs::write(&token, "0123456789abcdef").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let listen = format!(
        "listen = \"127.0.0.1:{port}\"\ntoken_file = \"{}\"\n[slurm]\n",
        mesh.path("api.token").display()
    );
    let text = fs::read_to_string(mesh.path("mesh.toml"))
        .unwrap()
        .replacen("[slurm]\n", &listen, 1);
    fs::write(mesh.path("mesh.toml"), text).unwrap();
    let output = mesh.run(&["up"]);
    assert!(
        !output.status.success() && stderr(&output).contains("mesh.api.listen"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_missing_nats_server_is_reported_with_a_remedy() {
    let mesh = Mesh::init();
    for (program, expected) in [
        ("/nowhere/nats-server", "scripts/nats-server"),
        ("/bin/true", "2.12"),
    ] {
        let output = mesh
            .smesh(&["up"])
            .env("NATS_SERVER_BIN", program)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn a_configuration_that_others_could_have_written_must_be_named() {
    use std::os::unix::fs::PermissionsExt as _;

    let mesh = Mesh::init();
    for (path, mode) in [(mesh.path("mesh.toml"), 0o666), (mesh.path(""), 0o1777)] {
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = mesh.run(&["events"]);
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
        assert!(
            stderr(&refused).contains("--config"),
            "{}",
            stderr(&refused)
        );
        let named = mesh.run(&["--config", "mesh.toml", "events"]);
        assert_eq!(named.status.code(), Some(69), "only the mesh is missing");
        fs::set_permissions(&path, before).unwrap();
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(mesh.path("mesh.toml"), Some(65534), None).unwrap();
        assert_eq!(mesh.run(&["up"]).status.code(), Some(64), "another user's");
    }
}

#[test]
fn a_program_planted_in_the_working_directory_is_not_run() {
    use std::os::unix::fs::PermissionsExt as _;

    let mesh = Mesh::init();
    for place in [".tools/nats/usr/sbin/nats-server", "nats-server"] {
        let planted = mesh.path(place);
        fs::create_dir_all(planted.parent().unwrap()).unwrap();
        fs::write(&planted, "#!/bin/sh\ntouch planted-ran\n").unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // Empty and relative folders in a search path mean the working directory.
    let output = mesh
        .smesh(&["up"])
        .env_remove("NATS_SERVER_BIN")
        .env("PATH", ":.:")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no nats-server found"),
        "{}",
        stderr(&output)
    );
    assert!(!mesh.path("planted-ran").exists());
}

#[test]
fn init_writes_no_secret_and_lets_only_the_owner_write() {
    use std::os::unix::fs::PermissionsExt as _;

    let mesh = Mesh::init();
    let mode = fs::metadata(mesh.path("mesh.toml")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o133, 0, "{mode:?}");
    let text = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    assert!(
        text.contains("url_file = ") && !text.contains("hooks.slack.com"),
        "{text}"
    );
}

#[test]
fn everybody_can_read_what_init_wrote_under_any_umask() {
    let mesh = Mesh::init();
    let init = "umask 077; exec \"$0\" init --slurm-conf slurm.conf -o strict/mesh.toml";
    let output = std::process::Command::new("sh")
        .args(["-c", init, env!("CARGO_BIN_EXE_smesh")])
        .current_dir(mesh.folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    for name in ["mesh.toml", "price-book.toml", "identity.toml"] {
        let file = fs::metadata(mesh.path("strict").join(name)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o644, "{name}");
    }
    let folder = fs::metadata(mesh.path("strict")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o755);
}

#[test]
fn a_dry_run_of_init_prints_the_configuration_and_writes_nothing() {
    let mesh = Mesh::init();
    let written = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    let dry_run = ["init", "--dry-run", "--slurm-conf", "slurm.conf"];
    let output = mesh.run(&[&dry_run[..], &["--data-dir", "data", "-o", "new/mesh.toml"]].concat());
    let printed = stdout(&output);
    assert!(output.status.success(), "{output:?}");
    assert!(printed.starts_with(&written), "{printed}");
    assert!(printed.contains("new/price-book.toml"), "{printed}");
    assert!(!mesh.path("new").exists());
}

#[test]
fn the_configuration_is_checked_without_a_start() {
    let mesh = Mesh::init();
    let good = mesh.run(&["up", "--check-config"]);
    assert!(good.status.success(), "{good:?}");
    assert!(!mesh.path("data").exists(), "it changes nothing");
    let text = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    let token = "[mesh.api]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"absent.token\"\n";
    for (broken, expected) in [
        (text.clone() + "\n[ledger]\nbatch = 3\n", "batch"),
        (text.replace("[mesh.api]\n", token), "absent.token"),
    ] {
        fs::write(mesh.path("mesh.toml"), broken).unwrap();
        let output = mesh.run(&["up", "--check-config"]);
        assert!(
            !output.status.success() && stderr(&output).contains(expected),
            "{expected}: {output:?}"
        );
    }
    fs::write(mesh.path("mesh.toml"), text).unwrap();
    let mut without = mesh.smesh(&["up", "--check-config"]);
    let output = without
        .env("NATS_SERVER_BIN", "/bin/true")
        .output()
        .unwrap();
    assert!(stderr(&output).contains("2.12"), "{output:?}");
}

#[test]
fn init_replaces_nothing_without_force() {
    let mesh = Mesh::init();
    let second = mesh.run(&["init", "--slurm-conf", "slurm.conf"]);
    assert!(
        !second.status.success() && stderr(&second).contains("--force"),
        "{}",
        stderr(&second)
    );
    assert!(
        mesh.run(&["init", "--slurm-conf", "slurm.conf", "--force"])
            .status
            .success()
    );
    let absent = mesh.run(&["init", "--slurm-conf", "absent.conf", "-o", "other.toml"]);
    assert!(
        !absent.status.success() && stderr(&absent).contains("absent.conf"),
        "{}",
        stderr(&absent)
    );
}

#[test]
fn without_a_mesh_commands_say_how_to_start_one() {
    let mesh = Mesh::init();
    let output = mesh.run(&["events"]);
    assert_eq!(output.status.code(), Some(69));
    assert!(stderr(&output).contains("smesh up"), "{}", stderr(&output));
    assert_eq!(
        mesh.run(&["events", "--limit", "no"]).status.code(),
        Some(64)
    );
    assert!(stdout(&mesh.run(&["--help"])).contains("Exit status"));
}
