//! The program alone, with a damaged file.

use mesh_testkit::{NatsServer, assert_corruption_reported, write_private};

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_reported_with_a_remedy() {
    let nats = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"c\"\ndata_dir = {:?}\n[mesh.nats]\nurl = {:?}\n",
        folder.path(),
        nats.url()
    );
    write_private(&config, text);
    let file = folder.path().join("cost-engine.db");
    assert_corruption_reported(
        env!("CARGO_BIN_EXE_cost-engine"),
        &config,
        &file,
        "smesh recover cost-engine",
    )
    .await;
}
