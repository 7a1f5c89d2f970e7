//! Job ids chosen by the submitter, over slurmrestd with SlurmUser's token.

use std::path::{Path, PathBuf};

use mesh_testkit::write_private;
use slurm_submit::{Confirmation, SubmitError, Submitter};
use slurm_types::JobId;

use crate::cluster::{Cluster, PROGRAM, shared};

pub const FIRST: u32 = 67_043_329;

/// A submitter with a token. Slurm 22.05 has no API that can choose ids: it refuses, and the test ends (`None`).
pub async fn submitter(cluster: &Cluster) -> Option<Submitter> {
    let slurm = &cluster.slurm;
    let (token, config) = (slurm.dir().join("token"), chosen_config(cluster));
    let printed = slurm.run_as(
        "root",
        &["scontrol", "token", "username=root", "lifespan=3600"],
    );
    write_private(&token, printed);
    let port = slurm.fact("port_slurmrestd");
    let text = format!(
        "users = [\"alice\"]\njob_ids = \"{FIRST}-67108863\"\n[slurm]\nconf = {:?}\nrest_url = \"http://127.0.0.1:{port}\"\ntoken_file = {token:?}\nrest_user = \"root\"\n",
        slurm.conf()
    );
    std::fs::write(&config, text).unwrap();
    // It needs nothing of the other Slurm's root.
    let submitter = Submitter::new(slurm_submit::Config {
        program_dir: Path::new(PROGRAM).parent().map(Path::to_owned),
        program_config: Some(config),
    });
    if slurm.fact("slurm_version").starts_with("22.") {
        let refused = submitter.put(&cluster.job("old", "true"), id(0)).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), "refused");
        assert!(refused.to_string().contains("v0.0.40"), "{refused}");
        return None;
    }
    Some(submitter)
}

/// Configuration of the program with a token.
pub fn chosen_config(cluster: &Cluster) -> PathBuf {
    cluster.slurm.dir().join("chosen.toml")
}

fn file(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.results.join(name)
}

fn id(offset: u32) -> JobId {
    JobId::new(FIRST + offset).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_submissions_at_once_are_one_job_of_its_owner() {
    let (cluster, _guard) = shared().await;
    let Some(submitter) = submitter(cluster).await else {
        return;
    };
    let runs = file(cluster, "chosen");
    let script = format!(
        "id > {0}.id; printf '%s\\0' \"$@\" > {0}.args; printf %s \"$MESH_EVENT_X\" > {0}.x; echo $HOME $USER > {0}.home; echo run >> {0}",
        runs.display()
    );
    let mut job = cluster.job("chosen", &script);
    job.args = vec![
        "--uid=0".to_owned(),
        "$(id) 'x'\n\"é".to_owned(),
        ":".to_owned() + ":",
    ];
    let value = "a,LD_PRELOAD=/tmp/x.so\nb";
    job.environment
        .insert("MESH_EVENT_X".to_owned(), value.to_owned());
    job.fields.time = Some(5);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (submitter, job) = (submitter.clone(), job.clone());
        tasks.spawn(async move { submitter.put(&job, id(0)).await });
    }
    for result in tasks.join_all().await {
        assert_eq!(result, Ok(id(0)));
    }
    cluster.ended(id(0)).await;
    let read =
        |suffix: &str| std::fs::read_to_string(format!("{}{suffix}", runs.display())).unwrap();
    assert_eq!(read(""), "run\n");
    assert_eq!(read(".id").trim(), cluster.slurm.run_as("alice", &["id"]));
    assert_eq!(
        read(".args"),
        job.args
            .iter()
            .map(|argument| format!("{argument}\0"))
            .collect::<String>()
    );
    assert_eq!(read(".x"), value);
    assert_eq!(read(".home").trim(), "/home/alice alice");
    // Long after, it is still there.
    assert_eq!(submitter.put(&job, id(0)).await, Ok(id(0)));
    assert_eq!(read(""), "run\n");
    let confirmed = cluster
        .submitter()
        .confirm("alice", id(0), &job.key)
        .await
        .unwrap();
    let Confirmation::Present(status) = confirmed else {
        panic!("{confirmed:?}");
    };
    assert_eq!(
        (status.time_minutes, status.memory_mib),
        (Some(5), Some(10))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_another_job_or_outside_the_range_is_refused() {
    let (cluster, _guard) = shared().await;
    let Some(submitter) = submitter(cluster).await else {
        return;
    };
    let first = cluster.job("chosen-first", "true");
    assert_eq!(submitter.put(&first, id(1)).await, Ok(id(1)));
    let second = cluster.job("chosen-second", "true");
    let refused = submitter.put(&second, id(1)).await.unwrap_err();
    assert!(
        matches!(
            refused,
            SubmitError::Refused {
                errno: Some(2011),
                ..
            }
        ),
        "{refused}"
    );
    let mut bobs = cluster.job("chosen-bob", "true");
    bobs.owner = "bob".to_owned();
    let odd = [
        submitter.put(&second, JobId::new(5).unwrap()).await,
        submitter.put(&bobs, id(2)).await,
    ];
    for result in odd {
        assert_eq!(result.unwrap_err().kind(), "refused");
    }
    let mut wrong = cluster.job("chosen-wrong", "true");
    wrong.fields.partition = Some("none".to_owned());
    let refused = submitter.put(&wrong, id(3)).await.unwrap_err();
    assert!(
        matches!(
            refused,
            SubmitError::Refused {
                errno: Some(2000),
                ..
            }
        ),
        "{refused}"
    );
}
