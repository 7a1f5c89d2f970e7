//! Answers that must not be trusted: hung, empty, truncated, foreign, outdated. Ingest derives nothing from them, and loses nothing because
//! of them.

use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;

use crate::cluster;
use crate::mesh::{DEADLINE, Mesh};
use crate::stand_in::{POLL, StandIn};

/// Timeouts so short that a trusted lie shows quickly.
const FAST: &str = "poll_interval = \"500ms\"\nmissing_record_timeout = \"1s\"";

/// No job exists, neither in the list nor by its id.
const NO_SUCH_JOB: &str = "case \"$*\" in
    *'show jobs'*) echo 'No jobs in the system'; exit 0 ;;
    *'show job '*) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1 ;;
esac";

/// This lie lasts longer.
const FORGETFUL: &str = "a controller that has lost its memory";

/// Lies that misled other tools: an error printed with status 0 was taken for an empty queue (OSC/ood_core#149), and a controller that
/// timed out for the end of every job (broadinstitute/cromwell#5400).
const OVERRIDES: [(&str, &[(&str, &str)]); 8] = [
    ("an empty queue with status 0", &[("squeue", "exit 0")]),
    (
        "an error told with status 0",
        &[(
            "squeue",
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)'; exit 0",
        )],
    ),
    (
        "an answer that is cut",
        &[("squeue", "\"$real\" \"$@\" | head -c 37; exit 0")],
    ),
    (
        "an answer that lacks lines",
        &[("squeue", "\"$real\" \"$@\" | head -n 1; exit 0")],
    ),
    ("a command that hangs", &[("squeue", "exec sleep 1000")]),
    (
        "nothing with status 0, whatever is asked",
        &[
            ("squeue", "exit 0"),
            ("scontrol", "case \"$*\" in *'show job'*) exit 0 ;; esac"),
            ("sacct", "exit 0"),
        ],
    ),
    (
        FORGETFUL,
        &[("squeue", "exit 0"), ("scontrol", NO_SUCH_JOB)],
    ),
    (
        "a controller that has lost its memory, and accounting that hangs",
        &[
            ("squeue", "exit 0"),
            ("scontrol", NO_SUCH_JOB),
            ("sacct", "exec sleep 1000"),
        ],
    ),
];

fn capture(event: &mesh_events::Event) -> Option<&CaptureEvent> {
    match &event.payload {
        Some(Payload::Capture(capture_event)) => Some(capture_event),
        _ => None,
    }
}

/// Returns the text of a gap.
fn gap(event: &mesh_events::Event) -> Option<String> {
    let capture_event = capture(event).filter(|_| event.r#type == "capture.gap_closed")?;
    Some(format!(
        "{} {}",
        capture_event.message, capture_event.not_recoverable
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_follows_from_answers_that_cannot_be_true() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let ingest = mesh.ingest_through(&stand_in, cluster, FAST).await;
    let ingest = ingest.ready().await;
    let running = cluster.sbatch(&[], "sleep 3000").await;
    let held = cluster.sbatch(&["--hold"], "true").await;
    let array = cluster
        .sbatch(&["--array=0-9", "--begin=now+1hour"], "true")
        .await;
    let histories = [
        (running, "submitted started"),
        (held, "submitted held"),
        (array, "submitted"),
    ];
    for (job, history) in histories {
        mesh.wait_history(job, history).await;
    }
    for (name, overrides) in OVERRIDES {
        for (command, script) in overrides {
            stand_in.override_output(command, script);
        }
        stand_in.wait_calls(POLL, 2).await;
        if name == FORGETFUL {
            // Accounting, which still tells the truth, is asked often enough that jobs it lacked would count as gone.
            stand_in.wait_calls("sacct", 5).await;
        }
        for (job, history) in histories {
            assert_eq!(mesh.history(job), history, "{name}");
        }
        for (command, _) in overrides {
            stand_in.truth(command);
        }
        stand_in.wait_calls(POLL, 2).await;
        for (job, history) in histories {
            assert_eq!(mesh.history(job), history, "after {name}");
        }
    }
    for (job, history) in histories {
        cluster.run("alice", &["scancel", &job.to_string()]).await;
        mesh.wait_history(job, &format!("{history} cancelled"))
            .await;
    }
    // Jobs of other tests run on this cluster, too. They may end while no source can answer.
    let gaps: Vec<String> = mesh.events().iter().filter_map(gap).collect();
    let about = |job: u32| {
        let runs = ["/", "_"].map(|next| format!("job/{job}{next}"));
        gaps.iter()
            .find(|gap| runs.iter().any(|run| gap.contains(run)))
            .cloned()
    };
    assert_eq!([running, held, array].map(about), [None, None, None]);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_hangs_is_a_source_that_is_down_until_it_answers() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let ingest = mesh.ingest_through(&stand_in, cluster, FAST).await;
    let ingest = ingest.ready().await;
    // A busy machine may have had other outages, before.
    let before = mesh.events().len();
    let later = |accept: &dyn Fn(&mesh_events::Event) -> bool| {
        let mut events = mesh.events().split_off(before);
        events.retain(accept);
        events
    };
    stand_in.override_output("squeue", "exec sleep 1000");
    let of_slurmctld = |kind: &'static str| {
        move |event: &mesh_events::Event| {
            event.r#type == kind
                && capture(event).is_some_and(|capture_event| capture_event.source == "slurmctld")
        }
    };
    let is_down = of_slurmctld("capture.source_down");
    let is_down_by_squeue = |event: &mesh_events::Event| {
        let names = |outage: &CaptureEvent| outage.message.contains("squeue");
        is_down(event) && capture(event).is_some_and(names)
    };
    wait_for("slurmctld is down by squeue", DEADLINE, async || {
        later(&is_down_by_squeue).pop()
    })
    .await;
    stand_in.wait_calls(POLL, 2).await;
    let downs = later(&is_down_by_squeue);
    assert_eq!(downs.len(), 1, "once per change, not per failure");
    stand_in.truth("squeue");
    let is_up = of_slurmctld("capture.source_up");
    wait_for("slurmctld is up", DEADLINE, async || {
        let mut changes =
            later(&|event: &mesh_events::Event| is_down_by_squeue(event) || is_up(event));
        changes.pop().filter(is_up)
    })
    .await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_answer_after_a_newer_one_takes_nothing_back() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    // Every answer about the queue and about jobs is saved, by its arguments.
    let question = "question=$here/old-$(printf %s \"$*\" | tr -c 'a-zA-Z0-9\\n' _)";
    let squeue = |then: &str| format!("case \"$*\" in *' -j '*) ;; *) {question}; {then} ;; esac");
    let scontrol = |then: &str| format!("case \"$*\" in *'show job'*) {question}; {then} ;; esac");
    let keep = "\"$real\" \"$@\" >\"$here/new.$$\" && mv \"$here/new.$$\" \"$question\" && cat \"$question\"; exit";
    stand_in.override_output("squeue", &squeue(keep));
    stand_in.override_output("scontrol", &scontrol(keep));
    let ingest = mesh.ingest_through(&stand_in, cluster, FAST).await;
    let ingest = ingest.ready().await;
    let ended = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(ended, "submitted started").await;
    stand_in.truth("squeue");
    stand_in.truth("scontrol");
    let running_then = stand_in.old_listing();
    assert!(
        running_then.contains(&format!("{ended}\x1f")),
        "{running_then}"
    );
    cluster.run("alice", &["scancel", &ended.to_string()]).await;
    mesh.wait_history(ended, "submitted started cancelled")
        .await;
    let newer = cluster.sbatch(&["--hold"], "true").await;
    mesh.wait_history(newer, "submitted held").await;
    // Answers like a controller that was restarted with an older state.
    let old = "[ ! -e \"$question\" ] || { cat \"$question\"; exit 0; }; echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1";
    stand_in.override_output("squeue", &squeue(old));
    stand_in.override_output("scontrol", &scontrol(old));
    stand_in.wait_calls(POLL, 6).await;
    stand_in.truth("squeue");
    stand_in.truth("scontrol");
    cluster.run("alice", &["scancel", &newer.to_string()]).await;
    mesh.wait_history(newer, "submitted held cancelled").await;
    assert_eq!(mesh.history(ended), "submitted started cancelled");
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_moves_to_another_partition_stays_the_same_run() {
    // Other tools lose it (nextflow-io/nextflow#1151).
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let ingest = mesh.ingest_through(&stand_in, cluster, FAST).await;
    let ingest = ingest.ready().await;
    let job = cluster.sbatch(&["--hold"], "sleep 1").await;
    mesh.wait_history(job, "submitted held").await;
    let id = format!("jobid={job}");
    let update = ["scontrol", "update", &id, "partition=low"];
    cluster.run("root", &update).await;
    cluster
        .run("root", &["scontrol", "release", &job.to_string()])
        .await;
    let history = "submitted held released started completed";
    mesh.wait_history(job, history).await;
    let end = mesh.of_job(job).pop().unwrap();
    assert_eq!(end.job().unwrap().partition, "low");
    // JSON of 22.05 loses exit codes, and is fifteen times as large as the text (rivosinc/prometheus-slurm-exporter#10). Accounting
    // requests always name their window, since sacct's default begins at midnight (snakemake/snakemake#1227).
    for call in stand_in.calls() {
        assert!(!call.contains("--json"), "{call}");
        let window = call.contains(" -S ") || call.contains(" -j ");
        assert!(!call.starts_with("sacct ") || window, "{call}");
    }
    ingest.stop().await;
}
