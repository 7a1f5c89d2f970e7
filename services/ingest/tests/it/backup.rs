//! slurmctld dies and its backup takes over, then the primary comes back: jobs continue, and are published as if nothing had happened.

use std::time::Duration;

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;

use crate::cluster::Cluster;
use crate::mesh::Mesh;

/// The backup waits for `SlurmctldTimeout` (5 s here), then reads the state. On a busy machine both take longer.
const PATIENCE: Duration = Duration::from_secs(180);

async fn answers(cluster: &Cluster) {
    wait_for("a slurmctld answers", PATIENCE, async || {
        cluster.attempt("root", &["squeue", "-h"]).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_takes_over_publishes_the_same_facts() {
    let knobs = [("BACKUP", "1"), ("NODES", "2"), ("GPU_NODES", "0")];
    let cluster = &Cluster::up(&knobs).await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;

    let held = cluster.sbatch(&["--hold"], "true").await;
    // Ends on request, while no slurmctld is up.
    let published = cluster.folder.join("told-to-end");
    let script = format!("until [ -e {} ]; do sleep 0.1; done", published.display());
    let ends = cluster.sbatch(&[], &script).await;
    let after = format!("--dependency=afterany:{ends}");
    let waits = cluster.sbatch(&[&after], "exit 3").await;
    let runs = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(held, "submitted held").await;
    mesh.wait_history(waits, "submitted").await;
    mesh.wait_history(runs, "submitted started").await;
    mesh.wait_history(ends, "submitted started").await;
    cluster.saved(held).await;

    cluster.ctl("kill", "slurmctld").await;
    std::fs::write(&published, "").unwrap();
    answers(cluster).await;
    mesh.wait_history(ends, "submitted started completed").await;
    mesh.wait_history(waits, "submitted started failed").await;
    let new = cluster.sbatch(&[], "true").await;
    mesh.wait_history(new, "submitted started completed").await;
    let id = held.to_string();
    cluster.run("root", &["scontrol", "release", &id]).await;
    mesh.wait_history(held, "submitted held released started completed")
        .await;

    // The primary takes control back.
    cluster.ctl("start", "slurmctld").await;
    answers(cluster).await;
    cluster.run("alice", &["scancel", &runs.to_string()]).await;
    mesh.wait_history(runs, "submitted started cancelled").await;

    // Accounting has each of them once, with the published end.
    let ids = [held, ends, waits, runs, new];
    let list = ids.map(|id| id.to_string()).join(",");
    let rows = [
        "sacct",
        "-D",
        "-X",
        "-n",
        "-P",
        "-o",
        "JobIDRaw,State",
        "-j",
        &list,
    ];
    wait_for("accounting has every end", PATIENCE, async || {
        let rows = cluster.run("root", &rows).await;
        let published = ids.map(|id| {
            let end = mesh
                .history(id)
                .split(' ')
                .next_back()
                .map(str::to_uppercase);
            format!("{id}|{}", end.unwrap_or_default())
        });
        // `CANCELLED by 20001`
        let mut rows: Vec<_> = rows
            .lines()
            .map(|row| row.split(' ').next().unwrap_or_default())
            .collect();
        rows.sort_unstable();
        (rows == published).then_some(())
    })
    .await;
    mesh.assert_no_duplicates();

    // Outages of slurmctld, if noticed at all, alternate between down and up.
    let sources = wait_for("slurmctld is there again", PATIENCE, async || {
        let of_slurmctld = |event: &mesh_events::Event| match &event.payload {
            Some(Payload::Capture(capture))
                if capture.source == "slurmctld" && event.r#type.starts_with("capture.source_") =>
            {
                Some(event.r#type.clone())
            }
            _ => None,
        };
        let published: Vec<_> = mesh.events().iter().filter_map(of_slurmctld).collect();
        published.len().is_multiple_of(2).then_some(published)
    })
    .await;
    println!("told of slurmctld: {sources:?}");
    for absence in sources.chunks(2) {
        assert_eq!(absence, ["capture.source_down", "capture.source_up"]);
    }
    ingest.stop().await;
}
