//! Jobs of a real cluster, read by every query. One cluster serves all checks: starting it takes seconds.

use slurm_client::{AccountingQuery, ArrayTasks, JobRecord, Slurm};
use slurm_types::{JobBaseState, JobId, Lifecycle, NodeReason, Reason, ReasonClass, UnixTime};

use crate::cluster::{Cluster, eventually};

/// A hostile name: newlines, separators, quotes, forged fields and records.
const HOSTILE: &str = "evil\nJobId=1 JobName=x UserId=root(0) GroupId=root(0) JobState=COMPLETED SubmitTime=5 Network=\n| \"q' \u{1f} wörld\t= ";

async fn job(slurm: &Slurm, id: JobId) -> JobRecord {
    let answer = slurm.jobs(&[id]).await.unwrap();
    assert_eq!(answer.unclear, [], "{id}");
    answer
        .found
        .into_iter()
        .find(|job| job.job_id == Some(id))
        .unwrap()
}

async fn ended(slurm: &Slurm, id: JobId) -> JobRecord {
    eventually("end of a job", || async {
        Some(job(slurm, id).await).filter(|job| job.state.is_terminal())
    })
    .await
}

/// Submits jobs of every kind and reads them by every query. Returns the ids of: a failed job, one with a hostile name, which is cancelled,
/// one with GPUs, an array, a held job, and one of two components.
async fn day(cluster: &Cluster, slurm: &Slurm, before: UnixTime) -> [JobId; 6] {
    let named = ["-Aphysics", "-J", HOSTILE, "--comment", HOSTILE];
    let gpus = [
        "-Aml",
        "-pgpu",
        "--gres=gpu:a100:2",
        "-n2",
        "--mem-per-cpu=100",
        "-Jgpus",
    ];
    let tasks = ["-Aphysics", "--array=1-9:2%1", "-Jarray"];
    let components = ["-Aml", "-Jhet", "-n1", ":", "-n1"];
    let ids = [
        cluster.submit("bob", &["-Aml", "-Jfails"], "exit 200"),
        cluster.submit("alice", &named, "sleep 300"),
        cluster.submit("bob", &gpus, "sleep 300"),
        cluster.submit("alice", &tasks, "sleep 300"),
        cluster.submit("bob", &["-Aml", "--hold", "-Jheld"], "true"),
        cluster.submit("bob", &components, "sleep 300"),
    ];
    let [failed, hostile, gpus, array, held, het] = ids;
    failed_job(slurm, failed, before).await;
    hostile_job(slurm, hostile).await;
    gpu_job(slurm, gpus).await;
    array_job(slurm, array).await;
    pending_jobs(slurm, held, het).await;
    every_job_in_one_answer(slurm, &ids).await;
    cancelled_job(cluster, slurm, hostile).await;
    drained_node(cluster, slurm).await;
    ids
}

#[tokio::test]
async fn a_day_in_a_cluster_is_read_truly() {
    let cluster = Cluster::up();
    let slurm = cluster.slurm();
    version_and_cluster(&slurm, true).await;
    let before = slurm.list_queue().await.unwrap().started_at;
    // Runs long enough to be measured.
    let burnt = cluster.submit(
        "alice",
        &["-Aphysics", "-n2", "--mem=400"],
        "srun -n2 python3 -c 'import time\nheld = bytearray(40 << 20)\nwhile time.process_time() < 1: pass\ntime.sleep(2)'",
    );
    let jobs = day(&cluster, &slurm, before).await;
    let ids = [&jobs[..], &[burnt]].concat();
    crate::live_rest::same_by_rest(&cluster, &slurm, &ids).await;
    accounting_and_munge_down(&cluster, &slurm, jobs[0]).await;
    controller_down(&cluster, &slurm).await;
}

#[tokio::test]
async fn a_day_in_a_cluster_is_read_truly_over_rest() {
    let cluster = Cluster::up();
    let (rest, commands) = (cluster.rest(cluster.socket()), cluster.slurm());
    // API versions before v0.0.45 do not report the default partition.
    let version = rest.version().await.unwrap();
    version_and_cluster(&rest, !version.starts_with("24.11")).await;
    let before = rest.list_queue().await.unwrap().started_at;
    let [failed, hostile, ..] = day(&cluster, &rest, before).await;

    // Ended jobs no longer change: both sources agree on them.
    for id in [failed, hostile] {
        let (found, printed) = (ended(&rest, id).await, ended(&commands, id).await);
        assert_eq!(
            (found.state, found.exit_code, found.nodes),
            (printed.state, printed.exit_code, printed.nodes)
        );
        assert_eq!(
            (found.submit, found.start, found.end),
            (printed.submit, printed.start, printed.end)
        );
        assert_eq!(
            (found.alloc_tres, found.reason),
            (printed.alloc_tres, printed.reason)
        );
    }

    cluster.control("stop", "slurmrestd");
    assert!(rest.list_queue().await.is_err());
    assert!(
        commands.list_queue().await.is_ok(),
        "the controller goes on"
    );
    cluster.control("start", "slurmrestd");
    eventually("slurmrestd is back", || async {
        rest.list_queue().await.ok()
    })
    .await;
}

async fn version_and_cluster(slurm: &Slurm, default_is_found: bool) {
    assert!(slurm.ping().await.unwrap().up);
    let version = slurm.version().await.unwrap();
    assert!(version.split('.').count() >= 3, "{version}");
    let config = slurm.config().await.unwrap();
    assert_eq!(config["ClusterName"], "client");
    let partitions = slurm.partitions().await.unwrap();
    assert!(partitions.iter().any(|partition| partition.name == "cpu"
        && partition.default == default_is_found
        && partition.state == "UP"));
    let nodes = slurm.nodes().await.unwrap();
    let gpus: Vec<_> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node.gpus(), node.lifecycle()))
        .collect();
    assert_eq!(
        gpus,
        [("n1", 0, Lifecycle::Active), ("n2", 4, Lifecycle::Active)]
    );
    assert!(nodes.iter().all(|node| node.boot_time.is_some()
        && node.slurmd_start_time.is_some()
        && node.real_memory_mib == 4000));
}

/// The controller has the true exit code; accounting of 22.05 subtracts 128.
async fn failed_job(slurm: &Slurm, id: JobId, before: UnixTime) {
    let job = ended(slurm, id).await;
    assert!(job.state.is(JobBaseState::Failed) && job.was_allocated());
    assert_eq!(
        job.exit_code.map(|code| (code.exit, code.signal)),
        Some((200, 0))
    );
    assert!(job.submit >= Some(before) && job.start >= job.submit && job.end >= job.start);
    assert_eq!(
        Reason::lookup(&job.reason).class(),
        ReasonClass::Failure,
        "{}",
        job.reason
    );

    let of_the_day = AccountingQuery::Window {
        start: before,
        end: None,
    };
    for query in [AccountingQuery::Jobs(vec![id]), of_the_day] {
        let row = eventually("row in accounting", || async {
            let rows = slurm.accounting(&query).await.unwrap();
            rows.into_iter()
                .find(|row| row.job_id == Some(id) && row.ended())
        })
        .await;
        assert_eq!(
            (row.submit, row.start, row.end),
            (job.submit, job.start, job.end)
        );
        assert_eq!(
            (row.uid, row.user.as_str(), row.name.as_str()),
            (job.uid, "bob", "fails")
        );
        assert_eq!(row.alloc_tres, job.alloc_tres);
        assert_eq!(
            (row.cluster.as_str(), row.time_limit),
            ("client", job.time_limit)
        );
        let exit = row.exit_code.map(|code| code.exit);
        // 22.05 subtracts 128, and slurmrestd of 22.05 loses accounting's exit codes altogether.
        assert!([Some(200), Some(72), None].contains(&exit), "{exit:?}");
        assert!(
            exit.is_some() || slurm.version().await.unwrap().starts_with("22.05"),
            "{exit:?}"
        );
    }
}

async fn hostile_job(slurm: &Slurm, id: JobId) {
    let job = job(slurm, id).await;
    assert_eq!(
        (job.name.as_str(), job.comment.as_str()),
        (HOSTILE, HOSTILE)
    );
    assert_eq!(
        (job.user.as_str(), job.uid, job.work_dir.as_str()),
        ("alice", Some(20_001), "/tmp")
    );
    assert!(!job.state.finished());

    let queue = slurm.list_queue().await.unwrap();
    assert_eq!(queue.unread_lines, 0);
    let row = queue.rows.iter().find(|row| row.job_id == id).unwrap();
    assert_eq!((&*row.user, row.submit), (job.user.as_str(), job.submit));

    let rows = eventually("row in accounting", || async {
        // slurmdbd may have stored a placeholder for a row that has not arrived yet.
        Some(
            slurm
                .accounting(&AccountingQuery::Jobs(vec![id]))
                .await
                .unwrap(),
        )
        .filter(|rows| rows.first().is_some_and(|row| !row.provisional))
    })
    .await;
    assert_eq!(
        (rows.len(), rows[0].user.as_str(), rows[0].job_id),
        (1, "alice", Some(id))
    );
    // The database turns quotes into back quotes and characters outside latin1 into question marks; newlines survive.
    assert!(
        rows[0].name.starts_with("evil\nJobId=1 "),
        "{:?}",
        rows[0].name
    );
}

async fn gpu_job(slurm: &Slurm, id: JobId) {
    let job = eventually("GPU job runs", || async {
        Some(job(slurm, id).await).filter(|job| job.state.to_string() == "RUNNING")
    })
    .await;
    assert_eq!(
        (
            job.alloc_tres.cpus(),
            job.alloc_tres.gpus(),
            job.alloc_tres.mem_mib()
        ),
        (2, 2, Some(200))
    );
    let held: Vec<_> = job
        .node_allocs
        .iter()
        .map(|held| (held.nodes.as_str(), held.cpus, held.mem_mib, held.gpus))
        .collect();
    assert_eq!(held, [("n2", 2, 200, 2)]);
}

/// One task runs at a time, the rest stays in the array's record; a lookup of the array finds both.
async fn array_job(slurm: &Slurm, array: JobId) {
    let jobs = eventually("a task runs", || async {
        let jobs = slurm.jobs(&[array]).await.unwrap().found;
        Some(jobs).filter(|jobs| jobs.iter().any(JobRecord::was_allocated))
    })
    .await;
    let remainder = jobs
        .iter()
        .find(|job| matches!(job.array_tasks, Some(ArrayTasks::Remainder(_))))
        .unwrap();
    let tasks: Vec<_> = remainder
        .array_tasks
        .as_ref()
        .unwrap()
        .set()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(tasks, [3, 5, 7, 9]);
    let task = jobs.iter().find(|job| job.was_allocated()).unwrap();
    assert_eq!(
        (
            task.array_job_id,
            task.array_tasks.as_ref().and_then(ArrayTasks::task)
        ),
        (Some(array), Some(1))
    );
    assert_eq!(task.job_ref().unwrap().to_string(), format!("{array}_1"));

    let queue = slurm.list_queue().await.unwrap();
    let of_array: Vec<_> = queue
        .rows
        .iter()
        .filter(|row| row.array_job_id == Some(array))
        .map(|row| &row.array_tasks)
        .collect();
    assert_eq!(of_array.len(), 2, "{of_array:?}");
}

async fn pending_jobs(slurm: &Slurm, held: JobId, het: JobId) {
    let job = job(slurm, held).await;
    assert_eq!(
        (job.priority, Reason::lookup(&job.reason).class()),
        (Some(0), ReasonClass::Held)
    );
    assert!(!job.was_allocated() && job.alloc_tres.is_empty() && job.req_tres.cpus() == 1);

    let components = slurm.jobs(&[het]).await.unwrap().found;
    let offsets: Vec<_> = components
        .iter()
        .map(|job| (job.het_job_id, job.het_job_offset))
        .collect();
    assert_eq!(offsets, [(Some(het), Some(0)), (Some(het), Some(1))]);
}

/// A lookup of many jobs gives the same records, and marks unknown jobs.
async fn every_job_in_one_answer(slurm: &Slurm, ids: &[JobId]) {
    let unknown: Vec<JobId> = (900_001..900_021).filter_map(JobId::new).collect();
    let many: Vec<JobId> = ids.iter().chain(&unknown).copied().collect();
    let answer = slurm.jobs(&many).await.unwrap();
    assert_eq!(
        (answer.missing.len(), answer.unlisted.len()),
        (16, 4),
        "{answer:?}"
    );
    assert_eq!(answer.unclear, []);
    for id in ids {
        let from_list: Vec<_> = answer
            .found
            .iter()
            .filter(|job| job.job_id == Some(*id))
            .collect();
        assert_eq!(from_list.len(), 1, "{id}");
        let alone = job(slurm, *id).await;
        assert_eq!(
            (&from_list[0].name, from_list[0].submit, from_list[0].uid),
            (&alone.name, alone.submit, alone.uid)
        );
    }
    let few = slurm.jobs(&[unknown[0], ids[0]]).await.unwrap();
    assert_eq!(
        (few.missing, few.found.len(), few.unclear),
        (vec![unknown[0]], 1, vec![])
    );
}

async fn cancelled_job(cluster: &Cluster, slurm: &Slurm, id: JobId) {
    cluster.run_as("alice", &["scancel", &id.to_string()]);
    assert!(ended(slurm, id).await.state.is(JobBaseState::Cancelled));
    let row = eventually("cancel in accounting", || async {
        slurm
            .accounting(&AccountingQuery::Jobs(vec![id]))
            .await
            .unwrap()
            .into_iter()
            .find(|row| row.ended())
    })
    .await;
    assert_eq!(
        (row.cancelled_by, row.state.base),
        (Some(20_001), Some(JobBaseState::Cancelled))
    );
}

async fn drained_node(cluster: &Cluster, slurm: &Slurm) {
    let drain = [
        "scontrol",
        "update",
        "NodeName=n1",
        "State=DRAIN",
        "Reason=Kill task failed: disk State=IDLE",
    ];
    cluster.run_as("root", &drain);
    let node = slurm
        .nodes()
        .await
        .unwrap()
        .into_iter()
        .find(|node| node.name == "n1")
        .unwrap();
    assert!(
        matches!(node.lifecycle(), Lifecycle::Draining | Lifecycle::Drained),
        "{}",
        node.state
    );
    assert_eq!(
        (node.reason.as_str(), node.reason_user.as_str()),
        ("Kill task failed: disk State=IDLE", "root")
    );
    assert!(node.reason_time.is_some());
    assert_eq!(
        NodeReason::lookup(&node.reason).map(|reason| reason.cause),
        Some("node_fault")
    );
}

/// The error reveals which daemon is unavailable.
async fn accounting_and_munge_down(cluster: &Cluster, slurm: &Slurm, known: JobId) {
    cluster.control("stop", "slurmdbd");
    let error = slurm
        .accounting(&AccountingQuery::Jobs(vec![known]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), "accounting_down", "{error}");
    assert_eq!(
        slurm.jobs(&[known]).await.unwrap().found.len(),
        1,
        "the controller goes on"
    );
    cluster.control("start", "slurmdbd");

    cluster.control("stop", "munge");
    assert_eq!(slurm.list_queue().await.unwrap_err().kind(), "munge_down");
    assert_eq!(slurm.jobs(&[known]).await.unwrap_err().kind(), "munge_down");
    assert_eq!(slurm.ping().await.unwrap_err().kind(), "munge_down");
    cluster.control("start", "munge");
    eventually("munge is back", || async { slurm.list_queue().await.ok() }).await;
}

/// An unavailable controller is a distinct error, never an empty response.
async fn controller_down(cluster: &Cluster, slurm: &Slurm) {
    cluster.control("kill", "slurmctld");
    let mut config = cluster.config();
    config.command_timeout = std::time::Duration::from_secs(3);
    let impatient = Slurm::new(config);
    let error = impatient.list_queue().await.unwrap_err();
    assert!(
        ["controller_down", "timed_out"].contains(&error.kind()),
        "{error}"
    );
    assert!(!slurm.ping().await.unwrap().up);
    cluster.control("start", "slurmctld");
    eventually("slurmctld is back", || async {
        slurm.list_queue().await.ok()
    })
    .await;
}
