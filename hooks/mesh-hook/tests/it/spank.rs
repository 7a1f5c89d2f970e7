//! The SPANK plugin in a real Slurm, and `mesh-hook --listen`: what the user asked for arrives exactly, and no step fails or waits.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mesh_events::proto::mesh::hook::v1::{Doorbell, StepReport};
use mesh_testkit::{SlurmCluster, wait_until};
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::site::{Site, TIMEOUT};

const NAME: &str = "testbed";
const BATCH: u32 = u32::MAX - 4;
/// Tasks of a step: 1 exits with 3, 2 is killed, the others succeed.
const TASKS: &str = "case $SLURM_PROCID in 1) exit 3;; 2) kill -9 $$;; esac";

/// A cluster whose slurmds and commands load the plugin, built for the Slurm of this machine.
struct Steps {
    cluster: SlurmCluster,
    socket: PathBuf,
    /// The plugin takes only a path below /run.
    _run: TempDir,
    plugin: TempDir,
}

struct Listener(Child);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Listener {
    fn start(site: &Site, socket: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_mesh-hook"))
            .env_clear()
            .arg("--config")
            .arg(site.config())
            .arg("--listen")
            .arg(socket)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(status.success());
    }
}

impl Steps {
    fn start() -> Self {
        let run = tempfile::Builder::new()
            .prefix("mesh-spank-")
            .tempdir_in("/run")
            .unwrap();
        let plugin = tempfile::Builder::new()
            .prefix("mesh-spank-")
            .tempdir_in("/tmp")
            .unwrap();
        for folder in [run.path(), plugin.path()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let output = plugin.path().join("output");
        fs::create_dir(&output).unwrap();
        fs::set_permissions(&output, fs::Permissions::from_mode(0o777)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spank");
        let made = Command::new("make")
            .arg("-C")
            .arg(source)
            .arg(format!("OUT={}", plugin.path().display()))
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}\nwithout Slurm's headers run `make setup` first",
            String::from_utf8_lossy(&made.stderr)
        );
        let socket = run.path().join("spank.sock");
        let (stack, conf) = (
            plugin.path().join("plugstack.conf"),
            plugin.path().join("spank.conf"),
        );
        fs::write(
            &stack,
            format!(
                "optional {}/mesh_spank.so socket={}\n",
                plugin.path().display(),
                socket.display()
            ),
        )
        .unwrap();
        fs::write(&conf, format!("PlugStackConfig={}\n", stack.display())).unwrap();
        let conf = conf.display().to_string();
        let knobs = [
            ("NODES", "2"),
            ("GPU_NODES", "0"),
            ("CLOUD", "0"),
            ("NODB", "1"),
            ("EXTRA_CONF", conf.as_str()),
        ];
        Self {
            cluster: SlurmCluster::up(NAME, &knobs),
            socket,
            _run: run,
            plugin,
        }
    }

    fn sbatch(&self, arguments: &[&str], script: &str) -> u32 {
        let wrap = format!("--wrap={script}");
        let mut command = vec!["sbatch", "--parsable", "--mem=10", "--output=/dev/null"];
        command.extend(arguments);
        command.push(&wrap);
        self.cluster.run_as("alice", &command).parse().unwrap()
    }

    /// Runs nine steps in a job, each of whose task exits with 3, and returns the median of how long they took.
    fn srun(&self, option: &str) -> Duration {
        let output = self.plugin.path().join("output/steps");
        let script = format!(
            "for n in 1 2 3 4 5 6 7 8 9; do began=$(date +%s%N); srun --quiet {option} sh -c 'exit 3' 2>/dev/null; \
             echo $? $((($(date +%s%N) - began) / 1000)); done"
        );
        let wrap = format!("--wrap={script}");
        let into = format!("--output={}", output.display());
        let command = ["sbatch", "--wait", "--mem=10", "--nodes=1", &into, &wrap];
        self.cluster.run_as("alice", &command);
        let printed = fs::read_to_string(output).unwrap();
        let steps = printed.lines().map(|line| {
            let (exit_code, took) = line.split_once(' ').unwrap();
            assert_eq!(exit_code, "3", "{option}: {printed}");
            Duration::from_micros(took.parse().unwrap())
        });
        let mut took: Vec<Duration> = steps.collect();
        took.sort_unstable();
        assert_eq!(took.len(), 9, "{printed}");
        took[4]
    }
}

/// Slurm's of another root would need a plugin of its own.
fn is_other_slurm() -> bool {
    !std::env::var("ROOT").unwrap_or_default().is_empty()
}

fn of(doorbells: &[Doorbell], job: u32, step: u32) -> Vec<StepReport> {
    let own = doorbells.iter().filter(|doorbell| doorbell.job_id == job);
    own.filter_map(|doorbell| doorbell.step.clone())
        .filter(|report| report.step_id == step)
        .collect()
}

fn ends(report: &StepReport) -> Vec<(u32, u32, u32)> {
    let ends = report.failures.iter();
    let mut ends: Vec<_> = ends.map(|end| (end.task, end.code, end.signal)).collect();
    ends.sort_unstable();
    ends
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_arrive_exactly_and_no_step_waits_or_fails() {
    if is_other_slurm() {
        return;
    }
    let site = Site::start().await;
    let steps = block_in_place(Steps::start);
    let listener = Listener::start(&site, &steps.socket);
    wait_until("the socket is there", TIMEOUT, async || {
        steps.socket.exists()
    })
    .await;
    let mode = fs::metadata(&steps.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // What the user asks for is reported, of the batch script and of the steps in it, which inherit the option.
    let script = format!("srun --quiet --ntasks=4 sh -c '{TASKS}'; exit 7");
    let all = [
        "--mesh-notify=start,exit,fail",
        "--nodes=1",
        "--ntasks=4",
        "--overcommit",
    ];
    let asked = block_in_place(|| steps.sbatch(&all, &script));
    let silent = block_in_place(|| steps.sbatch(&["--nodes=1"], &script));
    let failing = block_in_place(|| steps.sbatch(&["--mesh-notify=fail"], "exit 0"));
    let default = block_in_place(|| steps.sbatch(&["--mesh-notify"], "true"));
    // A misspelt wish is ignored; the job runs.
    let misspelt = block_in_place(|| steps.sbatch(&["--mesh-notify=nonsense"], "true"));
    wait_until("the reports of all jobs", TIMEOUT, async || {
        let received = site.received();
        of(&received, asked, BATCH).len() == 3
            && of(&received, asked, 0).len() == 3
            && of(&received, default, BATCH).len() == 1
    })
    .await;
    let is_over = |job: u32| {
        let job = job.to_string();
        let ask = ["squeue", "-h", "-t", "all", "-o", "%T", "-j", &job];
        let state = block_in_place(|| steps.cluster.run_as("root", &ask));
        ["COMPLETED", "FAILED"].contains(&state.as_str())
    };
    wait_until("all jobs are over", TIMEOUT, async || {
        [silent, failing, misspelt].into_iter().all(is_over)
    })
    .await;
    let received = site.received();
    let moments = |job, step| -> Vec<String> {
        let reports = of(&received, job, step).into_iter();
        reports.map(|report| report.moment).collect()
    };
    assert_eq!(moments(asked, BATCH), ["start", "task", "exit"]);
    assert_eq!(moments(asked, 0), ["start", "task", "exit"]);
    assert_eq!(moments(default, BATCH), ["exit"]);
    for job in [silent, failing, misspelt] {
        assert!(received.iter().all(|doorbell| doorbell.job_id != job));
    }
    let batch = of(&received, asked, BATCH).pop().unwrap();
    assert_eq!((batch.tasks, batch.ended, batch.failed), (1, 1, 1));
    assert_eq!(ends(&batch), [(0, 7, 0)]);
    let step = of(&received, asked, 0).pop().unwrap();
    assert_eq!((step.tasks, step.ended, step.failed), (4, 4, 2));
    assert_eq!(ends(&step), [(1, 3, 0), (2, 0, 9)]);
    assert_eq!((step.uid, step.lost), (20_001, 0));

    // A user can neither write to the socket nor pass for root.
    let forge = format!(
        "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '{}')",
        steps.socket.display()
    );
    let forged = block_in_place(|| steps.cluster.attempt("alice", &["python3", "-c", &forge]));
    assert!(
        forged.unwrap_err().contains("Permission"),
        "only root reports"
    );

    // A listener that hangs, none, a full socket, and a path that is none: the step runs as without the option.
    let usual = block_in_place(|| steps.srun(""));
    let asked = "--mesh-notify=start,exit,fail";
    let mut medians = Vec::new();
    listener.signal("-STOP");
    medians.push(("hangs", block_in_place(|| steps.srun(asked))));
    listener.signal("-CONT");
    drop(listener);
    medians.push(("is gone", block_in_place(|| steps.srun(asked))));
    fs::remove_file(&steps.socket).unwrap();
    medians.push(("absent", block_in_place(|| steps.srun(asked))));
    let full = UnixDatagram::bind(&steps.socket).unwrap();
    fill(&steps.socket);
    medians.push(("full", block_in_place(|| steps.srun(asked))));
    drop(full);
    fs::remove_file(&steps.socket).unwrap();
    fs::write(&steps.socket, "").unwrap();
    medians.push(("a file", block_in_place(|| steps.srun(asked))));
    fs::remove_file(&steps.socket).unwrap();
    std::os::unix::fs::symlink(&steps.socket, &steps.socket).unwrap();
    medians.push(("a loop", block_in_place(|| steps.srun(asked))));
    fs::remove_file(&steps.socket).unwrap();
    let listener = Listener::start(&site, &steps.socket);
    wait_until("the socket is there", TIMEOUT, async || {
        steps.socket.exists()
    })
    .await;
    medians.push(("works", block_in_place(|| steps.srun(asked))));
    show(usual, &medians);
    for (what, took) in medians {
        // A step that waited for the socket would wait until somebody reads from it.
        assert!(
            took < usual + Duration::from_millis(500),
            "{what}: {took:?}, without the option {usual:?}"
        );
    }
    drop(listener);
}

#[allow(clippy::print_stderr, reason = "for the reader of the test's output")]
fn show(usual: Duration, medians: &[(&str, Duration)]) {
    eprintln!("a step takes {usual:?}; with --mesh-notify: {medians:?}");
}

/// Writes until nothing more fits.
fn fill(socket: &Path) {
    let writer = UnixDatagram::unbound().unwrap();
    writer.set_nonblocking(true).unwrap();
    while writer.send_to(b"x", socket).is_ok() {}
}

/// The path of a report from the socket to the stream, without Slurm.
#[tokio::test(flavor = "multi_thread")]
async fn reports_wait_in_the_spool_while_nats_is_gone() {
    let mut site = Site::start().await;
    let socket = site.folder.path().join("spank.sock");
    let _listener = Listener::start(&site, &socket);
    wait_until("the socket is there", TIMEOUT, async || socket.exists()).await;
    let writer = UnixDatagram::unbound().unwrap();
    let report = |job: u32| format!("1 exit 1763760000123 {job} 0 20001 0 1 1 0 0");
    // As fast as it can: the listener takes them all, and delivers in windows.
    for job in 1..=500 {
        writer.send_to(report(job).as_bytes(), &socket).unwrap();
    }
    // Each is synced to disk, and once more in the spool if the disk is slow.
    wait_until("all reports", TIMEOUT * 3, async || {
        site.received().len() >= 500
    })
    .await;
    writer.send_to(b"no report", &socket).unwrap();
    site.nats.kill();
    writer.send_to(report(501).as_bytes(), &socket).unwrap();
    wait_until("a report is spooled", TIMEOUT, async || {
        !site.spooled().is_empty()
    })
    .await;
    site.nats.restart().await;
    wait_until("the report arrives", TIMEOUT, async || {
        site.received()
            .iter()
            .any(|doorbell| doorbell.job_id == 501)
    })
    .await;
    let mut jobs: Vec<u32> = site.received().iter().map(|one| one.job_id).collect();
    jobs.sort_unstable();
    jobs.dedup();
    assert_eq!(jobs, (1..=501).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_loses_no_report() {
    const REPORTS: usize = 500;
    let site = Site::start().await;
    let socket = site.folder.path().join("spank.sock");
    let mut listener = Listener::start(&site, &socket);
    wait_until("the socket is there", TIMEOUT, async || socket.exists()).await;
    // It accepts connections and answers nothing, so each window takes its time and the others wait.
    site.nats.pause();
    let writer = UnixDatagram::unbound().unwrap();
    for job in 1..=REPORTS {
        let report = format!("1 exit 1763760000123 {job} 0 20001 0 1 1 0 0");
        writer.send_to(report.as_bytes(), &socket).unwrap();
    }
    listener.signal("-TERM");
    let mut status = None;
    wait_until("the listener has ended", TIMEOUT, async || {
        status = listener.0.try_wait().unwrap();
        status.is_some()
    })
    .await;
    assert!(status.unwrap().success(), "{status:?}");
    assert_eq!(site.spooled().len(), REPORTS);
    site.nats.resume();
}
