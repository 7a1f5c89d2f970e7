//! GPUs by job: Prolog and Epilog as slurmd calls them, and a stand-in for dcgm-exporter that reads what they wrote. No GPU is there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use mesh_testkit::{DcgmExporter, script, wait_until};
use rustix::fs::{FlockOperation, flock};

use crate::site::{Site, TIMEOUT, call, hook, needs_root};

/// The hard stop, plus time for a busy machine to start a process.
const QUICKLY: Duration = Duration::from_millis(400);

/// A node with GPUs.
struct Node {
    site: Site,
    dcgm: DcgmExporter,
}

impl Node {
    async fn start(gpus: &[&str], order: &str) -> Self {
        let site = Site::start().await;
        let folder = site.folder.path().join("gpu");
        let node = Self {
            dcgm: DcgmExporter::start("n3.cluster.example.org", &folder, gpus).await,
            site,
        };
        node.map_to(&folder, order);
        node
    }

    fn map_to(&self, folder: &std::path::Path, order: &str) {
        let map = format!("dcgm:{}", folder.display());
        let keys = format!("gpu_map = {map:?}\ngpu_order = {order:?}");
        self.site.configure(&keys);
    }

    fn folder(&self) -> PathBuf {
        self.site.folder.path().join("gpu")
    }

    /// A call with the variables of Slurm 22.05 to 26.05 that matter here, on the second node of the job.
    fn hook(&self, context: &str, job: u32, gpus: &str) -> Command {
        let mut command = hook(&self.site.config());
        command
            .env("SLURM_SCRIPT_CONTEXT", context)
            .env("SLURM_JOB_ID", job.to_string())
            .env("SLURM_JOB_NODELIST", "n[2-3]")
            .env("SLURMD_NODENAME", "n3")
            .env("SLURM_JOB_GPUS", gpus)
            .env("CUDA_VISIBLE_DEVICES", gpus)
            .env("GPU_DEVICE_ORDINAL", gpus)
            .env("ROCR_VISIBLE_DEVICES", gpus);
        command
    }

    /// Runs the sender's part of a call, without the limit of time.
    fn send(&self, context: &str, job: u32, gpus: &str) {
        call(self.hook(context, job, gpus).arg("--send")).assert_quiet();
    }

    async fn wait_jobs(&self, expected: &[(&str, &[&str])]) {
        let expected: BTreeMap<String, Vec<String>> = expected
            .iter()
            .map(|(gpu, jobs)| {
                (
                    (*gpu).to_owned(),
                    jobs.iter().map(|job| (*job).to_owned()).collect(),
                )
            })
            .collect();
        wait_until(&format!("{expected:?}"), TIMEOUT, async || {
            self.dcgm.jobs() == expected
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_labels_the_gpus_of_a_job_while_it_runs() {
    let node = Node::start(&["0", "1", "2"], "").await;
    // A process that Slurm waits for, as in every other call.
    call(&mut node.hook("prolog_slurmd", 7, "0,2")).assert_quiet();
    node.wait_jobs(&[("0", &["7"]), ("1", &[]), ("2", &["7"])])
        .await;
    call(&mut node.hook("epilog_slurmd", 7, "0,2")).assert_quiet();
    // The GPUs are still there, also for releases that leave out those with an empty file.
    node.wait_jobs(&[("0", &[]), ("1", &[]), ("2", &[])]).await;
    let (_, text) = node.dcgm.scrape();
    assert!(
        text.contains("DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",") && text.contains("hpc_job=\"\"} 0"),
        "{text}"
    );

    // The job's first node rings for all of them.
    let mut first = node.hook("prolog_slurmd", 8, "1");
    call(first.env("SLURMD_NODENAME", "n2").arg("--send"));
    node.wait_jobs(&[("0", &[]), ("1", &["8"]), ("2", &[])])
        .await;
    node.site.wait_for(1).await;
    let rung: Vec<u32> = node
        .site
        .received()
        .iter()
        .map(|doorbell| doorbell.job_id)
        .collect();
    assert_eq!(rung, [8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_gpus_mig_devices_and_another_order_are_labelled() {
    let node = Node::start(&["0", "1", "3.7", "3.8"], "0:1,1:0,4:3.7,5:3.8").await;
    // With MPS.
    let shared = |context: &str, job: u32| {
        let mut command = node.hook(context, job, "0");
        command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20");
        call(command.arg("--send")).assert_quiet();
    };
    shared("prolog_slurmd", 7);
    shared("prolog_slurmd", 8);
    node.send("prolog_slurmd", 9, "4");
    node.wait_jobs(&[
        ("0", &[]),
        ("1", &["7", "8"]),
        ("3.7", &["9"]),
        ("3.8", &[]),
    ])
    .await;
    shared("epilog_slurmd", 7);
    node.send("epilog_slurmd", 9, "4");
    node.wait_jobs(&[("0", &[]), ("1", &["8"]), ("3.7", &[]), ("3.8", &[])])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sites_program_runs_beside_it_on_every_node() {
    let node = Node::start(&["0"], "").await;
    let program = node.site.folder.path().join("prolog");
    script(&program, "exit 3");
    let mut chained = node.hook("prolog_slurmd", 7, "0");
    let status = chained.arg("--chain").arg(&program).status().unwrap();
    assert_eq!(status.code(), Some(3));
    node.wait_jobs(&[("0", &["7"])]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_beginnings_and_ends_fail_no_scrape() {
    const JOBS_PER_GPU: u32 = 250;
    let gpus = ["0", "1", "2", "3"];
    let node = Node::start(&gpus, "").await;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Without a pause, which is more often than any Prometheus.
        let scrapes = scope.spawn(|| {
            let mut scrapes = 0;
            while !is_over.load(Ordering::Relaxed) {
                let jobs = node.dcgm.jobs();
                assert_eq!(jobs.len(), gpus.len(), "{jobs:?}");
                assert!(jobs.values().all(|jobs| jobs.len() <= 1), "{jobs:?}");
                scrapes += 1;
            }
            scrapes
        });
        let nodes = gpus.map(|gpu| {
            let node = &node;
            scope.spawn(move || {
                let first = gpu.parse::<u32>().unwrap() * 1000;
                for job in first..first + JOBS_PER_GPU {
                    for context in ["prolog_slurmd", "epilog_slurmd"] {
                        let call = call(node.hook(context, job, gpu).arg("--send"));
                        assert!(call.output.status.success(), "{call:?}");
                    }
                }
            })
        });
        for node in nodes {
            node.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(scrapes.join().unwrap() > 100);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_the_middle_leaves_files_that_can_be_read() {
    let node = Node::start(&["0", "1", "2", "3"], "").await;
    for job in 1..=100 {
        let mut sender = node
            .hook("prolog_slurmd", job, "0,1,2,3")
            .arg("--send")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(u64::from(job) * 60));
        sender.kill().unwrap();
        sender.wait().unwrap();
        let jobs = node.dcgm.jobs();
        assert_eq!(jobs.len(), 4, "{jobs:?}");
        let all = jobs.values().flatten();
        assert!(all.map(|id| id.parse::<u32>().unwrap()).all(|id| id <= job));
    }
    node.send("prolog_slurmd", 101, "0,1,2,3");
    let all: [(&str, &[&str]); 4] = ["0", "1", "2", "3"].map(|gpu| (gpu, &["101"][..]));
    node.wait_jobs(&all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_be_used_costs_no_job_and_no_time() {
    needs_root();
    let node = Node::start(&["0"], "").await;
    let at = |name: &str| node.site.folder.path().join(name);
    fs::write(at("file"), "").unwrap();
    fs::create_dir(at("held")).unwrap();
    let held = File::open(at("held")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let owned = at("of-another-user");
    fs::create_dir(&owned).unwrap();
    std::os::unix::fs::chown(&owned, Some(61_234), None).unwrap();
    for (folder, text) in [
        (at("absent/gpu"), "No such file"),
        (at("file"), "Not a directory"),
        ("/proc/gpu".into(), "No such file"),
        (at("held"), "another call"),
        (owned, "other users"),
    ] {
        node.map_to(&folder, "");
        // The fastest of several, because the machine may be busy.
        let calls = [(); 5].map(|()| call(&mut node.hook("prolog_slurmd", 7, "0")));
        for call in &calls {
            assert!(call.output.status.success(), "{call:?}");
        }
        let fastest = calls.iter().map(|call| call.took).min().unwrap();
        assert!(fastest < QUICKLY, "{}: {fastest:?}", folder.display());
        let sent = call(node.hook("prolog_slurmd", 7, "0").arg("--send"));
        sent.assert_stderr("GPUs of job 7 not mapped");
        assert!(sent.stderr().contains(text), "{text}: {sent:?}");
        // The doorbell of a first node is delivered as ever.
        let doorbell = node.site.received().len();
        let mut first = node.hook("prolog_slurmd", 7, "0");
        call(first.env("SLURMD_NODENAME", "n2").arg("--send"));
        node.site.wait_for(doorbell + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_key_nothing_is_written() {
    let node = Node::start(&["0"], "").await;
    node.site.configure("");
    node.send("prolog_slurmd", 7, "0");
    assert!(!node.folder().exists());
}
