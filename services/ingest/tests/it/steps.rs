//! Reports of the SPANK plugin become `user.notified` of the job's owner, if Slurm's record supports them. The poll interval is so long here
//! that only the reports themselves can be the cause.

use futures_util::StreamExt as _;
use mesh_events::proto::mesh::audit::v1::DeadLetter;
use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::proto::mesh::hook::v1::{Doorbell, StepReport, TaskEnd};
use mesh_events::{Event, subject, timestamp};
use prost::Message as _;

use crate::cluster::{self, NAME};
use crate::forgotten::{forgetful, wait_all_purged};
use crate::mesh::{DEADLINE, Mesh};
use crate::users::of_user;

const SLOW: &str = "poll_interval = \"1h\"";
const ALICE: u32 = 20_001;

/// The end of a batch step with two tasks, one of which was killed.
fn exit_of(job_id: u32, id: u128) -> Doorbell {
    Doorbell {
        id: uuid(id),
        hook: "Spank".into(),
        cluster: NAME.into(),
        host: "h1".into(),
        called_at: Some(timestamp(chrono::Utc::now())),
        job_id,
        step: Some(StepReport {
            moment: "exit".into(),
            step_id: u32::MAX - 4,
            uid: ALICE,
            tasks: 2,
            ended: 2,
            failed: 1,
            failures: vec![TaskEnd {
                task: 1,
                code: 0,
                signal: 9,
            }],
            ..StepReport::default()
        }),
        ..Doorbell::default()
    }
}

fn uuid(n: u128) -> String {
    format!("01961234-5678-7abc-8def-{n:012x}")
}

async fn ring(mesh: &Mesh, doorbell: &Doorbell) {
    let subject = subject::doorbell(NAME, &doorbell.hook);
    mesh.bus
        .publish_raw(subject, &doorbell.id, doorbell.encode_to_vec())
        .await
        .unwrap();
}

fn notices(mesh: &Mesh) -> Vec<Event> {
    let mut events: Vec<Event> = mesh.events();
    events.retain(|event| event.r#type == "user.notified");
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_a_step_is_published_to_the_owner_that_slurm_records() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    // No poll and no other hook has shown these.
    let running = cluster.sbatch(&[], "sleep 300").await;
    let ended = cluster.sbatch(&[], "exit 3").await;
    cluster.wait_state(running, "RUNNING").await;
    cluster.wait_state(ended, "FAILED").await;
    for (n, job) in [(1, running), (2, ended)] {
        let doorbell = exit_of(job, n);
        ring(&mesh, &doorbell).await;
        let id = doorbell.id.clone();
        let event = mesh
            .wait_event("a report is published", |event| {
                event.entity_key() == format!("step/{id}")
            })
            .await;
        let owner = event.owner.clone().unwrap();
        assert_eq!((owner.user.as_str(), owner.uid), ("alice", Some(ALICE)));
        assert!(!owner.account.is_empty());
        assert_eq!(event.confidence(), Confidence::Inferred);
        assert_eq!(event.source_detail, "Spank");
        let payload = of_user(&event).unwrap();
        assert_eq!(payload.after, format!("{job}.batch"));
        let notice = payload.notice.clone().unwrap();
        assert_eq!(
            notice.text,
            format!("Step {job}.batch has ended on h1, 1 of 2 tasks failed, task 1 with signal 9")
        );
        assert_eq!(notice.data["task.1"], "0:9");
        assert!(notice.run.starts_with(&format!("job/{job}/")));
        assert_eq!(event.correlation.unwrap().entities, [notice.run]);
    }
    mesh.assert_no_duplicates();
    cluster
        .run("alice", &["scancel", &running.to_string()])
        .await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_no_record_supports_is_no_event() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let mut letters = client.subscribe("mesh.dead.ingest").await.unwrap();
    client.flush().await.unwrap();
    let waiting = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    let running = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(running, "RUNNING").await;
    let of = |change: &dyn Fn(&mut Doorbell), id| {
        let mut doorbell = exit_of(running, id);
        change(&mut doorbell);
        doorbell
    };
    let yesterday = timestamp(chrono::Utc::now() - chrono::TimeDelta::days(1));
    for (doorbell, reason) in [
        (
            of(&|doorbell| doorbell.step.as_mut().unwrap().uid = 20_002, 1),
            "uid",
        ),
        (of(&|doorbell| doorbell.step = None, 2), "no step"),
        (
            of(&|doorbell| doorbell.called_at = Some(yesterday), 3),
            "no record",
        ),
        (of(&|doorbell| doorbell.job_id = 66_000_002, 4), "no record"),
        (of(&|doorbell| doorbell.job_id = waiting, 5), "no record"),
        (
            of(&|doorbell| doorbell.cluster = "other".into(), 6),
            "another cluster",
        ),
    ] {
        ring(&mesh, &doorbell).await;
        let letter = tokio::time::timeout(DEADLINE, letters.next()).await;
        let letter = DeadLetter::decode(letter.expect("a dead letter").unwrap().payload).unwrap();
        assert!(letter.reason.contains(reason), "{}", letter.reason);
    }
    assert_eq!(notices(&mesh), []);
    // The true one is published.
    ring(&mesh, &exit_of(running, 7)).await;
    mesh.wait_event("the true report is published", |event| {
        event.r#type == "user.notified"
    })
    .await;
    for job in [running, waiting] {
        cluster.run("alice", &["scancel", &job.to_string()]).await;
    }
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_reports_is_limited() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let running = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(running, "RUNNING").await;
    // Known from here on: a report needs no lookup of its own.
    crate::doorbell::ring(&mesh, "PrologSlurmctld", running, &[]).await;
    mesh.wait_history(running, "submitted started").await;
    let now = chrono::Utc::now();
    for n in 1..=200 {
        let doorbell = Doorbell {
            called_at: Some(timestamp(now)),
            ..exit_of(running, n)
        };
        ring(&mesh, &doorbell).await;
    }
    let pending = async || {
        let stream = async_nats::jetstream::new(async_nats::connect(mesh.nats.url()).await.ok()?);
        let mut hooks = stream.get_stream("MESH_HOOKS").await.ok()?;
        (hooks.info().await.ok()?.state.messages == 0).then_some(())
    };
    mesh_testkit::wait_for("all reports are handled", DEADLINE, pending).await;
    assert_eq!(notices(&mesh).len(), 60);
    cluster
        .run("alice", &["scancel", &running.to_string()])
        .await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_report_of_a_job_that_slurmctld_has_purged_is_published_by_accounting() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let job = cluster.sbatch(&[], "exit 3").await;
    cluster.wait_state(job, "FAILED").await;
    // As a node's spool keeps it while NATS is unavailable.
    let report = exit_of(job, 1);
    wait_all_purged(cluster).await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    ring(&mesh, &report).await;
    let event = mesh
        .wait_event("the report is published", |event| {
            event.r#type == "user.notified"
        })
        .await;
    assert_eq!(event.owner.unwrap().user, "alice");
    ingest.stop().await;
}
