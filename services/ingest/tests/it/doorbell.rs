//! Doorbells: handled at once, but never trusted. The poll interval is so long here that only doorbells can be the cause.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use mesh_events::proto::mesh::audit::v1::DeadLetter;
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::{subject, timestamp};
use prost::Message as _;

use crate::cluster::{self, Cluster, NAME};
use crate::mesh::Mesh;

const SLOW: &str = "poll_interval = \"1h\"";

pub async fn ring(mesh: &Mesh, hook: &str, job_id: u32, environment: &[(&str, &str)]) {
    static RINGS: AtomicU32 = AtomicU32::new(0);
    let n = RINGS.fetch_add(1, Ordering::Relaxed);
    let doorbell = Doorbell {
        id: format!("{hook}-{job_id}-{n}"),
        hook: hook.to_owned(),
        cluster: NAME.to_owned(),
        job_id,
        called_at: Some(timestamp(chrono::Utc::now())),
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..Doorbell::default()
    };
    mesh.bus
        .publish_raw(
            subject::doorbell(NAME, hook),
            &doorbell.id,
            doorbell.encode_to_vec(),
        )
        .await
        .unwrap();
}

async fn submit_time(cluster: &Cluster, job: u32) -> String {
    cluster
        .run(
            "root",
            &[
                "env",
                "SLURM_TIME_FORMAT=%s",
                "squeue",
                "-h",
                "-t",
                "all",
                "-o",
                "%V",
                "-j",
                &job.to_string(),
            ],
        )
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doorbell_makes_ingest_look_at_the_job_now() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    let started = mesh.last(job, "job.started");
    assert_eq!(started.source_detail, "PrologSlurmctld");
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started cancelled").await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_without_an_id_makes_ingest_poll_now() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&["--hold"], "true").await;
    ring(&mesh, "JobSubmit", 0, &[]).await;
    mesh.wait_history(job, "submitted held").await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_contradicted_by_the_controller_is_ignored() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    let (id, submit) = (job.to_string(), submit_time(cluster, job).await);
    let forged = [
        ("JOBID", id.as_str()),
        ("JOBSTATE", "FAILED"),
        ("SUBMIT", &submit),
        ("START", &submit),
        ("END", &submit),
        ("NODES", "n1"),
    ];
    ring(&mesh, "JobComp", job, &forged).await;
    mesh.wait_history(job, "submitted started").await;
    cluster.run("alice", &["scancel", &id]).await;
    cluster.wait_state(job, "CANCELLED").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started cancelled").await;
    ingest.stop().await;
}

/// What jobcomp reports of a job, without its id.
pub const TIMED_OUT: [(&str, &str); 8] = [
    ("JOBID", "66000001"),
    ("JOBSTATE", "TIMEOUT"),
    ("SUBMIT", "1763760000"),
    ("START", "1763760010"),
    ("END", "1763760070"),
    ("NODES", "n1"),
    ("USERNAME", "bob"),
    ("PARTITION", "cpu"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_job_known_only_from_its_hook_is_published_as_inferred() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = format!("{SLOW}\naccounting = false");
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    ring(&mesh, "JobComp", 66_000_001, &TIMED_OUT).await;
    mesh.wait_history(66_000_001, "submitted started timeout")
        .await;
    for event in mesh.of_job(66_000_001) {
        assert_eq!(
            event.confidence,
            i32::from(mesh_events::proto::mesh::event::v1::Confidence::Inferred as u8),
            "{}",
            event.r#type
        );
        assert!(event.late);
    }
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_job_that_no_record_knows_is_parked() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let mut letters = client.subscribe("mesh.dead.ingest").await.unwrap();
    client.flush().await.unwrap();
    ring(&mesh, "JobComp", 66_000_001, &TIMED_OUT).await;
    let letter = tokio::time::timeout(Duration::from_secs(180), letters.next())
        .await
        .expect("a dead letter")
        .unwrap();
    let letter = DeadLetter::decode(letter.payload).unwrap();
    assert!(
        letter.reason.contains("neither slurmctld nor accounting"),
        "{}",
        letter.reason
    );
    assert!(mesh.of_job(66_000_001).is_empty());
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doorbells_that_are_none_are_parked_and_nothing_else_suffers() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    mesh.bus
        .publish_raw(
            subject::doorbell(NAME, "JobComp"),
            "garbage",
            vec![0xff; 40],
        )
        .await
        .unwrap();
    ring(&mesh, "PrologSlurmctld", 0, &[]).await;
    ring(&mesh, "PrologSlurmctld", 66_000_002, &[]).await;
    ring(&mesh, "JobComp", 66_000_003, &[("JOBSTATE", "odd")]).await;
    let job = cluster.sbatch(&[], "true").await;
    cluster.wait_state(job, "COMPLETED").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started completed").await;
    assert!(mesh.of_job(66_000_002).is_empty() && mesh.of_job(66_000_003).is_empty());
    ingest.stop().await;
}
