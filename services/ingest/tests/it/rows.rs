//! Faulty rows of accounting: an unreadable one, a duplicate, one that is a day late, one that is behind the controller. None affects
//! another job, and nothing false is published.

use chrono::{Duration, SecondsFormat, Utc};
use mesh_events::Event;

use crate::cluster;
use crate::mesh::Mesh;
use crate::stand_in::StandIn;

/// Prints a row with the requested columns before the real answer.
const ROW: &str = r#"
for a in "$@"; do case "$a" in --delimiter=*) d=${a#*=} ;; --format=*) f=${a#*=} ;; esac; done
row() {
    printf %s "$f" | awk -v RS=, -v ORS= -v d="$d" -v row="$1" '
        BEGIN { n = split(row, v, "|"); for (i = 1; i <= n; i++) { at = index(v[i], "="); t[substr(v[i], 1, at - 1)] = substr(v[i], at + 1) } }
        { print (NR > 1 ? d : "") t[$1] } END { print "\n" }'
}
"#;

/// An invalid row: it has no id.
const NO_ROW: &str = "JobIDRaw=?|JobID=?|State=COMPLETED|End=1795305073";
const TIMED_OUT: u32 = 66_000_030;
const OUT_OF_MEMORY: u32 = 66_000_031;

/// Only long answers have these rows, not a request by id, which is about other jobs.
fn answer(rows: &[String]) -> String {
    let rows: Vec<String> = rows.iter().map(|row| format!("row '{row}'")).collect();
    format!(
        "{ROW}case \"$*\" in *' -S '*) {} ;; esac\nrow '{NO_ROW}'\n",
        rows.join("; ")
    )
}

fn of_bob(job: u32, state: &str, end: i64) -> String {
    format!(
        "JobIDRaw={job}|JobID={job}|DBIndex={job}|User=bob|UID=20002|Account=biology|Partition=cpu|JobName=late|State={state}|\
         Submit={}|Start={}|End={end}|NNodes=1|NodeList=n1|AllocTRES=cpu=1|ReqTRES=cpu=1",
        end - 120,
        end - 60,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_none_late_twice_or_behind_concerns_no_other_job() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let now = Utc::now();
    // Old enough to be late, and recent enough for a few requests about an hour each.
    let history = (now - Duration::hours(30)).to_rfc3339_opts(SecondsFormat::Secs, true);
    let settings = format!(
        "poll_interval = \"500ms\"\nmissing_record_timeout = \"2s\"\nhistory_since = \"{history}\"\ncatch_up_overlap = \"30h\"\nended_run_retention = \"60h\"\nusage_delay = \"1h\""
    );
    stand_in.override_output(
        "squeue",
        "case \"$*\" in *' -j '*) ;; *'%A<'*) ;; *) echo 'no row of a queue' ;; esac",
    );
    stand_in.override_output("sacct", &answer(&[]));
    // A poll with nothing but unreadable lines would be no answer at all.
    let held = cluster.sbatch(&["--hold"], "true").await;
    let ingest = mesh.ingest_through(&stand_in, cluster, &settings).await;
    let ingest = ingest.ready().await;
    let caught_up = |events: &[Event]| {
        let done = events
            .iter()
            .filter(|event| event.r#type == "capture.caught_up");
        done.count()
    };
    mesh.wait_event("caught up", |_| caught_up(&mesh.events()) == 1)
        .await;
    let job = cluster.sbatch(&[], "exit 4").await;
    mesh.wait_history(job, "submitted started failed").await;
    ingest.stop().await;
    let published = mesh.of_job(job).pop().unwrap().job().unwrap().clone();
    let (submit, start) = (
        published.submit_time.unwrap().seconds,
        published.start_time.unwrap().seconds,
    );
    let behind = |state: &str| {
        format!(
            "JobIDRaw={job}|JobID={job}|DBIndex=1|User=alice|UID=20001|Account=physics|State={state}|Submit={submit}|Start={start}|\
             End=Unknown|NNodes=1|NodeList={}|ReqTRES=cpu=1",
            published.nodes
        )
    };
    let a_day_ago = (now - Duration::hours(24)).timestamp();
    let late = of_bob(TIMED_OUT, "TIMEOUT", a_day_ago);
    let killed = format!(
        "{}|ExitCode=0:125|DerivedExitCode=0:125",
        of_bob(OUT_OF_MEMORY, "OUT_OF_MEMORY", a_day_ago)
    );
    stand_in.override_output(
        "sacct",
        &answer(&[
            behind("RUNNING"),
            behind("PENDING"),
            late.clone(),
            late,
            killed,
        ]),
    );
    let ingest = mesh.ingest_through(&stand_in, cluster, &settings).await;
    let ingest = ingest.ready().await;
    mesh.wait_event("caught up again", |_| caught_up(&mesh.events()) == 2)
        .await;
    mesh.wait_history(TIMED_OUT, "submitted started timeout")
        .await;
    mesh.wait_history(OUT_OF_MEMORY, "submitted started out_of_memory")
        .await;
    for job in [TIMED_OUT, OUT_OF_MEMORY] {
        for event in mesh.of_job(job) {
            assert!(event.late, "{event:?}");
            let owner = event.owner.as_ref().unwrap();
            assert_eq!(
                (owner.user.as_str(), owner.account.as_str()),
                ("bob", "biology")
            );
        }
    }
    let killed = mesh.of_job(OUT_OF_MEMORY).pop().unwrap();
    assert_eq!(killed.job().unwrap().exit_code.unwrap().signal, 125);
    // Missing rows of accounting do not retract anything.
    assert_eq!(mesh.history(job), "submitted started failed");
    // A job that left the queue is found although every poll has an unreadable line.
    let next = cluster.sbatch(&[], "sleep 1").await;
    mesh.wait_history(next, "submitted started completed").await;
    cluster.run("alice", &["scancel", &held.to_string()]).await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
