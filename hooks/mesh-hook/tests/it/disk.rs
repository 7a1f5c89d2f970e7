//! Faulty disks: one that hangs, one whose machine loses power.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use mesh_hook::slots::MAX_CONCURRENT_CALLS;
use mesh_testkit::{LoopDisk, wait_until};

use crate::site::{Site, TIMEOUT, call, hook, spooled};

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_disk_blocks_no_caller() {
    let mut site = Site::start().await;
    let mut disk = LoopDisk::mount(&site.folder.path().join("image"), &site.spool());
    site.nats.kill();
    disk.freeze();
    let calls: Vec<_> = (1..=5).map(|_| call(&mut hook(&site.config()))).collect();
    disk.thaw();
    for call in &calls {
        assert!(call.output.status.success(), "{call:?}");
    }
    // The calls returned while the disk was frozen, so they did not wait for it: a process that does cannot even be killed.
    wait_until(
        "they are spooled once the disk answers",
        TIMEOUT,
        async || site.spooled().len() == 5,
    )
    .await;
}

/// Number of senders of a configuration.
pub fn senders(config: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
    let config = config.to_str().unwrap();
    lines
        .filter(|line| {
            let line = String::from_utf8_lossy(line);
            line.contains("--send") && line.contains(config)
        })
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_on_a_disk_that_hangs_do_not_pile_up() {
    let max = usize::try_from(MAX_CONCURRENT_CALLS).unwrap();
    let mut site = Site::start().await;
    let mut disk = LoopDisk::mount(&site.folder.path().join("image"), &site.spool());
    site.nats.kill();
    disk.freeze();
    let config = &site.config();
    let calls = || (0..10).all(|_| call(&mut hook(config)).output.status.success());
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..32).map(|_| scope.spawn(calls)).collect();
        threads.into_iter().all(|thread| thread.join().unwrap())
    });
    wait_until("only so many are left", TIMEOUT, async || {
        senders(config) <= max
    })
    .await;
    let left = senders(config);
    disk.thaw();
    assert!(all, "status 0");
    assert_eq!(left, max);
    wait_until("they end", TIMEOUT, async || senders(config) == 0).await;
    assert_eq!(site.spooled().len(), max);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_sender_holds_no_descriptors_of_slurm() {
    let mut site = Site::start().await;
    let mut disk = LoopDisk::mount(&site.folder.path().join("image"), &site.spool());
    site.nats.kill();
    disk.freeze();
    let config = site.config();
    let read: Vec<_> = [&["--chain", "/bin/true"][..], &[]]
        .into_iter()
        .map(|arguments| {
            // A descriptor beyond the standard streams. Slurm or a site's wrapper may read it until all copies are closed.
            let mut shell = Command::new("/bin/sh");
            shell
                .args(["-c", "exec 7>&1 1>/dev/null; exec \"$@\"", "sh"])
                .arg(env!("CARGO_BIN_EXE_mesh-hook"))
                .arg("--config")
                .arg(&config)
                .args(arguments)
                .env("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld")
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let mut child = shell.spawn().unwrap();
            let mut pipe = child.stdout.take().unwrap();
            let (done, closed) = std::sync::mpsc::channel();
            thread::spawn(move || done.send(pipe.read_to_end(&mut Vec::new()).is_ok()));
            let status = child.wait().unwrap();
            (status.success(), closed.recv_timeout(TIMEOUT))
        })
        .collect();
    let waiting = senders(&config);
    disk.thaw();
    assert_eq!(read, [(true, Ok(true)), (true, Ok(true))]);
    assert_eq!(waiting, 2, "they wait for the disk");
    wait_until("both are spooled", TIMEOUT, async || {
        site.spooled().len() == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_loses_no_doorbell_reported_as_stored() {
    let mut site = Site::start().await;
    let image = site.folder.path().join("image");
    let disk = LoopDisk::mount(&image, &site.spool());
    // A folder that does not exist yet: its name must survive, too.
    let folder = site.spool().join("bells");
    site.configure_spool(&folder, "");
    site.nats.kill();
    let mut safe = 0;
    for job in 1..=12 {
        let printed = site.call(job).output.stderr;
        safe += usize::from(printed.contains(&0));
    }
    assert_eq!(safe, 12);
    disk.lose_power();
    disk.remount(&image);
    assert_eq!(spooled(&folder).len(), 12);
    site.nats.restart().await;
    site.flush().await;
    site.wait_for(12).await;
    let jobs: Vec<_> = site
        .received()
        .iter()
        .map(|doorbell| doorbell.job_id)
        .collect();
    assert_eq!(jobs, (1..=12).collect::<Vec<_>>());
}
