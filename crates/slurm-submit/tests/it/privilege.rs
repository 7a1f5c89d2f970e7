//! For whom the program submits, and with which privilege.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cluster::{Cluster, PROGRAM, shared};

/// Runs the program with a request that lists the jobs of this user, and returns its answer and error output.
fn ask(mut command: Command, owner: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let request =
        format!(r#"{{"owner":"{owner}","verb":{{"find":"smesh:1:9fIHDdBNcRAt-RViGtjebQ"}}}}"#);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(request.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    text(output.stdout) + &text(output.stderr)
}

fn program(cluster: &Cluster, before: &[&str], config: Option<&Path>) -> Command {
    let program = cluster.program_dir.join("trigger-submitter");
    let mut words: Vec<&str> = before.to_vec();
    words.push(match before.is_empty() {
        true => program.to_str().unwrap(),
        false => PROGRAM,
    });
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    // None of it may have an effect.
    command
        .env("SBATCH_PARTITION", "none")
        .env("SLURM_CONF", "/none")
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
    command
}

const FOUND_NOTHING: &str = "{\"found\":[]}\n";

#[tokio::test(flavor = "multi_thread")]
async fn root_submits_for_listed_users_only() {
    let (cluster, _guard) = shared().await;
    let config = Some(cluster.config.as_path());
    assert_eq!(ask(program(cluster, &[], config), "alice"), FOUND_NOTHING);
    for (owner, reason) in [
        ("root", "no jobs are submitted for root"),
        ("daemon", "below min_uid"),
        ("nobody", "not in users"),
        ("no-such-user", "no such user"),
        ("alice\\u0000root", "no such user"),
    ] {
        let answer = ask(program(cluster, &[], config), owner);
        assert!(
            answer.contains("refused") && answer.contains(reason),
            "{owner}: {answer}"
        );
    }
    // A configuration that others may change gives nobody anything.
    let open = cluster.slurm.dir().join("open.toml");
    std::fs::copy(&cluster.config, &open).unwrap();
    std::os::unix::fs::chown(&open, Some(65534), None).unwrap();
    let answer = ask(program(cluster, &[], Some(&open)), "alice");
    assert!(
        answer.contains("others than root may change it"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_a_user_needs_no_privilege_and_has_none() {
    let (cluster, _guard) = shared().await;
    if !cluster.slurm.fact("root").is_empty() {
        // Only root enters the other root.
        return;
    }
    let bob = ["setpriv", "--reuid=bob", "--regid=bob", "--init-groups"];
    let config = Some(cluster.config.as_path());
    assert_eq!(ask(program(cluster, &bob, config), "bob"), FOUND_NOTHING);
    let answer = ask(program(cluster, &bob, config), "alice");
    assert!(answer.contains("may not become this one"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_capabilities_reads_only_the_configuration_in_etc() {
    let (cluster, _guard) = shared().await;
    if !cluster.slurm.fact("root").is_empty() {
        return;
    }
    let capable = [
        "setpriv",
        "--reuid=daemon",
        "--regid=daemon",
        "--clear-groups",
        "--inh-caps=+setuid,+setgid",
        "--ambient-caps=+setuid,+setgid",
    ];
    let answer = ask(program(cluster, &capable, Some(&cluster.config)), "alice");
    assert!(answer.contains("--config is for root only"), "{answer}");
    // A copy of /etc with the configuration, in a mount namespace of its own.
    let etc = cluster.slurm.dir().join("etc-copy");
    let copied = Command::new("cp").args(["-a", "/etc"]).arg(&etc).status();
    assert!(copied.unwrap().success());
    std::fs::create_dir_all(etc.join("slurm-mesh")).unwrap();
    std::fs::copy(
        &cluster.config,
        etc.join("slurm-mesh/trigger-submitter.toml"),
    )
    .unwrap();
    let mount = format!("mount --bind {} /etc && exec \"$@\"", etc.display());
    let inside = [
        &["unshare", "--mount", "sh", "-c", &mount, "sh"][..],
        &capable,
    ]
    .concat();
    assert_eq!(ask(program(cluster, &inside, None), "alice"), FOUND_NOTHING);
    let answer = ask(program(cluster, &inside, None), "nobody");
    assert!(answer.contains("not in users"), "{answer}");
}
