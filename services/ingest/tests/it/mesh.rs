//! An ingest under test, and everything on its bus.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use ingest::IngestService;
use mesh_bus::{Bus, StartPosition};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::JobEvent;
use mesh_events::{Event, RunKey};
use mesh_runtime::{ConfigFile, Context, Service as _, ServiceSection};
use mesh_testkit::{NatsServer, Replicas, wait_for};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, NAME};
use crate::stand_in::StandIn;

/// Timeout of every wait. An unavailable source is retried after a minute at most.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// A nats-server, and the events published on it.
pub struct Mesh {
    pub nats: NatsServer,
    pub bus: Bus,
    folder: tempfile::TempDir,
    events: Arc<Mutex<Vec<Event>>>,
    follower: JoinHandle<()>,
}

pub struct Running {
    shutdown: CancellationToken,
    work: JoinHandle<Result<(), mesh_runtime::BoxError>>,
    pub context: Context,
}

impl Mesh {
    pub async fn start() -> Self {
        let nats = NatsServer::start().await;
        let config = mesh_bus::Config {
            url: nats.url(),
            ..mesh_bus::Config::default()
        };
        let bus = Bus::connect(&config, "admin").await.unwrap();
        bus.ready(&CancellationToken::new()).await.unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        let messages = bus
            .follow("slurm.>", StartPosition::Sequence(1))
            .await
            .unwrap();
        let follower = tokio::spawn(async move {
            let mut messages = std::pin::pin!(messages);
            while let Some(message) = messages.next().await {
                if let Ok(message) = message {
                    seen.lock().unwrap().push(message.event().unwrap());
                }
            }
        });
        Self {
            nats,
            bus,
            folder: tempfile::tempdir().unwrap(),
            events,
            follower,
        }
    }

    /// Starts ingest with additional lines in its configuration section.
    pub async fn ingest(&self, cluster: &Cluster, settings: &str) -> Running {
        self.ingest_named(NAME, cluster, settings).await
    }

    /// Starts ingest with slurmrestd as its source.
    pub async fn ingest_over_rest(&self, cluster: &Cluster, settings: &str) -> Running {
        let ask = ["scontrol", "token", "username=root", "lifespan=3600"];
        let token = self.folder.path().join("token");
        mesh_testkit::write_private(&token, cluster.run("root", &ask).await);
        let slurm = format!(
            "source = \"rest\"\nrest_url = \"unix://{}\"\nrest_user = \"root\"\ntoken_file = {token:?}",
            cluster.folder.join("rest/socket").display()
        );
        self.run(self.write_config(NAME, cluster, &slurm, settings))
            .await
    }

    /// Starts ingest with a stand-in for Slurm's commands.
    pub async fn ingest_through(
        &self,
        stand_in: &StandIn,
        cluster: &Cluster,
        settings: &str,
    ) -> Running {
        self.ingest_as(NAME, stand_in, cluster, settings).await
    }

    /// Like [`Self::ingest_through`], under another cluster name.
    pub async fn ingest_as(
        &self,
        name: &str,
        stand_in: &StandIn,
        cluster: &Cluster,
        settings: &str,
    ) -> Running {
        let slurm = format!(
            "bin_dir = {:?}\ncommand_timeout = \"3s\"",
            stand_in.bin_dir()
        );
        self.run(self.write_config(name, cluster, &slurm, settings))
            .await
    }

    async fn run(&self, path: PathBuf) -> Running {
        let shutdown = CancellationToken::new();
        let config =
            ConfigFile::load(&[ServiceSection::of::<IngestService>()], Some(&path)).unwrap();
        let context = Context::new(config, shutdown.clone()).unwrap();
        let started = IngestService::start(context.clone()).await.unwrap();
        Running {
            shutdown,
            work: tokio::spawn(started.run),
            context,
        }
    }

    /// Like [`Self::ingest`], under another cluster name.
    pub async fn ingest_named(&self, name: &str, cluster: &Cluster, settings: &str) -> Running {
        let slurm = format!("bin_dir = {:?}", cluster.commands());
        self.run(self.write_config(name, cluster, &slurm, settings))
            .await
    }

    /// Writes the configuration of an ingest process.
    pub fn config_of_process(&self, cluster: &Cluster, settings: &str) -> PathBuf {
        let slurm = format!("bin_dir = {:?}", cluster.commands());
        self.write_config(NAME, cluster, &slurm, settings)
    }

    /// Starts two ingest processes.
    pub fn replicas(&self, cluster: &Cluster, settings: &str) -> Replicas {
        let config = self.config_of_process(cluster, settings);
        let program = env!("CARGO_BIN_EXE_ingest");
        Replicas::start(IngestService::NAME, program, &config, self.folder.path())
    }

    fn write_config(&self, name: &str, cluster: &Cluster, slurm: &str, settings: &str) -> PathBuf {
        let path = self.folder.path().join(format!("{name}.toml"));
        if !self.folder.path().join("identities.toml").exists() {
            self.identities("[users.alice]\nissuer = \"https://id.example.org\"\nsubject = \"al-1\"\nname = \"Alice\"\n");
        }
        // Slurm is slow on a busy machine. The pauses required then would exceed the deadlines.
        let text = format!(
            "[mesh]\ncluster = \"{name}\"\ndata_dir = {:?}\nidentity_map = \"identities.toml\"\n[mesh.nats]\nurl = \"{}\"\n[slurm]\nconf = {:?}\n{slurm}\n[ingest]\nmax_poll_interval = \"2s\"\n{settings}\n",
            self.folder.path(),
            self.nats.url(),
            cluster.conf(),
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn identities(&self, text: &str) {
        // Atomically, because ingest may be reading it.
        let new = self.folder.path().join("identities.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.folder.path().join("identities.toml")).unwrap();
    }

    /// Returns all events so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Returns the events of a job; an array's id also finds its tasks. Excludes later events: usage ([`Mesh::updates_of`]) and the
    /// canceller ([`Mesh::canceller_of`]).
    pub fn of_job(&self, id: u32) -> Vec<Event> {
        self.of_job_in(NAME, id)
    }

    fn of_job_in(&self, cluster: &str, id: u32) -> Vec<Event> {
        let about = |event: &Event| {
            is_about(event, cluster, id) && event.r#type != "job.updated" && !names_canceller(event)
        };
        self.events().into_iter().filter(about).collect()
    }

    /// Returns the event with the canceller of a job: its end or the correction that follows.
    pub fn canceller_of(&self, id: u32) -> Option<Event> {
        let is_cancel =
            |event: &Event| event.r#type == "job.cancelled" || event.r#type == "job.corrected";
        self.events()
            .into_iter()
            .find(|event| is_about(event, NAME, id) && is_cancel(event) && event.actor.is_some())
    }

    /// Returns the usage events of a job's runs.
    pub fn updates_of(&self, id: u32) -> Vec<Event> {
        let about = |event: &Event| is_about(event, NAME, id) && event.r#type == "job.updated";
        self.events().into_iter().filter(about).collect()
    }

    /// Returns the events of a job as words: runs in order, separated by ` | `. Leaves out `pending`, which depends on the scheduler.
    pub fn history(&self, id: u32) -> String {
        self.history_in(NAME, id)
    }

    /// Like [`Self::history`], for a job of another cluster.
    pub fn history_in(&self, cluster: &str, id: u32) -> String {
        let mut runs: Vec<(String, Vec<(u64, String)>)> = Vec::new();
        for event in self.of_job_in(cluster, id) {
            let event_name = event.r#type.trim_start_matches("job.").to_owned();
            if event_name == "pending" {
                continue;
            }
            let key = event.entity_key().to_owned();
            let position = runs
                .iter()
                .position(|(run, _)| *run == key)
                .unwrap_or_else(|| {
                    runs.push((key, Vec::new()));
                    runs.len() - 1
                });
            runs[position].1.push((event.run_seq, event_name));
        }
        // By key: the array before its tasks, an earlier run before a later one.
        runs.sort_by_key(|(key, _)| natural(cluster, key));
        let names = |events: &mut Vec<(u64, String)>| {
            events.sort();
            events
                .iter()
                .map(|(_, event_name)| event_name.as_str())
                .collect::<Vec<_>>()
                .join(" ")
        };
        runs.iter_mut()
            .map(|(_, events)| names(events))
            .collect::<Vec<_>>()
            .join(" | ")
    }

    /// Waits until a job has exactly this history.
    pub async fn wait_history(&self, id: u32, history: &str) {
        self.wait_history_in(NAME, id, history).await;
    }

    /// Like [`Self::wait_history`], for a job of another cluster.
    pub async fn wait_history_in(&self, cluster: &str, id: u32, history: &str) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while self.history_in(cluster, id) != history {
            assert!(
                tokio::time::Instant::now() < deadline,
                "job {id} of {cluster}: expected {history:?}, found {:?}",
                self.history_in(cluster, id)
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a job's history begins with this one, for states that do not last.
    pub async fn wait_passed(&self, id: u32, history: &str) {
        wait_for(&format!("job {id}: {history}"), DEADLINE, async || {
            self.history(id).starts_with(history).then_some(())
        })
        .await;
    }

    /// Returns the start of the last poll stored by an ingest process, in Unix seconds.
    pub async fn last_poll(&self) -> Option<i64> {
        let client = async_nats::connect(self.nats.url()).await.ok()?;
        let bucket = async_nats::jetstream::new(client);
        let bucket = bucket.get_key_value("mesh_ingest").await.ok()?;
        let meta = bucket.get("ingest.meta").await.ok()??;
        let meta: serde_json::Value = serde_json::from_slice(&meta).ok()?;
        meta["watermark"].as_i64().filter(|began| *began > 0)
    }

    /// Waits until an ingest process has stored its first poll. Jobs that end before it have no events.
    pub async fn wait_first_poll(&self) {
        wait_for("the first poll is stored", DEADLINE, async || {
            self.last_poll().await
        })
        .await;
    }

    /// Returns the last event of a type about a job.
    pub fn last(&self, id: u32, kind: &str) -> Event {
        let mut events = self.of_job(id);
        events.retain(|event| event.r#type == kind);
        let last = events.pop();
        last.unwrap_or_else(|| panic!("no {kind} of job {id}"))
    }

    /// Waits for an event.
    pub async fn wait_event(&self, description: &str, accept: impl Fn(&Event) -> bool) -> Event {
        wait_for(description, DEADLINE, async || {
            self.events().into_iter().find(|event| accept(event))
        })
        .await
    }

    /// Asserts that no fact was stored twice, and that each id was computed as in the catalogue.
    pub fn assert_no_duplicates(&self) {
        let mut by_id: HashMap<String, Vec<Event>> = HashMap::new();
        for event in self.events() {
            let identity = event.kind().unwrap().identity();
            let id_source = event.id_source.clone().unwrap_or_default();
            assert!(identity.allows(&id_source), "{event:?}");
            by_id.entry(event.id.clone()).or_default().push(event);
        }
        by_id.retain(|_, same| same.len() > 1);
        assert!(by_id.is_empty(), "told twice: {by_id:#?}");
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Running {
    /// Waits until ingest is ready.
    pub async fn ready(self) -> Self {
        let description = "ingest is ready";
        wait_for(description, DEADLINE, async || {
            self.context.health.problems().is_empty().then_some(())
        })
        .await;
        self
    }

    /// Shuts it down gracefully.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.work.await.unwrap().unwrap();
    }

    /// Aborts it like a crash: nothing more is written.
    pub async fn crash(self) {
        self.work.abort();
        assert!(self.work.await.unwrap_err().is_cancelled());
    }
}

fn names_canceller(event: &Event) -> bool {
    event.r#type == "job.corrected" && event.actor.is_some()
}

fn is_about(event: &Event, cluster: &str, id: u32) -> bool {
    event.cluster == cluster
        && event.job().is_some_and(|job| {
            job.job_id == id || job.array.as_ref().is_some_and(|array| array.job_id == id)
        })
}

/// Sort key of `job/7_12/100` (task, submit time): the array before its tasks, 9 before 10.
fn natural(cluster: &str, key: &str) -> (Option<u32>, i64) {
    let run = RunKey::parse(cluster, key).unwrap();
    (run.task_id, run.submit_time)
}

/// Returns the job payload of an event.
pub fn payload(event: &Event) -> &JobEvent {
    match event.payload.as_ref() {
        Some(Payload::Job(job)) => job,
        other => panic!("no job event: {other:?}"),
    }
}
