//! The dispatcher as a process of its own: misconfigured.

use std::process::Stdio;

use crate::dispatcher::command;
use crate::harness::{Mesh, signed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_configuration_is_refused_with_every_fault() {
    let mesh = Mesh::without_dispatcher().await;
    let good = signed("pipeline", "https://example.org/", "");
    let config = mesh.write_config(std::slice::from_ref(&good));
    assert!(
        command(&config)
            .arg("--check-config")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    );

    let config = mesh.write_config(&[
        good,
        signed("chat", "https://10.0.0.1/", "types = [\"job.exploded\"]"),
    ]);
    let output = command(&config).arg("--check-config").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    for part in [
        "mesh.toml",
        "\"chat\": url: 10.0.0.1 may not be reached (private)",
        "\"chat\": types: unknown event type \"job.exploded\"",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
