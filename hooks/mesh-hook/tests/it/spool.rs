//! NATS unavailable, disk full, process killed: spooled doorbells are delivered later, in order, once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use mesh_testkit::wait_until;

use crate::site::{Site, TIMEOUT, call, hook, spooled};

#[tokio::test(flavor = "multi_thread")]
async fn doorbells_wait_on_disk_and_follow_in_order_when_nats_is_back() {
    let mut site = Site::start().await;
    site.nats.kill();
    site.call(1).assert_stderr("spooled");
    for job in 2..=40 {
        site.call(job).assert_quiet();
    }
    assert_eq!(site.spooled().len(), 40);
    site.nats.restart().await;
    // The stream is available a moment after the port.
    wait_until("a call flushes", TIMEOUT, async || {
        site.call(100);
        site.spooled().is_empty()
    })
    .await;
    site.wait_for(41).await;
    let (late, live): (Vec<_>, Vec<_>) = site
        .received()
        .into_iter()
        .partition(|doorbell| doorbell.spooled);
    let jobs: Vec<_> = late
        .iter()
        .map(|doorbell| doorbell.job_id)
        .filter(|job| *job < 100)
        .collect();
    assert_eq!(jobs, (1..=40).collect::<Vec<_>>());
    assert!(live.iter().any(|doorbell| doorbell.job_id == 100));
    let ids: std::collections::HashSet<_> = site.ids().into_iter().map(Option::unwrap).collect();
    assert_eq!(ids.len(), site.received().len(), "each doorbell once");
}

#[tokio::test(flavor = "multi_thread")]
async fn flush_empties_the_spool_for_a_person() {
    let mut site = Site::start().await;
    site.nats.kill();
    for job in 1..=100 {
        site.call(job);
    }
    assert_eq!(site.spooled().len(), 100);
    let failed = call(hook(&site.config()).arg("--flush"));
    assert_eq!(failed.output.status.code(), Some(1));
    site.nats.restart().await;
    site.flush().await;
    site.wait_for(100).await;
    assert_eq!(
        site.received()
            .iter()
            .map(|doorbell| doorbell.job_id)
            .collect::<Vec<_>>(),
        (1..=100).collect::<Vec<_>>()
    );
    assert!(site.spooled().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_hooks_at_once_lose_nothing_and_repeat_nothing() {
    let mut site = Site::start().await;
    site.nats.kill();
    let ring = |jobs: std::ops::Range<u32>| {
        let mut children: Vec<_> = jobs
            .map(|job| {
                hook(&site.config())
                    .env("SLURM_JOB_ID", job.to_string())
                    .spawn()
                    .unwrap()
            })
            .collect();
        assert!(
            children
                .iter_mut()
                .all(|child| child.wait().unwrap().success())
        );
    };
    ring(0..20);
    wait_until("all are spooled", TIMEOUT, async || {
        site.spooled().len() == 20
    })
    .await;
    let folder = site.spool();
    // A hook that was killed while writing leaves this file. It must not be delivered as a doorbell.
    fs::write(folder.join(".00000000000000000001-x-9.bell.tmp"), "half").unwrap();
    site.nats.restart().await;
    for round in 0..20 {
        let jobs = 20 + round * 10..30 + round * 10;
        let mut children: Vec<_> = jobs
            .map(|job| {
                hook(&site.config())
                    .env("SLURM_JOB_ID", job.to_string())
                    .spawn()
                    .unwrap()
            })
            .collect();
        assert!(
            children
                .iter_mut()
                .all(|child| child.wait().unwrap().success())
        );
    }
    // A sender may still run after its caller has returned.
    wait_until("all have arrived", TIMEOUT, async || {
        call(hook(&site.config()).arg("--flush"));
        site.received().len() >= 220
    })
    .await;
    let mut jobs: Vec<_> = site
        .received()
        .iter()
        .map(|doorbell| doorbell.job_id)
        .collect();
    jobs.sort_unstable();
    assert_eq!(jobs, (0..220).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_killed_at_any_moment_leaves_only_whole_doorbells_and_loses_none_it_called_safe() {
    let mut site = Site::start().await;
    site.nats.kill();
    let mut safe = Vec::new();
    for round in 0..60_u64 {
        // The sender, without the process that waits for it.
        let mut child = hook(&site.config())
            .arg("--send")
            .env("SLURM_JOB_ID", round.to_string())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(round * 150));
        child.kill().unwrap();
        let printed = child.wait_with_output().unwrap().stderr;
        if printed.contains(&0) {
            safe.push(u32::try_from(round).unwrap());
        }
    }
    let whole = site.spooled().len();
    site.nats.restart().await;
    site.flush().await;
    site.wait_for(whole).await;
    let received: Vec<u32> = site
        .received()
        .iter()
        .map(|doorbell| doorbell.job_id)
        .collect();
    assert_eq!(received.len(), whole);
    assert!(
        safe.iter().all(|job| received.contains(job)),
        "{safe:?} {received:?}"
    );
    assert!(!fs::read_dir(site.spool()).unwrap().any(|entry| {
        entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .ends_with(".bad")
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_drops_new_doorbells_and_reports_it() {
    let mut site = Site::start().await;
    site.configure("max_spool_bytes = 12288");
    site.nats.kill();
    for job in 1..=3 {
        site.call(job);
    }
    site.call(4).assert_stderr("is full");
    site.call(5).assert_quiet();
    assert_eq!(site.spooled().len(), 3);
}

/// A file system of 64 KiB, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Self {
        fs::create_dir_all(path).unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(path)
            .status()
            .unwrap();
        assert!(
            status.success(),
            "this test mounts a small file system: run it as root"
        );
        Self(path.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status()
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_one_line_and_status_0() {
    let mut site = Site::start().await;
    site.nats.kill();
    let disk = SmallDisk::mount(&site.spool());
    let ring = || {
        let printed: String = (1..=40)
            .map(|job| {
                let call = site.call(job);
                assert!(call.output.status.success());
                call.stderr()
            })
            .collect();
        printed
            .lines()
            .filter(|line| line.contains("No space left"))
            .count()
    };
    assert_eq!(ring(), 1, "of 40 calls one says so");
    let names = spooled(&disk.0);
    assert!(!names.is_empty(), "what fitted is kept");
    // Some room, then none again: a new state, reported again.
    fs::remove_file(disk.0.join(&names[0])).unwrap();
    assert_eq!(ring(), 1);
    let spooled_count = spooled(&disk.0).len();
    site.nats.restart().await;
    // Delivery frees room, even on a full disk.
    site.flush().await;
    site.wait_for(spooled_count).await;
}
