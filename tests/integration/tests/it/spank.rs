//! The SPANK plugin on each version of Slurm: it is built for it, reports what the user asked for, and `smesh doctor` knows whether Slurm
//! loads it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Cluster, ClusterOptions, Programs, Slurm as _, wait_for};
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
const NAME: &str = "meshspank";
const BATCH: u32 = u32::MAX - 4;
/// Tasks of a step: 1 exits with 3, 2 is killed, the others succeed.
const TASKS: &str = "case $SLURM_PROCID in 1) exit 3;; 2) kill -9 $$;; esac";

/// A report as the plugin sends it.
#[derive(Debug, PartialEq)]
struct Report {
    moment: String,
    job: u32,
    step: u32,
    uid: u32,
    /// Tasks of the step on the node, those that have ended, that have failed, and reports that nobody took.
    counts: [u32; 4],
    /// Task, exit code and signal.
    failures: Vec<[u32; 3]>,
}

impl Report {
    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |place: usize| -> u32 { words[place].parse().unwrap() };
        assert_eq!(words[0], "1", "{text}");
        let failures = words[11..].iter().map(|failure| {
            let parts = failure.split(':').map(|part| part.parse().unwrap());
            parts.collect::<Vec<u32>>().try_into().unwrap()
        });
        let mut failures: Vec<[u32; 3]> = failures.collect();
        failures.sort_unstable();
        Self {
            moment: words[1].to_owned(),
            job: number(3),
            step: number(4),
            uid: number(5),
            counts: [number(7), number(8), number(9), number(10)],
            failures,
        }
    }
}

/// A folder that slurmd and all users may enter.
fn folder(parent: &str) -> TempDir {
    let mut builder = tempfile::Builder::new();
    let folder = builder.prefix("mesh-spank-").tempdir_in(parent).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Builds the plugin into a folder, for the Slurm of `ROOT` or of this machine, or for another release.
fn build(into: &Path, other_release: bool) {
    let root = std::env::var("ROOT").unwrap_or_default();
    let headers = PathBuf::from(format!("{root}/usr/include/slurm"));
    let include = tempfile::tempdir().unwrap();
    let ours = include.path().join("slurm");
    fs::create_dir(&ours).unwrap();
    for entry in fs::read_dir(&headers).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; run `make setup`, or scripts/slurm-root for another version",
            headers.display()
        )
    }) {
        let path = entry.unwrap().path();
        symlink(&path, ours.join(path.file_name().unwrap())).unwrap();
    }
    if other_release {
        let version = ours.join("slurm_version.h");
        let text = fs::read_to_string(&version).unwrap();
        fs::remove_file(&version).unwrap();
        let text = format!(
            "{text}\n#undef SLURM_VERSION_NUMBER\n#define SLURM_VERSION_NUMBER SLURM_VERSION_NUM(21, 8, 0)\n"
        );
        fs::write(&version, text).unwrap();
    }
    let made = Command::new("make")
        .arg("-C")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hooks/spank"))
        .arg("--always-make")
        .arg(format!("OUT={}", into.display()))
        .arg(format!("CPPFLAGS=-I{}", include.path().display()))
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

/// What `smesh doctor` says of the plugin.
fn doctor(cluster: &Cluster, config: &Path) -> Value {
    let output = Command::new(Programs::find().unwrap().smesh)
        .args(["doctor", "--json"])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("SLURM_CONF", cluster.slurm_conf())
        .env("MESH_CONFIG", config)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let findings = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let mut findings = findings.filter(|finding: &Value| finding["check"] == "spank");
    findings.next().unwrap_or_else(|| panic!("{printed}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_reports_steps_and_the_doctor_knows_whether_slurm_loads_it() {
    let (run, plugin) = (folder("/run"), folder("/tmp"));
    let path = |name: &str| plugin.path().join(name);
    build(plugin.path(), false);
    let socket = run.path().join("spank.sock");
    let stack = format!(
        "optional {} socket={}\n",
        path("mesh_spank.so").display(),
        socket.display()
    );
    fs::write(path("plugstack.conf"), stack).unwrap();
    let conf = format!("PlugStackConfig={}\n", path("plugstack.conf").display());
    fs::write(path("extra.conf"), conf).unwrap();
    let receiver = UnixDatagram::bind(&socket).unwrap();
    receiver.set_nonblocking(true).unwrap();
    let options = ClusterOptions {
        name: NAME.to_owned(),
        hooks: false,
        knobs: vec![
            ("NODES", "1".into()),
            ("GPU_NODES", "0".into()),
            ("CLOUD", "0".into()),
            ("NODB", "1".into()),
            ("EXTRA_CONF", path("extra.conf").display().to_string()),
        ],
    };
    let cluster = Cluster::start(&options).await.unwrap();
    let mesh = format!(
        "[mesh]\ncluster = \"{NAME}\"\ndata_dir = {:?}\n[slurm]\nconf = {:?}\nbin_dir = {:?}\n",
        plugin.path(),
        cluster.slurm_conf(),
        cluster.commands()
    );
    fs::write(path("mesh.toml"), mesh).unwrap();

    let sbatch = async |options: &[&str], script: &str| -> u32 {
        let fixed = [
            "sbatch",
            "--wait",
            "--parsable",
            "--mem=10",
            "--output=/dev/null",
            "--chdir=/tmp",
        ];
        let wrap = format!("--wrap={script}");
        let command = [&fixed[..], options, &[wrap.as_str()]].concat();
        // sbatch --wait ends like the job.
        let output = cluster.run("alice", &command).await.unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let id = printed.trim().parse();
        id.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    };
    let script = format!("srun --quiet --ntasks=4 --overcommit sh -c '{TASKS}'; exit 7");
    let silent = sbatch(&[], "srun --quiet true").await;
    let asked = sbatch(&["--mesh-notify=start,exit,fail"], &script).await;
    let default = sbatch(&["--mesh-notify"], "true").await;
    let mut received = Vec::new();
    wait_for("the reports of all jobs", PATIENCE, async || {
        let mut bytes = [0; 4096];
        while let Ok(length) = receiver.recv(&mut bytes) {
            let text = std::str::from_utf8(&bytes[..length]).unwrap();
            received.push(Report::parse(text));
        }
        let is_last = |report: &Report| report.job == default && report.moment == "exit";
        Ok(received.iter().any(is_last).then_some(()))
    })
    .await
    .unwrap();
    let of = |job: u32, step: u32| {
        let own = received.iter();
        let own = own.filter(|report| (report.job, report.step) == (job, step));
        own.map(|report| {
            let failures = report.failures.clone();
            (report.moment.as_str(), report.counts, failures)
        })
        .collect::<Vec<_>>()
    };
    let failed = vec![[0, 7, 0]];
    assert_eq!(
        of(asked, BATCH),
        [
            ("start", [1, 0, 0, 0], Vec::new()),
            ("task", [1, 1, 1, 0], failed.clone()),
            ("exit", [1, 1, 1, 0], failed),
        ]
    );
    let step = of(asked, 0);
    let moments: Vec<&str> = step.iter().map(|(moment, ..)| *moment).collect();
    assert_eq!(moments, ["start", "task", "exit"]);
    assert_eq!(step[2], ("exit", [4, 4, 2, 0], vec![[1, 3, 0], [2, 0, 9]]));
    assert_eq!(of(default, BATCH), [("exit", [1, 1, 0, 0], Vec::new())]);
    assert!(
        received
            .iter()
            .all(|report| report.job != silent && report.uid == 20_001)
    );

    let version = cluster.fact("slurm_version").unwrap();
    let finding = doctor(&cluster, &path("mesh.toml"));
    assert_eq!(finding["grade"], "good", "{finding}");
    let expected = format!("is built for Slurm {version}");
    assert!(
        finding["found"].as_str().unwrap().contains(&expected),
        "{finding}"
    );

    // Slurm does not load a plugin of another release. As it is optional, jobs run without it.
    build(plugin.path(), true);
    let finding = doctor(&cluster, &path("mesh.toml"));
    assert_eq!(finding["grade"], "warning", "{finding}");
    let found = finding["found"].as_str().unwrap();
    assert!(
        found.contains("built for Slurm 21.08.0, which Slurm"),
        "{found}"
    );
    let job = sbatch(&[], "true").await;
    cluster
        .wait_state(&job.to_string(), &["COMPLETED"], PATIENCE)
        .await
        .unwrap();
    let refused = cluster
        .run("alice", &["sbatch", "--mesh-notify", "--wrap=true"])
        .await;
    assert!(!refused.unwrap().status.success(), "the plugin is loaded");
}
