//! Load on Slurm: few requests, whatever rings.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::{subject, timestamp};
use mesh_testkit::wait_for;
use prost::Message as _;

use crate::cluster::{self, NAME};
use crate::doorbell::TIMED_OUT;
use crate::mesh::{DEADLINE, Mesh};
use crate::stand_in::StandIn;

/// So slow that only doorbells can be the cause.
const SLOW: &str = "poll_interval = \"1h\"";

/// Builds a doorbell of PrologSlurmctld.
fn start(occasion: &str, job_id: u32) -> Doorbell {
    Doorbell {
        id: format!("{occasion}-{job_id}"),
        hook: "PrologSlurmctld".to_owned(),
        cluster: NAME.to_owned(),
        job_id,
        called_at: Some(timestamp(chrono::Utc::now())),
        ..Doorbell::default()
    }
}

/// Publishes doorbells of starts, many at a time.
async fn ring_all(mesh: &Mesh, occasion: &str, jobs: impl IntoIterator<Item = u32>) {
    ring_each(mesh, jobs.into_iter().map(|job| start(occasion, job))).await;
}

/// Publishes doorbells, many at a time.
async fn ring_each(mesh: &Mesh, doorbells: impl IntoIterator<Item = Doorbell>) {
    let rings = doorbells.into_iter().map(|doorbell| async move {
        // On a busy machine the acknowledgement may be late. Sent again under the same id, it is stored once.
        wait_for("a doorbell is stored", DEADLINE, async || {
            let subject = subject::doorbell(NAME, &doorbell.hook);
            let body = doorbell.encode_to_vec();
            let stored = mesh.bus.publish_raw(subject, &doorbell.id, body).await;
            stored.ok()
        })
        .await;
    });
    futures_util::stream::iter(rings)
        .buffer_unordered(256)
        .collect::<()>()
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f16_a_hundred_hooks_at_once_cause_a_handful_of_commands() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let ingest = mesh.ingest_through(&stand_in, cluster, SLOW).await;
    let ingest = ingest.ready().await;
    let submit = "for n in {1..100}; do sbatch --parsable --hold --mem=10 --output=/dev/null --wrap=true; done";
    let printed = cluster.run("alice", &["bash", "-c", submit]).await;
    let ids: Vec<&str> = printed.lines().collect();
    let jobs: Vec<u32> = ids.iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(jobs.len(), 100);
    // Slurm answers slowly, so that all of them have rung when the second read begins, even on a slow machine.
    stand_in.override_output("squeue", "sleep 1");
    for (occasion, history) in [
        ("submitted", "submitted held"),
        ("over", "submitted held cancelled"),
    ] {
        if occasion == "over" {
            let cancel: Vec<&str> = ["scancel"].into_iter().chain(ids.clone()).collect();
            cluster.run("alice", &cancel).await;
        }
        let before = stand_in.calls().len();
        ring_all(&mesh, occasion, jobs.iter().copied()).await;
        for job in &jobs {
            mesh.wait_history(*job, history).await;
        }
        let calls = stand_in.calls().split_off(before);
        assert!(calls.len() <= 20, "{calls:#?}");
    }
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f3_ten_thousand_forged_doorbells_cost_little_and_do_not_delay_real_ones() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = format!("{SLOW}\nunknown_jobs_per_minute = 500");
    let ingest = mesh.ingest_through(&stand_in, cluster, &settings).await;
    let ingest = ingest.ready().await;
    let before = stand_in.calls().len();
    let begun = Instant::now();
    let real = cluster.sbatch(&["--hold"], "true").await;
    ring_all(&mesh, "forged", (50_000_000..50_010_000).chain([real])).await;
    mesh.wait_history(real, "submitted held").await;
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    let calls = stand_in.calls();
    // 500 unknown jobs are read in a few lists, and 16 of each list by their ids. The others cause at most one poll per second.
    assert!(
        calls.len() - before <= 150 + 10 * seconds,
        "{} commands in {seconds} s",
        calls.len() - before
    );
    assert!(calls.iter().all(|call| !call.contains("--json")));
    let forged =
        |event: &mesh_events::Event| event.job().is_some_and(|job| job.job_id >= 50_000_000);
    assert!(!mesh.events().iter().any(forged));
    // The same, claimed as tasks of an existing array, which would admit any number of them: it is soon distrusted.
    let array = cluster.sbatch(&["--hold", "--array=1-9"], "true").await;
    ring_all(&mesh, "array", [array]).await;
    mesh.wait_history(array, "submitted held").await;
    let (before, begun) = (stand_in.calls().len(), Instant::now());
    let tasks = (60_000_000..60_010_000).map(|job| Doorbell {
        environment: [("SLURM_ARRAY_JOB_ID".to_owned(), array.to_string())].into(),
        ..start("task", job)
    });
    ring_each(&mesh, tasks).await;
    let real_too = cluster.sbatch(&["--hold"], "true").await;
    ring_all(&mesh, "real", [real_too]).await;
    mesh.wait_history(real_too, "submitted held").await;
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    let calls = stand_in.calls().len() - before;
    println!("{calls} commands for tasks in {seconds} s");
    assert!(
        calls <= 150 + 10 * seconds,
        "{calls} commands in {seconds} s"
    );
    assert_eq!(mesh.history(array), "submitted held");
    for job in [real, real_too, array] {
        cluster.run("alice", &["scancel", &job.to_string()]).await;
    }
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_accounting_delays_no_doorbell() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = format!("{SLOW}\nunknown_jobs_per_minute = 100000");
    let ingest = mesh.ingest_through(&stand_in, cluster, &settings).await;
    let ingest = ingest.ready().await;
    let mut jobs = Vec::new();
    for (occasion, override_output) in [
        // It does not have these ends yet.
        ("late", "exit 0"),
        (
            "away",
            "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1",
        ),
    ] {
        stand_in.override_output("sacct", override_output);
        // More ends than may be handled or wait at the same time, and only accounting could confirm them.
        let ends = (50_000_000..50_002_000).map(|job| Doorbell {
            hook: "JobComp".to_owned(),
            environment: TIMED_OUT
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .chain([("JOBID".to_owned(), job.to_string())])
                .collect(),
            ..start(occasion, job)
        });
        ring_each(&mesh, ends).await;
        let real = cluster.sbatch(&["--hold"], "true").await;
        let begun = Instant::now();
        ring_all(&mesh, occasion, [real]).await;
        mesh.wait_history(real, "submitted held").await;
        println!("{occasion}: heard after {:?}", begun.elapsed());
        jobs.push(real);
    }
    for job in jobs {
        cluster.run("alice", &["scancel", &job.to_string()]).await;
    }
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_job_is_looked_up_once() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let ingest = mesh.ingest_through(&stand_in, cluster, SLOW).await;
    let ingest = ingest.ready().await;
    let asked = |job: u32| {
        let calls = stand_in.calls();
        let about = |call: &&String| call.starts_with("sacct ") && call.contains(&job.to_string());
        calls.iter().filter(about).count()
    };
    // Each needs a separate accounting request. An id that is always retried would be in all following ones.
    let jobs = 51_000_000..51_000_006;
    let mut first_range = 0;
    for job in jobs.clone() {
        // Rings repeatedly: such a doorbell does not wait while accounting is unavailable, as it may be on a busy machine.
        let mut requests = 0;
        while asked(job) == 0 {
            assert!(requests < 1_200, "accounting is asked for {job}");
            if requests % 100 == 0 {
                ring_all(&mesh, &format!("unknown-{requests}"), [job]).await;
                first_range += usize::from(job == jobs.start);
            }
            requests += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    // A doorbell may be delivered twice.
    let first = asked(jobs.start);
    assert!(
        first <= 2 * first_range,
        "asked {first} times: {:#?}",
        stand_in.calls()
    );
    ingest.stop().await;
}
