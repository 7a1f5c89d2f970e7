//! Memory of ingest with a long queue: it holds neither Slurm's whole answers nor all facts derived from them.
//!
//! Ingest runs as a separate process, because its peak is measured. Slurm's answers are generated, since such a queue would keep slurmctld
//! busy on a small machine.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use futures_util::TryStreamExt as _;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_testkit::long_queue::{LongQueue, Phase};
use mesh_testkit::{NatsServer, wait_for};

use crate::mesh::DEADLINE;

const FEW: u32 = 500;
const MANY: u32 = 100_000;
/// Their rows, records and events as values would take more than 5,000 bytes a job, and squeue and scontrol print 1,300.
const MAX_PEAK: u64 = 150 << 20;

const ENDED: u32 = 10_000;
/// What lookups of 1,000 jobs and of the usage of 500 take, with their answers.
const MAX_BATCHES: u64 = 24 << 20;
/// What an ended run takes until its usage is published: [`MANY`] stay below [`MAX_PEAK`].
const MAX_PER_ENDED_RUN: u64 = 1_024;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Process {
    /// Returns a field of its `/proc` status, in bytes.
    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1_024
    }
}

/// Starts ingest on a simulated Slurm.
fn start(nats: &NatsServer, folder: &Path, settings: &str) -> Process {
    let config = folder.join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"testbed\"\ndata_dir = {folder:?}\n[mesh.nats]\nurl = \"{}\"\n[slurm]\nconf = \"/dev/null\"\nbin_dir = {folder:?}\n\
         command_timeout = \"60s\"\n[ingest]\npoll_interval = \"500ms\"\nmax_poll_interval = \"500ms\"\n{settings}\n",
        nats.url()
    );
    fs::write(&config, text).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_ingest"))
        .arg("--config")
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Process(child.unwrap())
}

/// Waits until there is one such event of each job.
async fn published(nats: &NatsServer, kind: &str, jobs: u32) {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    wait_for(kind, 4 * DEADLINE, async || {
        let stream = jetstream.get_stream(SLURM_EVENTS).await.ok()?;
        let subjects = stream.info_with_subjects(format!("slurm.testbed.job.{kind}.>"));
        let counts: Vec<(String, usize)> = subjects.await.ok()?.try_collect().await.ok()?;
        let count: usize = counts.iter().map(|(_, count)| count).sum();
        (count == jobs as usize).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_that_changes_at_once_is_not_held() {
    let nats = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let slurm = LongQueue::new(folder.path());
    let waits = |_| Phase::Pending("Resources");
    slurm.show("few", FEW, waits);
    let ingest = start(&nats, folder.path(), "accounting = false");
    published(&nats, "baseline", FEW).await;
    let environment = fs::read(format!("/proc/{}/environ", ingest.0.id())).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("MALLOC_ARENA_MAX=1"));
    slurm.show("many", MANY, waits);
    published(&nats, "submitted", MANY - FEW).await;
    slurm.show("running", MANY, |_| Phase::Running);
    published(&nats, "started", MANY).await;
    // Without the program itself, which is 25 MB in release and four times as large here.
    let peak = ingest.status("VmHWM") - ingest.status("RssFile");
    assert!(peak <= MAX_PEAK, "{} MiB", peak >> 20);
}

/// Fewer, because 1,000 are looked up after a poll, which takes half an hour for [`MANY`].
#[tokio::test(flavor = "multi_thread")]
async fn ends_that_only_accounting_has_are_not_held() {
    let nats = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let slurm = LongQueue::new(folder.path());
    slurm.show("running", ENDED, |_| Phase::Running);
    let ingest = start(&nats, folder.path(), "");
    published(&nats, "baseline", ENDED).await;
    let held = || ingest.status("VmHWM") - ingest.status("RssFile");
    let before = held();
    slurm.complete_all();
    published(&nats, "completed", ENDED).await;
    published(&nats, "updated", ENDED).await;
    let grown = held().saturating_sub(before);
    assert!(
        grown <= MAX_BATCHES + u64::from(ENDED) * MAX_PER_ENDED_RUN,
        "{} KiB",
        grown >> 10
    );
}
