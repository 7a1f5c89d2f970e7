//! A real Slurm cluster for this test binary, made by `tests/cluster/up`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use slurm_client::{Config, RestUrl, Slurm, Source};
use slurm_types::JobId;

/// A running cluster; taken down and removed when dropped.
pub struct Cluster {
    dir: PathBuf,
    _folder: tempfile::TempDir,
}

impl Cluster {
    /// Two nodes, no cloud nodes. The script ends it, too, should this process be killed (`OWNER`).
    pub fn up(base_port: u16) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("slurm-client-")
            .tempdir_in("/tmp")
            .unwrap();
        let dir = folder.path().join("c");
        let cluster = Self {
            dir,
            _folder: folder,
        };
        make_enterable(cluster._folder.path());
        let output = Command::new(script("up"))
            .args([cluster.dir.as_os_str(), base_port.to_string().as_ref()])
            .envs([
                ("NODES", "2"),
                ("GPU_NODES", "1"),
                ("CLOUD", "0"),
                ("CLUSTER", "client"),
                ("MINJOBAGE", "300"),
                ("REST", "1"),
            ])
            .env("OWNER", std::process::id().to_string())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "no Slurm cluster: {}\nwithout Slurm run `make setup` first",
            String::from_utf8_lossy(&output.stderr)
        );
        cluster
    }

    pub fn config(&self) -> Config {
        Config {
            conf: Some(self.dir.join("etc/slurm.conf")),
            bin_dir: Some(self.dir.join("commands")),
            ..Config::default()
        }
    }

    /// slurmrestd's socket.
    pub fn socket(&self) -> RestUrl {
        RestUrl::Unix(self.dir.join("rest/socket"))
    }

    /// Where slurmrestd listens for TCP.
    pub fn tcp(&self) -> RestUrl {
        let facts = std::fs::read_to_string(self.dir.join("facts")).unwrap();
        let port = facts
            .lines()
            .find_map(|line| line.strip_prefix("port_slurmrestd="));
        RestUrl::Tcp(format!("http://127.0.0.1:{}", port.unwrap()))
    }

    /// The same Slurm, asked through slurmrestd with a token.
    pub fn rest(&self, rest_url: RestUrl) -> Slurm {
        let token = self.run_as(
            "root",
            &["scontrol", "token", "username=root", "lifespan=3600"],
        );
        assert!(token.status.success(), "{token:?}");
        let token_file = self.dir.join("token");
        std::fs::write(&token_file, token.stdout).unwrap();
        Slurm::new(Config {
            source: Source::Rest,
            rest_url,
            token_file: Some(token_file),
            rest_user: Some("root".to_owned()),
            ..self.config()
        })
    }

    pub fn slurm(&self) -> Slurm {
        Slurm::new(self.config())
    }

    /// Runs a command as that user and gives its output.
    pub fn run_as(&self, user: &str, command: &[&str]) -> Output {
        Command::new(script("as"))
            .arg(&self.dir)
            .arg(user)
            .args(command)
            .current_dir("/tmp")
            .output()
            .unwrap()
    }

    /// Submits `--wrap script` with these options.
    pub fn submit(&self, user: &str, options: &[&str], script: &str) -> JobId {
        let fixed = ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null"];
        let output = self.run_as(user, &[&fixed[..], options, &["--wrap", script]].concat());
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "sbatch {options:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        stdout.trim().parse().unwrap()
    }

    /// Starts, stops, pauses, … a daemon.
    pub fn control(&self, action: &str, daemon: &str) {
        let output = Command::new(script("ctl"))
            .arg(&self.dir)
            .args([action, daemon])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "ctl {action} {daemon}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down = Command::new(script("down"))
            .arg(&self.dir)
            .arg("--wipe")
            .output();
        if let Ok(output) = down
            && !output.status.success()
        {
            eprintln!(
                "take the cluster down: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

/// Asks until the answer is there.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited too long: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/cluster")
        .join(name)
}

/// slurmctld and the users run as others.
fn make_enterable(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}
