//! A site: a nats-server with the hook's real permissions, a hook.toml, and a consumer of the doorbells.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mesh_bus::{Bus, Disposition, Handler, Message};
use mesh_events::catalogue::{self, Accounts, Login};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_testkit::{NatsServer, wait_for, wait_until};
use prost::Message as _;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Deadline of the tests for things that take milliseconds.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Site {
    pub nats: NatsServer,
    pub folder: TempDir,
    received: ReceivedDoorbells,
    stop: CancellationToken,
}

/// Received doorbells, with their `Nats-Msg-Id`.
type ReceivedDoorbells = Arc<Mutex<Vec<(Option<String>, Doorbell)>>>;

struct Reader(ReceivedDoorbells);

impl Handler for Reader {
    async fn handle(&self, message: &Message) -> Disposition {
        let id = message.header("Nats-Msg-Id").map(str::to_owned);
        let doorbell = Doorbell::decode(message.body.clone()).unwrap();
        assert_eq!(
            message.subject,
            mesh_events::subject::doorbell(&doorbell.cluster, &doorbell.hook)
        );
        self.0.lock().unwrap().push((id, doorbell));
        Disposition::Ack
    }
}

impl Site {
    /// Starts all servers and declares the streams.
    pub async fn start() -> Self {
        let mut accounts = Accounts::default();
        for (name, password) in [("admin", "admin-password"), ("hook", "hook-password")] {
            accounts.add(name, "testbed", Login::Password { name, password });
        }
        let users = format!("accounts {{\n{}}}\n", accounts.render());
        let nats = NatsServer::start_with(&users).await;
        let site = Self {
            nats,
            folder: tempfile::tempdir().unwrap(),
            received: Arc::default(),
            stop: CancellationToken::new(),
        };
        site.configure("");
        let config = mesh_bus::Config {
            url: site.nats.url(),
            user: Some("admin".into()),
            password: Some("admin-password".into()),
            ..mesh_bus::Config::default()
        };
        let bus = Bus::connect(&config, "admin").await.unwrap();
        bus.ready(&site.stop).await.unwrap();
        let (reader, stop) = (Reader(Arc::clone(&site.received)), site.stop.clone());
        // One at a time, because some tests check the order of arrival.
        tokio::spawn(async move {
            let durable = catalogue::durable(catalogue::MESH_HOOKS, "ingest", "testbed");
            bus.consume(catalogue::MESH_HOOKS, &durable, 1, reader, &stop)
                .await
        });
        site
    }

    /// Writes hook.toml with additional lines at its top.
    pub fn configure(&self, extra: &str) {
        self.configure_spool(&self.spool(), extra);
    }

    pub fn configure_spool(&self, spool: &Path, extra: &str) {
        let text = format!(
            "cluster = \"testbed\"\nspool = {spool:?}\nslots = {:?}\n{extra}\n[nats]\nurl = \"{}\"\nuser = \"hook\"\npassword = \"hook-password\"\n",
            self.folder.path().join("slots"),
            self.nats.url()
        );
        mesh_testkit::write_private(&self.config(), &text);
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("hook.toml")
    }

    pub fn spool(&self) -> PathBuf {
        self.folder.path().join("spool")
    }

    /// File names of the spooled doorbells.
    pub fn spooled(&self) -> Vec<String> {
        spooled(&self.spool())
    }

    /// Runs the sender's part of a hook call for a job. The process slurmctld waits for ends at the hard stop, on a busy machine
    /// before there is a result to see.
    pub fn call(&self, job: u32) -> Call {
        call(
            hook(&self.config())
                .arg("--send")
                .env("SLURM_JOB_ID", job.to_string()),
        )
    }

    /// Received doorbells.
    pub fn received(&self) -> Vec<Doorbell> {
        self.received
            .lock()
            .unwrap()
            .iter()
            .map(|(_, doorbell)| doorbell.clone())
            .collect()
    }

    /// `Nats-Msg-Id` of the received doorbells.
    pub fn ids(&self) -> Vec<Option<String>> {
        self.received
            .lock()
            .unwrap()
            .iter()
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Delivers the backlog, as an operator does, as soon as the stream is available again.
    pub async fn flush(&self) {
        wait_until("the spool is flushed", TIMEOUT, async || {
            call(hook(&self.config()).arg("--flush"))
                .output
                .status
                .success()
        })
        .await;
    }

    /// Waits for doorbells. On a busy machine one may miss its 200 ms: it waits in the spool, and no further call would deliver it.
    pub async fn wait_for(&self, count: usize) {
        wait_until(&format!("{count} doorbells"), TIMEOUT, async || {
            if !self.spooled().is_empty() {
                call(hook(&self.config()).arg("--flush"));
            }
            self.received().len() >= count
        })
        .await;
    }

    /// Calls until one doorbell is delivered at once and without a message. On a busy machine NATS may take longer than the hook's
    /// timeout.
    pub async fn delivered(&self, command: impl Fn() -> Command) -> Doorbell {
        wait_for("a doorbell is delivered at once", TIMEOUT, async || {
            let before = self.received().len();
            let call = call(&mut command());
            assert!(call.output.status.success(), "{call:?}");
            self.wait_for(before + 1).await;
            let received = self.received().pop();
            received.filter(|doorbell| !doorbell.spooled && call.stderr().is_empty())
        })
        .await
    }

    /// Calls, each time with an empty spool, until the output is one line with this text. On a busy machine NATS may take too long.
    pub async fn wait_stderr(&self, job: u32, text: &str) {
        wait_until(text, TIMEOUT, async || {
            fs::remove_dir_all(self.spool()).ok();
            let call = self.call(job);
            assert!(call.output.status.success(), "{call:?}");
            let printed = call.stderr();
            printed.lines().count() == 1 && printed.contains(text)
        })
        .await;
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Result of a call.
#[derive(Debug)]
pub struct Call {
    pub output: Output,
    pub took: Duration,
}

impl Call {
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).replace('\0', "")
    }

    /// Status 0 and no output.
    pub fn assert_quiet(&self) {
        assert!(
            self.output.status.success() && self.stderr().is_empty(),
            "{self:?}"
        );
    }

    /// Status 0 and one line that contains the text.
    pub fn assert_stderr(&self, text: &str) {
        let stderr = self.stderr();
        assert!(self.output.status.success(), "{self:?}");
        assert!(
            stderr.lines().count() == 1 && stderr.contains(text),
            "{text}: {stderr}"
        );
    }
}

/// Fails unless the test runs as root, as all tests do.
pub fn needs_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test becomes another user: run it as root"
    );
}

/// The hook with slurmctld's environment of PrologSlurmctld and nothing else.
pub fn hook(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-hook"));
    command
        .env_clear()
        .env("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld")
        .env("SLURM_CLUSTER_NAME", "testbed")
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null());
    command
}

/// In case of any fault, the process Slurm waits for has status 0, and the sender reports the reason on one line.
pub fn assert_stderr(command: impl Fn() -> Command, text: &str) {
    assert!(call(&mut command()).output.status.success());
    call(command().arg("--send")).assert_stderr(text);
}

pub fn call(command: &mut Command) -> Call {
    let start = Instant::now();
    let output = command.output().unwrap();
    Call {
        output,
        took: start.elapsed(),
    }
}

pub fn spooled(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name.ends_with(".bell"));
    names.sort();
    names
}
