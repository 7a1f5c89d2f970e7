//! One real Slurm cluster for all tests of this binary. It is removed when the process ends.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use mesh_testkit::{SlurmCluster, wait_for};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::task::block_in_place;

pub const NAME: &str = "ingest";

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();

/// Tests share the cluster; a test that stops a daemon has it exclusively.
static DAEMONS: RwLock<()> = RwLock::const_new(());

/// A cluster whose commands do not block other tasks of the test.
pub struct Cluster {
    slurm: SlurmCluster,
    pub folder: PathBuf,
}

/// Returns the cluster; its daemons keep running while the guard is held.
pub async fn shared() -> (&'static Cluster, RwLockReadGuard<'static, ()>) {
    let guard = DAEMONS.read().await;
    (
        CLUSTER
            .get_or_init(async || Cluster::up(&[("REST", "1")]).await)
            .await,
        guard,
    )
}

/// Returns the cluster for a test that stops daemons.
pub async fn exclusive() -> (&'static Cluster, RwLockWriteGuard<'static, ()>) {
    let guard = DAEMONS.write().await;
    (
        CLUSTER
            .get_or_init(async || Cluster::up(&[("REST", "1")]).await)
            .await,
        guard,
    )
}

impl Cluster {
    /// Starts a cluster; `knobs` are those of tests/cluster/up.
    pub async fn up(knobs: &[(&str, &str)]) -> Self {
        let knobs = [&[("CLOUD", "0")][..], knobs].concat();
        let slurm = block_in_place(|| SlurmCluster::up(NAME, &knobs));
        let folder = slurm.dir().to_owned();
        Self { slurm, folder }
    }

    /// Returns the path of slurm.conf.
    pub fn conf(&self) -> PathBuf {
        self.slurm.conf()
    }

    /// Returns the directory of Slurm's commands.
    pub fn commands(&self) -> PathBuf {
        self.slurm.commands()
    }

    /// Runs a command as a user and returns its output.
    pub async fn run(&self, user: &str, command: &[&str]) -> String {
        block_in_place(|| self.slurm.run_as(user, command))
    }

    /// Like [`Self::run`], but returns the error output of a command that fails.
    pub async fn attempt(&self, user: &str, command: &[&str]) -> Result<String, String> {
        block_in_place(|| self.slurm.attempt(user, command))
    }

    /// Submits a batch job of alice and returns its id.
    pub async fn sbatch(&self, arguments: &[&str], script: &str) -> u32 {
        let wrap = format!("--wrap={script}");
        let mut command = vec!["sbatch", "--parsable", "--mem=10", "--output=/dev/null"];
        command.extend(arguments);
        command.push(&wrap);
        let id = self.run("alice", &command).await;
        id.parse()
            .unwrap_or_else(|_| panic!("sbatch printed {id:?}"))
    }

    /// Commands for a job's script: they last until [`Self::let_go`].
    pub fn until_let_go(&self) -> String {
        let folder = self.folder.display();
        format!("until [ -e {folder}/go-$SLURM_JOB_ID ]; do sleep 0.1; done")
    }

    /// Ends [`Self::until_let_go`] in the script of this job.
    pub fn let_go(&self, job: u32) {
        std::fs::write(self.folder.join(format!("go-{job}")), "").unwrap();
    }

    /// A file that does not exist, in a folder in which every user may make it.
    pub fn new_marker(&self) -> PathBuf {
        let folder = tempfile::tempdir_in(&self.folder).unwrap().keep();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        folder.join("made")
    }

    /// Waits until squeue shows a job (or one of its tasks) in a state.
    pub async fn wait_state(&self, job: u32, state: &str) {
        let id = job.to_string();
        let description = format!("job {job} is {state}");
        wait_for(&description, Duration::from_secs(180), async || {
            let ask = ["squeue", "-h", "-t", "all", "-o", "%T", "-j", &id];
            match self.attempt("root", &ask).await {
                Ok(printed) => printed.lines().any(|line| line == state).then_some(()),
                // A slurmctld that purges jobs quickly may have purged it meanwhile: then it has ended.
                Err(error) if error.contains("Invalid job id") => Some(()),
                Err(error) => panic!("{error}"),
            }
        })
        .await;
    }

    /// Waits until the current jobs are in the saved state that slurmctld reads when it starts, here or elsewhere. Changes the comment of
    /// this job. A job whose start is not saved would be started again, and its node drained ("Duplicate jobid", seen on 22.05).
    pub async fn saved(&self, job: u32) {
        let job_state = self.folder.join("state/job_state");
        let id = format!("JobId={job}");
        // A change makes slurmctld save. Two changes, because the first save may contain older state.
        for comment in ["Comment=one", "Comment=two"] {
            let now = SystemTime::now();
            self.run("root", &["scontrol", "update", &id, comment])
                .await;
            wait_for(
                "slurmctld saved its state",
                Duration::from_secs(180),
                async || {
                    let modified = std::fs::metadata(&job_state).ok()?.modified().ok()?;
                    (modified > now).then_some(())
                },
            )
            .await;
        }
    }

    /// Starts or kills a daemon.
    pub async fn ctl(&self, action: &str, daemon: &str) {
        block_in_place(|| self.slurm.ctl(action, daemon));
    }
}
