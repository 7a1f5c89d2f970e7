//! Users and disks cannot delay or block a submission through the lines of Slurm's Lua plugins.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use integration::Slurm as _;
use mesh_testkit::LoopDisk;

use super::PATIENCE;
use super::doorbells::Doorbells;
use super::site::Site;

/// Size of the users' file system, as printed by `smesh hooks print`.
const USERS_BYTES: u64 = 4 << 20;

/// Alice writes 110 MB into the file of lines, once through a descriptor that she keeps open.
pub async fn a_user_fills_nothing_that_others_need(site: &Site, doorbells: &Doorbells) {
    let file = site.users_file();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o622);
    let cluster = &site.cluster;
    let fill = "exec 9>>\"$1\"; head -c 110000000 /dev/zero >&9 2>&1; head -c 110000000 /dev/zero >>\"$1\"; true";
    let filled = ["sh", "-c", fill, "sh", file.to_str().unwrap()];
    cluster.ask("alice", &filled).await.unwrap();
    let written = fs::metadata(&file).unwrap().len();
    assert!(
        (1..=USERS_BYTES).contains(&written),
        "alice wrote {written} bytes, and was to be stopped at {USERS_BYTES}"
    );
    // She cannot fill it with files either.
    let other = file.with_file_name("other");
    let create = ["sh", "-c", "! touch \"$1\"", "sh", other.to_str().unwrap()];
    cluster.ask("alice", &create).await.unwrap();

    // Submissions continue, and so do slurmctld's lines.
    let before = doorbells.count(|doorbell| doorbell.hook == "JobSubmit");
    let job = cluster.submit("bob", &[], "true").await.unwrap();
    cluster
        .wait_state(&job.to_string(), &["COMPLETED"], PATIENCE)
        .await
        .unwrap();
    doorbells
        .wait_for("a submission beside the full file", |_| {
            doorbells.count(|doorbell| doorbell.hook == "JobSubmit") > before
        })
        .await;
    // Her data was removed together with the lines, so the next job's line is recorded again.
    let job = cluster.submit("bob", &[], "true").await.unwrap();
    doorbells
        .wait_for("a line of a user", |doorbell| {
            doorbell.hook == "CliFilter" && doorbell.job_id == job
        })
        .await;
}

/// A site whose lines are on a disk, as in earlier versions. The lines are dropped, so that slurmctld and sbatch do not wait for the
/// disk.
pub async fn a_disk_that_hangs_holds_up_no_submission(site: &Site, nats: &str) {
    let lines = site.path("disk");
    let mut disk = LoopDisk::mount(&site.path("image"), &lines);
    let users = lines.join("users");
    fs::create_dir(&users).unwrap();
    let former = [
        (lines.join("job_submit.lines"), 0o600),
        (lines.join("cli_filter.lines"), 0o622),
        (users.join("cli_filter.lines"), 0o622),
    ];
    for (path, mode) in &former {
        fs::write(path, "").unwrap();
        mode_of(path, *mode);
    }
    mode_of(&lines, 0o711);
    mode_of(&users, 0o711);
    site.configure_lines(nats, &lines);
    site.install().await;
    let config = site.path("hook.toml");
    let flushed = site
        .hooks(&["flush", "--hook-config", config.to_str().unwrap()])
        .await;
    let printed = String::from_utf8_lossy(&flushed.stdout);
    assert!(printed.contains("not on a tmpfs"), "{flushed:?}");
    assert!(former.iter().all(|(path, _)| !path.exists()));

    disk.freeze();
    // The submission returns while the disk is frozen, so it does not wait for it.
    let submitted = site.cluster.submit("alice", &["--hold"], "true").await;
    disk.thaw();
    let job = submitted.unwrap();
    site.cluster
        .ask("root", &["scancel", &job.to_string()])
        .await
        .unwrap();
}

fn mode_of(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
