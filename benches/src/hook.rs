//! Time that a hook adds to the start of a job: from spawning the program to its end, as slurmctld waits for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use mesh_bus::Bus;
use mesh_events::catalogue::{Accounts, Login, MESH_HOOKS};
use mesh_testkit::NatsServer;
use tokio_util::sync::CancellationToken;

use crate::Arguments;
use crate::load::Receiver;
use crate::process::program;
use crate::report::{Line, Section};
use crate::stats::Sorted;

/// Environment set by slurmctld 22.05 for PrologSlurmctld (Slurm Prolog and Epilog Guide), with plausible values.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld"),
    ("SLURM_CLUSTER_NAME", "testbed"),
    ("SLURM_JOB_ACCOUNT", "physics"),
    ("SLURM_JOB_DERIVED_EC", "0"),
    ("SLURM_JOB_EXIT_CODE", "0"),
    ("SLURM_JOB_EXIT_CODE2", "0:0"),
    ("SLURM_JOB_GID", "20001"),
    ("SLURM_JOB_GROUP", "alice"),
    ("SLURM_JOB_NAME", "train-llm"),
    ("SLURM_JOB_NODELIST", "n[1-16]"),
    ("SLURM_JOB_PARTITION", "gpu"),
    ("SLURM_JOB_RESTART_COUNT", "0"),
    ("SLURM_JOB_UID", "20001"),
    ("SLURM_JOB_USER", "alice"),
    ("SLURM_JOB_WORK_DIR", "/home/alice/experiments/llm"),
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
];

/// Calls while NATS accepts connections but does not answer. Each takes the hook's whole timeout.
const CALLS_WHILE_HUNG: u32 = 20;
/// Calls of each program before the measurement.
const WARM_UP: u32 = 5;

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let nats = server_with_rights().await?;
    let admin = mesh_bus::Config {
        url: nats.url(),
        user: Some("admin".into()),
        password: Some("admin-password".into()),
        ..mesh_bus::Config::default()
    };
    let bus = Bus::connect(&admin, "admin").await?;
    bus.ready(&CancellationToken::new()).await?;
    let receiver = Receiver::start().await?;
    let hung = std::net::TcpListener::bind("127.0.0.1:0")?;

    let folder = tempfile::tempdir()?;
    let up = Site::new(folder.path(), "up", &nats.url())?;
    // A port without a listener: bound to learn its number, then released.
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let down = Site::new(folder.path(), "down", &format!("nats://{free}"))?;
    let silent = Site::new(
        folder.path(),
        "silent",
        &format!("nats://{}", hung.local_addr()?),
    )?;
    let hook = program("mesh-hook")?;
    let curl = format!(
        "curl -sS -o /dev/null -X POST -H 'content-type: application/json' --data \"{{\\\"job\\\":$SLURM_JOB_ID,\\\"user\\\":\\\"$SLURM_JOB_USER\\\"}}\" {}",
        receiver.url()
    );
    let programs = vec![
        Program::new(Path::new("/bin/true"), &[]),
        Program::new(&hook, &["--config".into(), up.config.display().to_string()]),
        Program::new(
            &hook,
            &["--config".into(), down.config.display().to_string()],
        ),
        Program::new(Path::new("/bin/bash"), &["-c".into(), curl]),
    ];
    let calls = arguments.calls;
    // Not on the runtime's workers, because curl's receiver runs there.
    let times = tokio::task::spawn_blocking(move || interleaved(&programs, calls)).await??;
    let [plain, ringing, spooling, bash] = times.as_slice() else {
        bail!("one series for each program")
    };
    let silent_call = Program::new(
        &hook,
        &["--config".into(), silent.config.display().to_string()],
    );
    let waiting =
        tokio::task::spawn_blocking(move || interleaved(&[silent_call], CALLS_WHILE_HUNG))
            .await??;
    let waiting = waiting.first().context("a series")?;

    let expected = (calls + WARM_UP) as usize;
    let stored = stored(&nats).await?;
    if stored != expected as u64 || down.spooled()? != expected || receiver.take().is_empty() {
        bail!(
            "of {expected} doorbells {stored} are on the bus and {} in the spool",
            down.spooled()?
        );
    }
    let base = plain.median();
    let added = ringing.median() - base;
    Ok(Section {
        title: "hook, one call",
        lines: vec![
            Line::times("/bin/true", plain),
            Line::times("mesh-hook, NATS up (on disk there)", ringing).against(base, "/bin/true"),
            Line::value("  of which the hook's own", "ms", added).budget("≤ 5 ms", added <= 5.0),
            Line::times("mesh-hook, NATS down (spooled)", spooling).against(base, "/bin/true"),
            Line::times("mesh-hook, NATS hangs (spooled)", waiting)
                .budget("≤ 250 ms", waiting.percentile(100) <= 250.0),
            Line::times("bash -c 'curl POST'", bash).against(base, "/bin/true"),
            Line::times("mesh-hook, NATS up", ringing).against(bash.median(), "bash + curl"),
        ],
        notes: vec![format!(
            "{calls} calls of each, taken in turn; {CALLS_WHILE_HUNG} while NATS hangs; every doorbell accounted for"
        )],
    })
}

/// The hook's configuration and spool.
struct Site {
    config: PathBuf,
    spool: PathBuf,
}

impl Site {
    fn new(folder: &Path, name: &str, url: &str) -> anyhow::Result<Self> {
        let site = Self {
            config: folder.join(format!("{name}.toml")),
            spool: folder.join(name),
        };
        let text = format!(
            "cluster = \"testbed\"\nspool = {:?}\n[nats]\nurl = \"{url}\"\nuser = \"hook\"\npassword = \"hook-password\"\n",
            site.spool
        );
        mesh_testkit::write_private(&site.config, text);
        Ok(site)
    }

    fn spooled(&self) -> anyhow::Result<usize> {
        let mut count = 0;
        for entry in std::fs::read_dir(&self.spool)? {
            count += usize::from(
                entry?
                    .path()
                    .extension()
                    .is_some_and(|extension| extension == "bell"),
            );
        }
        Ok(count)
    }
}

/// A program with its arguments.
struct Program {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Program {
    fn new(program: &Path, arguments: &[String]) -> Self {
        Self {
            program: program.to_owned(),
            arguments: arguments.to_vec(),
        }
    }

    fn time(&self, job: u32) -> anyhow::Result<Duration> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(ENVIRONMENT.iter().copied())
            .env("SLURM_JOB_ID", job.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let start = Instant::now();
        let status = command
            .status()
            .with_context(|| format!("run {}", self.program.display()))?;
        let took = start.elapsed();
        if !status.success() {
            bail!("{} ended with {status}", self.program.display());
        }
        Ok(took)
    }
}

/// Calls the programs alternately, so that other load on the machine affects all of them equally.
fn interleaved(programs: &[Program], calls: u32) -> anyhow::Result<Vec<Sorted>> {
    let mut times: Vec<Vec<Duration>> = programs.iter().map(|_| Vec::new()).collect();
    for job in 1..=calls + WARM_UP {
        for (program, times) in programs.iter().zip(&mut times) {
            let took = program.time(job)?;
            if job > WARM_UP {
                times.push(took);
            }
        }
    }
    Ok(times.into_iter().map(Sorted::milliseconds).collect())
}

/// A server on which the hook has its production permissions.
async fn server_with_rights() -> anyhow::Result<NatsServer> {
    let mut accounts = Accounts::default();
    for (name, password) in [("admin", "admin-password"), ("hook", "hook-password")] {
        accounts.add(name, "testbed", Login::Password { name, password });
    }
    let users = format!("accounts {{\n{}}}\n", accounts.render());
    Ok(NatsServer::start_with(&users).await)
}

/// Number of doorbells on the bus.
async fn stored(nats: &NatsServer) -> anyhow::Result<u64> {
    let client =
        async_nats::ConnectOptions::with_user_and_password("admin".into(), "admin-password".into())
            .connect(nats.url())
            .await?;
    let mut stream = async_nats::jetstream::new(client)
        .get_stream(MESH_HOOKS)
        .await?;
    Ok(stream.info().await?.state.messages)
}
