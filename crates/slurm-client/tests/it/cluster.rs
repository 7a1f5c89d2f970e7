//! A real Slurm cluster for this test binary, and clients for it.

use std::time::{Duration, Instant};

use mesh_testkit::SlurmCluster;
use slurm_client::{Config, RestUrl, Slurm, Source};
use slurm_types::JobId;

/// A running cluster; stopped and removed when dropped.
pub struct Cluster(SlurmCluster);

impl Cluster {
    /// Two nodes, no cloud nodes.
    pub fn up() -> Self {
        let knobs = [
            ("NODES", "2"),
            ("GPU_NODES", "1"),
            ("CLOUD", "0"),
            ("MINJOBAGE", "300"),
            ("REST", "1"),
        ];
        Self(SlurmCluster::up("client", &knobs))
    }

    pub fn config(&self) -> Config {
        Config {
            conf: Some(self.0.conf()),
            bin_dir: Some(self.0.commands()),
            // On a busy machine a command may take longer than its default.
            command_timeout: Duration::from_secs(120),
            ..Config::default()
        }
    }

    /// slurmrestd's socket.
    pub fn socket(&self) -> RestUrl {
        RestUrl::Unix(self.0.dir().join("rest/socket"))
    }

    /// slurmrestd's TCP address.
    pub fn tcp(&self) -> RestUrl {
        let port = self.0.fact("port_slurmrestd");
        RestUrl::Tcp(format!("http://127.0.0.1:{port}"))
    }

    /// A client of the same Slurm, through slurmrestd with a token.
    pub fn rest(&self, rest_url: RestUrl) -> Slurm {
        let token = self.run_as(
            "root",
            &["scontrol", "token", "username=root", "lifespan=3600"],
        );
        let token_file = self.0.dir().join("token");
        mesh_testkit::write_private(&token_file, token);
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

    /// Runs a command as that user and returns its output.
    pub fn run_as(&self, user: &str, command: &[&str]) -> String {
        self.0.run_as(user, command)
    }

    /// Submits `--wrap script` with these options.
    pub fn submit(&self, user: &str, options: &[&str], script: &str) -> JobId {
        let fixed = ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null"];
        let id = self.run_as(user, &[&fixed[..], options, &["--wrap", script]].concat());
        id.parse().unwrap()
    }

    /// Starts, stops, pauses, … a daemon.
    pub fn control(&self, action: &str, daemon: &str) {
        self.0.ctl(action, daemon);
    }
}

/// Polls until there is a result.
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
