//! Output of Slurm that this version does not know: published once, and without data of the job.

use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;

use crate::cluster;
use crate::mesh::Mesh;
use crate::stand_in::StandIn;

const FAST: &str = "poll_interval = \"500ms\"";

fn drifts(mesh: &Mesh) -> Vec<CaptureEvent> {
    let mut events = mesh.events();
    events.retain(|event| event.r#type == "capture.schema_drift");
    let payloads = events.into_iter().filter_map(|event| match event.payload {
        Some(Payload::Capture(capture_event)) => Some(capture_event),
        _ => None,
    });
    payloads.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_state_is_reported_once_a_day() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    stand_in.override_output(
        "scontrol",
        "\"$real\" \"$@\" | sed 's/JobState=PENDING/JobState=BRAND_NEW/'; exit 0",
    );
    let ingest = mesh
        .ingest_through(&stand_in, cluster, FAST)
        .await
        .ready()
        .await;
    let mut jobs = Vec::new();
    for _ in 0..2 {
        jobs.push(
            cluster
                .sbatch(&["--begin=now+1hour", "-Jsecret-name"], "true")
                .await,
        );
    }
    mesh.wait_event("the drift is told", |event| {
        event.r#type == "capture.schema_drift"
    })
    .await;
    // Also across a restart.
    ingest.stop().await;
    let ingest = mesh
        .ingest_through(&stand_in, cluster, FAST)
        .await
        .ready()
        .await;
    jobs.push(cluster.sbatch(&["--begin=now+1hour"], "true").await);
    stand_in.wait_calls("scontrol", 3).await;
    ingest.stop().await;
    let published = drifts(&mesh);
    assert_eq!(published.len(), 1, "{published:?}");
    assert_eq!(published[0].source, "slurmctld");
    assert_eq!(
        published[0].message,
        "slurmctld printed the job state \"BRAND_NEW\", which this version does not know"
    );
    for job in jobs {
        cluster.run("root", &["scancel", &job.to_string()]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_found_only_by_catch_up_are_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let ingest = mesh
        .ingest_through(&stand_in, cluster, FAST)
        .await
        .ready()
        .await;
    ingest.stop().await;
    let job = cluster.sbatch(&[], "true").await;
    cluster.wait_state(job, "COMPLETED").await;
    stand_in.override_output(
        "sacct",
        "\"$real\" \"$@\" | sed 's/billing=/billing=many/g'; exit 0",
    );
    let ingest = mesh
        .ingest_through(&stand_in, cluster, FAST)
        .await
        .ready()
        .await;
    for field in ["AllocTRES", "ReqTRES"] {
        mesh.wait_event("the drift is told", |event| match &event.payload {
            Some(Payload::Capture(drift)) => drift.message.contains(field),
            _ => false,
        })
        .await;
    }
    mesh.wait_history(job, "submitted started completed").await;
    ingest.stop().await;
    let published = drifts(&mesh);
    assert!(published.iter().all(|drift| drift.source == "slurmdbd"));
    let mut messages: Vec<_> = published.into_iter().map(|drift| drift.message).collect();
    messages.sort();
    let expected = ["AllocTRES", "ReqTRES"].map(|field| {
        format!(
            "slurmdbd printed {field} of a job in a format that this version cannot read; \
             it starts (letters as x, digits as 0): billing=x0"
        )
    });
    assert_eq!(messages, expected);
}

/// An unreadable line in every poll, an unreadable row in every list of accounting, and an unreadable association.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_rows_are_reported_wherever_they_are() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    stand_in.override_output(
        "squeue",
        // Not in the evidence, where it is another form of drift.
        "case \"$*\" in *' -j '*) ;; *'%A<'*) ;; *'RUNNING,SUSPENDED'*) ;; *) echo 'secret 7' ;; esac",
    );
    stand_in.override_output(
        "sacct",
        "case \"$*\" in *' -S '*) ;; *) exec \"$real\" \"$@\" ;; esac\n\
         for a in \"$@\"; do case \"$a\" in --delimiter=*) d=${a#*=} ;; --format=*) f=${a#*=} ;; esac; done\n\
         printf %s \"$f\" | awk -v RS=, -v ORS= -v d=\"$d\" '{ print (NR > 1 ? d : \"\") \"secret\" } END { print \"\\n\" }'",
    );
    stand_in.override_output(
        "sacctmgr",
        "case \"$*\" in *'show assoc'*) echo 'secret|bob'; exit 0 ;; esac",
    );
    // A poll with nothing but unreadable lines would be no answer at all.
    let held = cluster.sbatch(&["--hold"], "true").await;
    let since = chrono::Utc::now() - chrono::Duration::hours(2);
    let since = since.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let settings = format!("{FAST}\nhistory_since = \"{since}\"");
    let ingest = mesh
        .ingest_through(&stand_in, cluster, &settings)
        .await
        .ready()
        .await;
    let published = |capture_event: &'static str| {
        move |event: &mesh_events::Event| match &event.payload {
            Some(Payload::Capture(drift)) => {
                event.r#type == "capture.schema_drift" && drift.message.contains(capture_event)
            }
            _ => false,
        }
    };
    for command in ["(squeue)", "(sacct)", "(sacctmgr)"] {
        mesh.wait_event(command, published(command)).await;
    }
    cluster.run("root", &["scancel", &held.to_string()]).await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
    let mut published: Vec<String> = drifts(&mesh)
        .into_iter()
        .map(|capture_event| capture_event.message)
        .collect();
    published.sort();
    assert_eq!(published.len(), 3, "{published:?}");
    assert!(
        published
            .iter()
            .all(|text| !text.contains("secret") && !text.contains("bob"))
    );
    let examples = [
        ("(squeue)", ": x 0"),
        ("(sacctmgr)", ": x|x"),
        ("(sacct)", ": x|x|x"),
    ];
    for (text, (command, example)) in published.iter().zip(examples) {
        assert!(text.contains(command) && text.contains(example), "{text}");
    }
}
