//! Jobs of scrontab: each run is another attempt of the same id, however the previous one ended.

use std::time::Duration;

use mesh_testkit::wait_for;

use crate::cluster::Cluster;
use crate::mesh::{Mesh, payload};

/// Slurm's cron counts minutes, and the test waits for two runs of each job.
const PATIENCE: Duration = Duration::from_secs(240);
const TABLE: &str = "#SCRON --mem=10 --output=/dev/null --job-name=good
* * * * * sleep 1
#SCRON --mem=10 --output=/dev/null --job-name=bad
* * * * * exit 3
";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "Debian 12's Slurm 22.05 has no scrontab"]
async fn each_run_of_a_scrontab_job_continues_the_one_before() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), "ScronParameters=enable\n").unwrap();
    let knobs = [
        ("EXTRA_CONF", conf.path().to_str().unwrap()),
        ("NODES", "2"),
        ("GPU_NODES", "0"),
    ];
    let cluster = Cluster::up(&knobs).await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"\nusage_delay = \"1s\"";
    let ingest = mesh.ingest(&cluster, settings).await.ready().await;

    let table = cluster.folder.join("table");
    std::fs::write(&table, TABLE).unwrap();
    let table = table.to_str().unwrap();
    cluster.run("alice", &["scrontab", table]).await;
    let job = async |name: &str| -> u32 {
        let ask = ["squeue", "-h", "-o", "%A", "-n", name];
        cluster.run("alice", &ask).await.parse().unwrap()
    };
    let jobs = [
        (job("good").await, "completed"),
        (job("bad").await, "failed"),
    ];
    for (job, own) in jobs {
        wait_for("two runs are over", PATIENCE, async || {
            (mesh.history(job).matches(" | ").count() >= 2).then_some(())
        })
        .await;
        // Accounting reports each end as a requeue (seen on 24.11). The controller shows the run's own end while its epilogs run.
        let is_end = |event_name: &str| event_name == own || event_name == "requeued";
        let history = mesh.history(job);
        let runs: Vec<&str> = history.split(" | ").collect();
        for run in &runs[..2] {
            let end = run.strip_prefix("submitted started ");
            assert!(end.is_some_and(is_end), "{history}");
        }
        let events = mesh.of_job(job);
        let continued: Vec<_> = events
            .iter()
            .filter(|event| event.r#type == "job.submitted")
            .filter_map(|event| payload(event).continues.as_ref())
            .collect();
        assert!(continued.len() >= 2, "{history}");
        for before in continued {
            let end = events.iter().find(|end| {
                end.entity_key() == before.run
                    && end.r#type.trim_start_matches("job.") == before.cause
            });
            assert!(end.is_some(), "{before:?} in {history}");
        }
    }
    // A user who removes the table cancels the waiting jobs.
    cluster.run("alice", &["scrontab", "-r"]).await;
    for (job, _) in jobs {
        wait_for("the waiting run is cancelled", PATIENCE, async || {
            mesh.history(job)
                .ends_with("| submitted cancelled")
                .then_some(())
        })
        .await;
        let runs = mesh.history(job).matches(" | ").count();
        let id = job.to_string();
        let rows = ["sacct", "-D", "-X", "-n", "-P", "-o", "State", "-j", &id];
        wait_for("accounting has as many runs", PATIENCE, async || {
            let rows = cluster.run("root", &rows).await;
            (rows.lines().count() == runs + 1).then_some(())
        })
        .await;
        wait_for("what each run used", PATIENCE, async || {
            (mesh.updates_of(job).len() == runs).then_some(())
        })
        .await;
    }
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
