//! One real Slurm cluster for all tests of this binary, and the configuration of what submits to it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_testkit::{SlurmCluster, script, wait_for};
use tokio::sync::OnceCell;
use tokio::task::block_in_place;

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();

pub struct Cluster {
    slurm: SlurmCluster,
    /// Where jobs write: a folder of everybody.
    pub results: PathBuf,
    /// Configuration of `trigger-submitter`.
    pub config: PathBuf,
    /// Folder of `trigger-submitter`.
    pub program_dir: PathBuf,
}

pub async fn shared() -> &'static Cluster {
    CLUSTER
        .get_or_init(async || block_in_place(Cluster::up))
        .await
}

impl Cluster {
    fn up() -> Self {
        let root = std::env::var("ROOT").unwrap_or_default();
        let knobs = [("CLOUD", "0"), ("ROOT", root.as_str())];
        let slurm = SlurmCluster::up("trigger", &knobs);
        let results = slurm.dir().join("results");
        std::fs::create_dir(&results).unwrap();
        std::fs::set_permissions(&results, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let beside = Path::new(env!("CARGO_BIN_EXE_workflow-trigger"))
            .parent()
            .unwrap();
        assert!(
            beside.join("trigger-submitter").is_file(),
            "no trigger-submitter: cargo build -p slurm-submit"
        );
        let (program_dir, bin_dir) = program(&slurm, beside);
        let config = slurm.dir().join("trigger-submitter.toml");
        let text = format!(
            "users = [\"alice\", \"bob\"]\n[slurm]\nconf = {:?}\nbin_dir = {bin_dir:?}\n",
            slurm.conf()
        );
        std::fs::write(&config, text).unwrap();
        Self {
            slurm,
            results,
            config,
            program_dir,
        }
    }

    /// The table that names the program.
    pub fn submitter(&self) -> String {
        self.submitter_in(&self.program_dir)
    }

    pub fn submitter_in(&self, program_dir: &Path) -> String {
        format!(
            "[workflow-trigger.submitter]\nprogram_dir = {program_dir:?}\nprogram_config = {:?}\n",
            self.config
        )
    }

    /// Runs a command as a user.
    pub async fn run(&self, user: &str, command: &[&str]) -> String {
        block_in_place(|| self.slurm.run_as(user, command))
    }

    /// Submits a job of a user on the fly and returns its id.
    pub async fn sbatch(&self, user: &str, options: &[&str], script: &str) -> u32 {
        let wrap = format!("--wrap={script}");
        let mut command = vec!["sbatch", "--parsable", "--mem=10", "--output=/dev/null"];
        command.extend(options);
        command.push(&wrap);
        self.run(user, &command).await.trim().parse().unwrap()
    }

    /// A field of `scontrol show job`.
    pub async fn field(&self, job: u32, name: &str) -> String {
        let shown = self
            .run("root", &["scontrol", "show", "job", "-o", &job.to_string()])
            .await;
        let prefix = format!("{name}=");
        let mut words = shown.split_whitespace();
        words
            .find_map(|word| word.strip_prefix(&prefix))
            .unwrap_or_default()
            .to_owned()
    }

    pub async fn wait_state(&self, job: u32, state: &str) {
        let description = format!("job {job} is {state}");
        wait_for(&description, Duration::from_secs(120), async || {
            (self.field(job, "JobState").await == state).then_some(())
        })
        .await;
    }

    /// The lines of a file that a job wrote.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.results.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// Folders of the program and of Slurm's commands as it sees them. A Slurm in another root can be entered by root only, so the program as a
/// whole runs inside.
fn program(slurm: &SlurmCluster, beside: &Path) -> (PathBuf, PathBuf) {
    if slurm.fact("root").is_empty() {
        return (beside.to_owned(), slurm.commands());
    }
    let dir = slurm.dir().join("program");
    std::fs::create_dir_all(&dir).unwrap();
    let pid = slurm.dir().join("run/root.pid");
    let text = format!(
        "exec nsenter --target \"$(cat {})\" --mount --root --wd -- {}/trigger-submitter \"$@\"",
        pid.display(),
        beside.display()
    );
    script(&dir.join("trigger-submitter"), &text);
    (dir, "/usr/bin".into())
}
