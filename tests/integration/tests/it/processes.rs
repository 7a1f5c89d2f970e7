//! The services as processes of their own around one nats-server, as a site with a process manager runs them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use integration::{Cluster, ClusterOptions, Mesh, MeshOptions, Programs, wait_for};
use mesh_testkit::NatsServer;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

/// How long anything may take here.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Every service, in no order that matters.
pub const SERVICES: [&str; 6] = [
    "ingest",
    "node-watcher",
    "cost-engine",
    "ledger",
    "webhook-dispatcher",
    "pending-explainer",
];

/// The folder with the services' programs. `make test` has built them; `cargo test -p integration` alone has not.
async fn folder() -> PathBuf {
    static FOLDER: OnceCell<PathBuf> = OnceCell::const_new();
    FOLDER
        .get_or_init(async || {
            let folder = Programs::find().unwrap().smesh.parent().unwrap().to_owned();
            let mut cargo =
                Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
                .arg("build");
            if folder.ends_with("release") {
                cargo.arg("--release");
            }
            for service in SERVICES {
                cargo.args(["--package", service]);
            }
            let built = cargo.output().await.unwrap();
            assert!(
                built.status.success(),
                "{}",
                String::from_utf8_lossy(&built.stderr)
            );
            folder
        })
        .await
        .clone()
}

/// A running service.
pub struct Process {
    pub name: &'static str,
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Process {
    /// Starts a service of a configured mesh.
    pub async fn start(mesh: &Mesh, name: &'static str) -> Self {
        let data = mesh.data_dir();
        std::fs::create_dir_all(&data).unwrap();
        let log = data.join(format!("{name}.log"));
        let child = Command::new(folder().await.join(name))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .arg("--config")
            .arg(mesh.config())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            name,
            child,
            socket: data.join(format!("{name}.sock")),
            log,
        }
    }

    /// Status and body of one of its routes; 0 while it does not answer.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let output = Command::new("curl")
            .args([
                "--silent",
                "--max-time",
                "5",
                "--write-out",
                "\n%{http_code}",
                "--unix-socket",
            ])
            .arg(&self.socket)
            .arg(format!("http://mesh{path}"))
            .output()
            .await
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    /// Waits until `/readyz` gives this status, and returns what it says.
    pub async fn wait_ready(&self, status: u16) -> String {
        let what = format!("{} answers /readyz with {status}", self.name);
        let said = wait_for(&what, PATIENCE, async || {
            let (found, body) = self.get("/readyz").await;
            Ok((found == status).then_some(body))
        });
        match said.await {
            Ok(body) => body,
            Err(error) => panic!(
                "{error}: {:?}; log: {}",
                self.get("/readyz").await,
                self.said()
            ),
        }
    }

    /// Ends it with SIGTERM, as a process manager does: in time, and with status 0.
    pub async fn terminate(mut self) {
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid.cast_signed()))
            .expect("it runs");
        kill_process(pid, Signal::TERM).unwrap();
        // `drain_deadline` is 10 s.
        let ended = tokio::time::timeout(Duration::from_secs(12), self.child.wait()).await;
        let status = ended
            .unwrap_or_else(|_| panic!("{} does not end: {}", self.name, self.said()))
            .unwrap();
        assert!(
            status.success(),
            "{} ended with {status}: {}",
            self.name,
            self.said()
        );
    }

    fn said(&self) -> String {
        read(&self.log)
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A mesh of processes: `mesh.toml` for a nats-server of its own. Nothing runs yet.
pub async fn configure(cluster: &Cluster, nats: &NatsServer, more: &str) -> Mesh {
    let overlay = format!("[mesh.nats]\nurl = \"{}\"\n{more}", nats.url());
    Mesh::set_up(
        cluster,
        "mesh",
        &MeshOptions {
            overlay,
            ..MeshOptions::default()
        },
    )
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_service_runs_alone_waits_for_nats_and_drains() {
    let options = ClusterOptions {
        hooks: false,
        ..ClusterOptions::small("alone", 29_600)
    };
    let cluster = Cluster::start(&options).await.unwrap();
    let mut nats = NatsServer::start().await;
    let mesh = configure(&cluster, &nats, "").await;
    nats.kill();

    let mut processes = Vec::new();
    for name in SERVICES {
        processes.push(Process::start(&mesh, name).await);
    }
    for process in &processes {
        let problems = process.wait_ready(503).await;
        assert!(
            problems.contains(&format!("{}.nats", process.name)),
            "{}: {problems}",
            process.name
        );
        assert_eq!(process.get("/livez").await.0, 200, "{}", process.name);
    }
    nats.restart().await;
    for process in &processes {
        process.wait_ready(200).await;
        let (status, metrics) = process.get("/metrics").await;
        assert_eq!(status, 200, "{}", process.name);
        assert!(metrics.contains("# TYPE"), "{}: {metrics}", process.name);
    }
    for process in processes {
        process.terminate().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_never_saw_nats_ends_at_once_when_told() {
    let cluster = Cluster::start(&ClusterOptions {
        hooks: false,
        ..ClusterOptions::small("alone2", 29_800)
    })
    .await
    .unwrap();
    let mut nats = NatsServer::start().await;
    let mesh = configure(&cluster, &nats, "").await;
    nats.kill();
    for name in SERVICES {
        let process = Process::start(&mesh, name).await;
        process.wait_ready(503).await;
        process.terminate().await;
    }
}
