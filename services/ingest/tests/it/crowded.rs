//! Clients without a token hold every connection, and ingest can still run Slurm's commands.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use mesh_testkit::{Port, wait_until, write_private};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Command;

use crate::cluster;
use crate::mesh::{DEADLINE, Mesh};

#[tokio::test(flavor = "multi_thread")]
async fn foreign_connections_leave_room_for_slurms_commands() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let port = Port::take();
    let address = port.address();
    let settings = format!(
        "poll_interval = \"500ms\"\n[mesh.api]\nlisten = \"{address}\"\ntoken_file = \"token\""
    );
    let config = mesh.config_of_process(cluster, &settings);
    write_private(
        &config.with_file_name("token"),
        "a token of enough characters",
    );
    let mut ingest = Command::new("prlimit");
    ingest
        .arg("--nofile=512:512")
        .arg(env!("CARGO_BIN_EXE_ingest"))
        .arg("--config")
        .arg(&config)
        .kill_on_drop(true);
    let mut ingest = ingest.spawn().unwrap();
    wait_until("it listens", DEADLINE, async || {
        TcpStream::connect(address).await.is_ok()
    })
    .await;
    mesh.wait_first_poll().await;
    let mut held = Vec::new();
    for client in 0..520_u32 {
        let from = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + client % 5);
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::V4(from), 0)).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        // Connections beyond the limit are closed at once.
        drop(stream.write_all(b"GET /v1/whoami HTTP/1.1\r\nx: ").await);
        held.push(stream);
    }
    let job = cluster.sbatch(&[], "true").await;
    mesh.wait_history(job, "submitted started completed").await;
    assert!(ingest.try_wait().unwrap().is_none());
    drop(held);
    ingest.kill().await.unwrap();
}
