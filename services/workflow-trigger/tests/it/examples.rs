//! The rules and scripts of `examples/triggers`, on a real cluster.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use chrono::TimeDelta;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType};
use mesh_testkit::{NatsServer, wait_until};
use serde_json::{Value, json};

use crate::cluster::shared;
use crate::cron::stopped_for;
use crate::support::{Site, alice, bus, end, publish};

const DEADLINE: Duration = Duration::from_secs(120);
const NOTE: &str = "[[workflow-trigger.rules]]\nname = \"note\"\nowner = \"alice\"\ndry_run = true\non = { source = \"publish\", types = [\"aligned\"] }\naction = { publish = \"noted\" }\n";

fn job_id(run: &Value) -> u32 {
    u32::try_from(run["job_id"].as_u64().unwrap()).unwrap()
}

/// The end of a job as ingest publishes it.
fn ended(kind: EventType, job: u32, name: &str, comment: &str) -> Event {
    let mut event = end(kind, job, "alice", TimeDelta::zero());
    if let Some(Payload::Job(payload)) = &mut event.payload {
        let of = payload.job.as_mut().unwrap();
        of.name = name.to_owned();
        of.comment = comment.to_owned();
        of.restarts = Some(0);
        of.req_tres = "cpu=1,mem=10M,node=1,billing=1".to_owned();
    }
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_run() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/triggers");
    let scratch = cluster.results.join("examples");
    std::fs::create_dir(&scratch).unwrap();
    std::fs::set_permissions(&scratch, std::fs::Permissions::from_mode(0o1777)).unwrap();
    mesh_testkit::write_private(&site.path("minio.secret"), "a secret of MinIO");
    let rules = std::fs::read_to_string(folder.join("rules.toml")).unwrap();
    let rules = rules
        .replace("/scratch/alice", scratch.to_str().unwrap())
        .replace("/etc/slurm-mesh/minio.secret", "minio.secret");
    let keys = format!(
        "confirm_after = \"100ms\"\nscripts = {:?}",
        folder.join("triggers.d")
    );
    let tables = rules + NOTE + &cluster.submitter();
    site.start(&nats, &keys, &tables).await.stop().await;
    // As if the service had been down over night.
    stopped_for(&site, "nightly", "0 2 * * *", TimeDelta::hours(26)).await;
    let trigger = site.start(&nats, &keys, &tables).await;

    // An object arrives, and what is no object of the rule's.
    let record = |key: &str| json!({"eventName": "s3:ObjectCreated:Put", "s3": {"bucket": {"name": "reads"}, "object": {"key": key, "size": 5, "sequencer": "1"}}});
    let body = json!({"Records": [record("notes.txt"), record("sample+17.fastq.gz")]}).to_string();
    let headers = [("authorization", "Bearer a secret of MinIO")];
    let (status, answer) = trigger.send("/v1/in/minio", &headers, body).await;
    assert_eq!(status, 202, "{answer}");
    let object = answer["ids"][1].as_str().unwrap();
    let aligned = trigger.wait_run(object, "released").await;
    let align = job_id(&aligned);
    cluster.wait_state(align, "COMPLETED").await;
    assert_eq!(
        cluster.lines("examples/aligned.txt"),
        [format!("aligned reads/sample 17.fastq.gz in job {align}")]
    );

    // What the job publishes continues its chain; a job of another user does not lend its chain.
    let bob = mesh_runtime::api::Caller::peer("bob", 20_002, mesh_runtime::api::Role::User);
    let event = json!({"type": "aligned", "job_id": align});
    for caller in [alice(), bob] {
        let (status, _) = trigger
            .ask(caller, "POST", "/v1/in", Some(event.clone()))
            .await;
        assert_eq!(status, 202);
    }
    wait_until("the note is taken", DEADLINE, async || {
        !trigger.runs("state=dry_run").await.is_empty()
    })
    .await;

    // The job's end starts the report.
    let key = aligned["key"].as_str().unwrap();
    let of_align = ended(EventType::JobCompleted, align, "align", key);
    publish(&bus, &of_align).await;
    let reported = trigger.wait_run(&of_align.id, "released").await;
    cluster.wait_state(job_id(&reported), "COMPLETED").await;
    assert_eq!(
        cluster.lines(&format!("examples/report-{align}.txt")).len(),
        1
    );

    // All of that goes back to the object.
    let chain = trigger.runs(&format!("root={object}")).await;
    let mut found: Vec<_> = chain
        .iter()
        .map(|run| {
            (
                run["rule"].as_str().unwrap(),
                run["parent"].as_str().unwrap_or_default(),
            )
        })
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("alice/align", ""),
            ("alice/note", key),
            ("alice/report", key),
            ("alice/tell-ci", key)
        ]
    );
    assert_eq!(trigger.runs(&format!("job={align}")).await.len(), 3);

    // The night that was missed.
    let nightly = trigger.runs("rule=alice/nightly").await.remove(0);
    let nightly = trigger
        .wait_run(nightly["key"].as_str().unwrap(), "released")
        .await;
    cluster.wait_state(job_id(&nightly), "COMPLETED").await;
    let (_, run) = trigger
        .ask(
            alice(),
            "GET",
            &format!("/v1/trigger-runs/{}", nightly["key"].as_str().unwrap()),
            None,
        )
        .await;
    let date = run["action"]["job"]["args"][0].as_str().unwrap().to_owned();
    assert_eq!(
        cluster.lines(&format!("examples/nightly-{date}.txt")),
        ["tidied up"]
    );

    // Out of memory, then more of it.
    let hungry = cluster.sbatch("alice", &[], "exit 1").await;
    cluster.wait_state(hungry, "FAILED").await;
    let event = ended(EventType::JobOutOfMemory, hungry, "hungry", "");
    publish(&bus, &event).await;
    trigger.wait_run(&event.id, "done").await;
    assert_eq!(cluster.field(hungry, "MinMemoryNode").await, "15M");
    trigger.stop().await;
}
