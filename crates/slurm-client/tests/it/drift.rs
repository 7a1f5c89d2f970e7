//! Every query, by commands and by slurmrestd: unparseable responses are recorded as drift, without data of a job or a person.

use std::fs;
use std::path::Path;
use std::time::Duration;

use mesh_testkit::script;
use slurm_client::{AccountingQuery, Config, Drift, Slurm};
use slurm_types::{JobId, JobRef, UnixTime};

use crate::rest_server::{ok, path, server, text};

/// An invalid row with the requested columns.
const SACCT: &str = r#"
for a in "$@"; do case "$a" in --delimiter=*) d=${a#*=} ;; --format=*) f=${a#*=} ;; esac; done
printf %s "$f" | awk -v RS=, -v ORS= -v d="$d" '{ print (NR > 1 ? d : "") "alice7" } END { print "\n" }'
"#;

/// One valid and one invalid row of a queue listing; one invalid row of users' texts.
const SQUEUE: &str = r#"
for format; do :; done
for word; do [ "$last" != -o ] || format=$word; last=$word; done
case "$format" in *%i*) cat "${0%/*}/queue"; exit ;; esac
s=${format#%A}; s=${s%%%U*}
echo "alice${s}20001${s}x${s}y${s}/home/alice${s}secret"
"#;

const SCONTROL: &str = r#"
case "$*" in
*"show jobs") for id in $(seq 100); do echo "JobId=$id UserId=alice(20001)"; done ;;
*"show job "*) echo "JobId=7 JobName=secret UserId=alice(20001) Network=(null)" ;;
*"show node") echo "NodeName=n1 Arch=x86_64" ;;
*"show partition") echo "PartitionName= State=UP" ;;
esac
"#;

const SACCTMGR: &str = "echo 'alice|physics'";

fn queue() -> String {
    let row = "7\x1f7\x1f7\x1fN/A\x1fRUNNING\x1f100\x1f160\x1f760\x1f1010\x1fcpu\x1falice\x1f20001\x1fphysics\x1fnormal\x1fn1\x1f1\x1f1\x1f10:00\x1fNone";
    format!("{row}\nalice 7|x\n")
}

fn id(id: u32) -> JobId {
    JobId::new(id).unwrap()
}

fn slurm(folder: &Path) -> Slurm {
    for (name, text) in [
        ("sacct", SACCT),
        ("squeue", SQUEUE),
        ("scontrol", SCONTROL),
        ("sacctmgr", SACCTMGR),
    ] {
        script(&folder.join(name), text);
    }
    fs::write(folder.join("queue"), queue()).unwrap();
    fs::write(folder.join("slurm.conf"), "").unwrap();
    Slurm::new(Config {
        conf: Some(folder.join("slurm.conf")),
        bin_dir: Some(folder.to_owned()),
        command_timeout: Duration::from_secs(60),
        ..Config::default()
    })
}

/// Drift recorded since the last call.
fn noted(slurm: &Slurm) -> Vec<String> {
    let drifts = slurm.take_drifts();
    for drift in &drifts {
        let text = drift.text();
        for name in ["alice", "secret", "physics", "20001"] {
            assert!(!text.contains(name), "{text}");
        }
    }
    let summary = |drift: &Drift| format!("{} {} {}", drift.what, drift.source, drift.example);
    drifts.iter().map(summary).collect()
}

#[tokio::test]
async fn rows_of_commands_that_cannot_be_read_are_noted_whatever_was_asked() {
    let folder = tempfile::tempdir().unwrap();
    let slurm = slurm(folder.path());

    slurm.list_queue().await.unwrap();
    assert_eq!(noted(&slurm), ["row slurmctld x 0|x"]);
    fs::write(folder.path().join("queue"), "noise\n").unwrap();
    slurm.list_queue().await.unwrap_err();
    assert_eq!(noted(&slurm), ["answer slurmctld x"]);
    fs::write(folder.path().join("queue"), queue()).unwrap();

    slurm.jobs(&[id(7)]).await.unwrap();
    let of_jobs = ["record slurmctld ", "row slurmctld x|0|x|x|/x/x|x"];
    assert_eq!(noted(&slurm), of_jobs);
    let many: Vec<JobId> = (1..=100).map(id).collect();
    slurm.jobs(&many).await.unwrap();
    assert_eq!(noted(&slurm)[0], "record slurmctld x=0 x=x(0)");
    slurm.job_pages(many).await.unwrap();
    assert_eq!(noted(&slurm)[0], "record slurmctld x=0 x=x(0)");
    // Users' texts, for more jobs than one command can name.
    slurm
        .job_pages((1..=2_000).map(id).collect())
        .await
        .unwrap();
    assert!(noted(&slurm).contains(&of_jobs[1].to_owned()));

    slurm.nodes().await.unwrap_err();
    assert_eq!(noted(&slurm), ["answer slurmctld x=x0 x=x0_0"]);
    slurm.partitions().await.unwrap_err();
    assert_eq!(noted(&slurm), ["answer slurmctld x= x=x"]);

    let begin = "row slurmdbd x0|x0|x0";
    let window = AccountingQuery::Window {
        start: UnixTime::from_secs(100),
        end: None,
    };
    assert!(slurm.accounting(&window).await.unwrap().is_empty());
    assert!(noted(&slurm)[0].starts_with(begin));
    let jobs = AccountingQuery::Jobs(vec![id(7)]);
    assert!(slurm.accounting(&jobs).await.unwrap().is_empty());
    assert!(noted(&slurm)[0].starts_with(begin));
    assert!(slurm.usage(&[JobRef::Job(id(7))]).await.unwrap().is_empty());
    assert!(noted(&slurm)[0].starts_with(begin));
    assert!(slurm.submitted(&[id(7)]).await.unwrap().is_empty());
    assert_eq!(noted(&slurm), [begin]);

    slurm.access("testbed", false).await.unwrap_err();
    assert_eq!(noted(&slurm), ["answer slurmdbd x|x"]);
    slurm
        .transactions(UnixTime::from_secs(100))
        .await
        .unwrap_err();
    assert_eq!(noted(&slurm), ["answer slurmdbd x|x"]);
}

#[tokio::test]
async fn records_of_slurmrestd_that_cannot_be_read_are_noted_whatever_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (slurm, ..) = server(dir.path(), |head| {
        let path = path(head);
        let list = match path {
            "/openapi.json" => return ok("26.05/rest/openapi.json"),
            _ if path.contains("/nodes") => "nodes",
            _ if path.contains("/partitions") => "partitions",
            _ if path.contains("/associations") => "associations",
            _ => "jobs",
        };
        text(
            200,
            &format!(r#"{{"{list}": [{{"owner_of_it": "alice", "number": 20001}}]}}"#),
        )
    });
    let record = "{x x_x_x}";
    assert!(slurm.list_queue().await.unwrap().rows.is_empty());
    assert_eq!(noted(&slurm), [format!("row slurmctld {record}")]);
    slurm.jobs(&[id(7)]).await.unwrap();
    assert_eq!(noted(&slurm), ["record slurmctld "]);
    slurm.nodes().await.unwrap_err();
    assert_eq!(noted(&slurm), [format!("answer slurmctld {record}")]);
    slurm.partitions().await.unwrap_err();
    assert_eq!(noted(&slurm), [format!("answer slurmctld {record}")]);
    let jobs = AccountingQuery::Jobs(vec![id(7)]);
    slurm.accounting(&jobs).await.unwrap_err();
    assert_eq!(noted(&slurm), [format!("answer slurmdbd {record}")]);
    slurm.usage(&[JobRef::Job(id(7))]).await.unwrap_err();
    assert_eq!(noted(&slurm), [format!("answer slurmdbd {record}")]);
    slurm.submitted(&[id(7)]).await.unwrap_err();
    assert_eq!(noted(&slurm), [format!("answer slurmdbd {record}")]);
    slurm.access("testbed", false).await.unwrap_err();
    assert_eq!(noted(&slurm), [format!("answer slurmdbd {record}")]);
}
