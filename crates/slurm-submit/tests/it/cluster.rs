//! A real Slurm cluster for all tests of this binary, and a submitter of it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_testkit::{ClusterPorts, SlurmCluster, script, wait_for};
use slurm_client::{Config, Slurm};
use slurm_submit::{JobFields, Submission, SubmitKey, Submitter};
use slurm_types::JobId;
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_trigger-submitter");
/// Seconds that submissions wait in the controller while the file `slow` exists.
const JOB_SUBMIT: &str = r#"
function slurm_job_submit(job, partitions, uid)
  local slow = io.open("DIR/slow")
  if slow then
    slow:close()
    local arrived = io.open("DIR/results/arrived", "a")
    arrived:write((job.comment or "") .. "\n")
    arrived:close()
    os.execute("sleep 3")
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"#;

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
/// Tests share the cluster; a test that stops a daemon or makes it slow has it exclusively.
static DAEMONS: RwLock<()> = RwLock::const_new(());

pub struct Cluster {
    pub slurm: SlurmCluster,
    /// Configuration of the program.
    pub config: PathBuf,
    /// Folder of the program.
    pub program_dir: PathBuf,
    /// Where jobs write: a folder of everybody.
    pub results: PathBuf,
}

/// Returns the cluster; its daemons keep running while the guard is held.
pub async fn shared() -> (&'static Cluster, RwLockReadGuard<'static, ()>) {
    let guard = DAEMONS.read().await;
    (CLUSTER.get_or_init(Cluster::up).await, guard)
}

/// Returns the cluster for a test that stops daemons.
pub async fn exclusive() -> (&'static Cluster, RwLockWriteGuard<'static, ()>) {
    let guard = DAEMONS.write().await;
    (CLUSTER.get_or_init(Cluster::up).await, guard)
}

impl Cluster {
    #[expect(clippy::unused_async, reason = "made in an OnceCell")]
    async fn up() -> Self {
        let files = tempfile::tempdir().unwrap().keep();
        let extra = files.join("extra.conf");
        std::fs::write(
            &extra,
            "JobSubmitPlugins=lua\nAccountingStoreFlags=job_comment\n",
        )
        .unwrap();
        // slurmctld reads the plugin's script from the folder of slurm.conf when it starts.
        let root = option_env("ROOT");
        let ports = ClusterPorts::take();
        let dir = SlurmCluster::dir_on("submit", &ports);
        std::fs::create_dir_all(dir.join("etc")).unwrap();
        std::fs::write(
            dir.join("etc/job_submit.lua"),
            JOB_SUBMIT.replace("DIR", dir.to_str().unwrap()),
        )
        .unwrap();
        let knobs = [
            ("CLOUD", "0"),
            ("EXTRA_CONF", extra.to_str().unwrap()),
            ("ROOT", root),
            ("REST", "1"),
        ];
        let slurm = SlurmCluster::up_on("submit", ports, &knobs);
        std::fs::remove_dir_all(files).unwrap();
        let results = slurm.dir().join("results");
        std::fs::create_dir(&results).unwrap();
        std::fs::set_permissions(&results, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let (program_dir, bin_dir) = program(&slurm);
        let config = slurm.dir().join("trigger-submitter.toml");
        write_config(&config, &slurm, &bin_dir, "30s");
        Self {
            slurm,
            config,
            program_dir,
            results,
        }
    }

    pub fn submitter(&self) -> Submitter {
        self.submitter_with(&self.config)
    }

    pub fn submitter_with(&self, config: &Path) -> Submitter {
        Submitter::new(slurm_submit::Config {
            program_dir: Some(self.program_dir.clone()),
            program_config: Some(config.to_owned()),
        })
    }

    /// A submitter that waits this long for a command.
    pub fn impatient(&self, command_timeout: &str) -> Submitter {
        let config = self.slurm.dir().join(format!("{command_timeout}.toml"));
        let (_, bin_dir) = program(&self.slurm);
        write_config(&config, &self.slurm, &bin_dir, command_timeout);
        self.submitter_with(&config)
    }

    /// A job of alice.
    pub fn job(&self, event: &str, script: &str) -> Submission {
        Submission {
            key: SubmitKey::new("rule", 1, event, 0),
            owner: "alice".to_owned(),
            script: format!("#!/bin/bash\n{script}\n"),
            args: Vec::new(),
            environment: BTreeMap::new(),
            fields: JobFields {
                memory: Some(10),
                output: Some("/dev/null".to_owned()),
                ..JobFields::default()
            },
        }
    }

    /// Waits until a job has ended.
    pub async fn ended(&self, job: JobId) {
        let slurm = Slurm::new(Config {
            conf: Some(self.slurm.conf()),
            bin_dir: Some(self.slurm.commands()),
            ..Config::default()
        });
        let description = format!("job {job} has ended");
        wait_for(&description, Duration::from_secs(120), async || {
            let lookup = slurm.jobs(&[job]).await.ok()?;
            let ended = |record: &slurm_client::JobRecord| record.state.is_terminal();
            lookup.found.iter().all(ended).then_some(())
        })
        .await;
    }

    /// Makes every submission wait 3 s in the controller, until dropped.
    pub fn slow(&self) -> Slow {
        let marker = self.slurm.dir().join("slow");
        std::fs::write(&marker, "").unwrap();
        Slow(marker)
    }
}

pub struct Slow(PathBuf);

impl Drop for Slow {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Another Slurm to test: a folder made by `scripts/slurm-root`.
fn option_env(name: &str) -> &'static str {
    std::env::var(name).map_or("", |value| value.leak())
}

/// Folders of the program and of Slurm's commands as it sees them. A Slurm in another root can be entered by root only, so the program as a
/// whole runs inside.
fn program(slurm: &SlurmCluster) -> (PathBuf, PathBuf) {
    if slurm.fact("root").is_empty() {
        let dir = Path::new(PROGRAM).parent().unwrap();
        return (dir.to_owned(), slurm.commands());
    }
    let dir = slurm.dir().join("program");
    std::fs::create_dir_all(&dir).unwrap();
    let pid = slurm.dir().join("run/root.pid");
    script(
        &dir.join("trigger-submitter"),
        &format!(
            "exec nsenter --target \"$(cat {})\" --mount --root --wd -- {PROGRAM} \"$@\"",
            pid.display()
        ),
    );
    (dir, "/usr/bin".into())
}

fn write_config(path: &Path, slurm: &SlurmCluster, bin_dir: &Path, command_timeout: &str) {
    let text = format!(
        "users = [\"alice\", \"bob\", \"carol\"]\n[slurm]\nconf = {:?}\nbin_dir = {bin_dir:?}\ncommand_timeout = {command_timeout:?}\n",
        slurm.conf()
    );
    std::fs::write(path, text).unwrap();
}
