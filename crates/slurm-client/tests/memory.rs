//! Memory usage for a long queue: 50,000 jobs, each read in full. A separate process, since its peak is measured.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use mesh_testkit::script;
use slurm_client::{Config, Slurm};

const JOBS: u32 = 50_000;
/// The records are printed in 65 MB, and would be 150 MB as values.
const MAX_MIB: u64 = 64;

/// A line of `/proc/self/status`, in MiB.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_long_queue_are_read_without_holding_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (mut queue, mut records, mut texts) = (String::new(), String::new(), String::new());
    for id in 1..=JOBS {
        let columns = [
            &id.to_string(),
            &id.to_string(),
            &id.to_string(),
            "N/A",
            "RUNNING",
            "100",
            "160",
            "760",
            "1010",
            "cpu",
            "alice",
            "20001",
            "physics",
            "normal",
            "n1",
            "1",
            "1",
            "10:00",
            "None",
        ];
        writeln!(queue, "{}", columns.join("\x1f")).unwrap();
        writeln!(
            texts,
            "{id}@20001@(null)@/home/alice/run-{id}.sh@/home/alice@train {id}"
        )
        .unwrap();
        writeln!(
            records,
            "JobId={id} JobName=train {id} UserId=alice(20001) GroupId=alice(20001) MCS_label=N/A Priority=1010 Nice=0 Account=physics \
             QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 \
             RunTime=00:00:00 TimeLimit=00:10:00 SubmitTime=100 EligibleTime=100 AccrueTime=100 StartTime=160 EndTime=760 Deadline=N/A \
             SuspendTime=None SecsPreSuspend=0 LastSchedEval=100 Scheduler=Backfill Partition=cpu AllocNode:Sid=login:2754 \
             ReqNodeList=(null) ExcNodeList=(null) NodeList=n1 NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 TRES=cpu=1,mem=100M,node=1 \
             MinMemoryCPU=100M Features=(null) OverSubscribe=OK Licenses=(null) Network=(null) Command=/home/alice/run-{id}.sh \
             WorkDir=/home/alice StdErr=/home/alice/slurm-{id}.out StdIn=/dev/null StdOut=/home/alice/slurm-{id}.out Power={}",
            "x".repeat(300)
        )
        .unwrap();
    }
    for (name, text) in [
        ("queue", queue),
        ("records", records),
        ("texts", texts),
        ("slurm.conf", String::new()),
    ] {
        fs::write(path(name), text).unwrap();
    }
    let here = folder.path().display();
    let squeue = format!(
        "for format; do :; done\ncase \"$format\" in *%i*) exec cat {here}/queue ;; esac\n\
         separator=${{format#%A}}\nexec sed \"s/@/${{separator%%%U*}}/g\" {here}/texts"
    );
    // The format of a queue listing is the last argument.
    script(&path("squeue"), &squeue);
    script(&path("scontrol"), &format!("exec cat {here}/records"));
    let slurm = Slurm::new(Config {
        conf: Some(path("slurm.conf")),
        bin_dir: Some(folder.path().to_owned()),
        command_timeout: Duration::from_secs(120),
        ..Config::default()
    });

    // Measures the peak from here on.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let queue = slurm.list_queue().await.unwrap();
    assert_eq!(queue.rows.len(), JOBS as usize);
    let ids = queue.rows.iter().map(|row| row.job_id).collect();
    let mut parts = slurm.job_pages(ids).await.unwrap();
    assert_eq!(parts.unclear(), []);
    let mut next = 1;
    loop {
        let records = parts.next(500).unwrap();
        if records.is_empty() {
            break;
        }
        for record in records {
            assert_eq!(record.job_id.unwrap().get(), next);
            assert_eq!(record.name, format!("train {next}"));
            next += 1;
        }
    }
    assert_eq!(next, JOBS + 1);
    let took = status("VmHWM") - before;
    assert!(took <= MAX_MIB, "{took} MiB");
}
