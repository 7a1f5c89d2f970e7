//! What changes without a restart: the log filter, by the API and by `mesh.toml`.

use std::path::Path;

use mesh_testkit::{wait_until, write_private};
use serde_json::json;

use crate::support::{DEADLINE, Server, read};

const TOKEN: &str = "a token of enough characters";

fn change(file: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(file, text.replace(from, to)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_configuration_is_reported_and_a_bad_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    write_private(&token, TOKEN);
    let server = Server::start(
        &format!("token_file = {token:?}\n[mesh.telemetry]\nlog_filter = 'info'\n"),
        "",
    )
    .await;
    let url = format!("http://{}/v1/log-filter", server.address());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let filter = async || read(http.get(&url).bearer_auth(TOKEN)).await.2["filter"].clone();
    let set = async |filter: &str| {
        let body = json!({ "filter": filter });
        read(http.put(&url).bearer_auth(TOKEN).json(&body)).await
    };
    // Other tests share the process's filter.
    let before = filter().await;
    let (status, _, answer) = set("info,mesh_runtime=debug").await;
    assert_eq!((status, &answer["former"]), (200, &before), "{answer}");
    assert_eq!(filter().await, answer["filter"]);
    let (status, _, problem) = set("info,=nonsense=").await;
    assert_eq!(status, 400, "{problem}");
    assert_eq!(read(http.get(&url)).await.0, 401);

    let note = || {
        server
            .health
            .notes()
            .remove("configuration")
            .unwrap_or_default()
    };
    let file = server.path("mesh.toml");
    change(&file, "log_filter = 'info'", "log_filter = 'warn'");
    wait_until("the file's filter", DEADLINE, async || {
        filter().await == "warn"
    })
    .await;
    assert_eq!(note(), "");
    change(&file, "log_filter = 'warn'", "log_filtre = 'error'");
    wait_until("the fault is noted", DEADLINE, async || {
        note().contains("log_filtre") && note().contains("former configuration")
    })
    .await;
    assert_eq!(filter().await, "warn");
    change(
        &file,
        "log_filtre = 'error'",
        "log_filter = 'error'\nsample_ratio = 0.5",
    );
    wait_until("the filter", DEADLINE, async || filter().await == "error").await;
    wait_until("the other key", DEADLINE, async || {
        note().contains("at a restart: mesh.telemetry.sample_ratio")
    })
    .await;
}
