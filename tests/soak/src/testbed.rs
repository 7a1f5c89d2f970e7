//! The environment of a soak: a cluster, a nats-server, the services as processes, and one shared poll of the queue.

mod poll;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_testkit::NatsServer;
use tokio::sync::{Mutex, RwLock, watch};
use tokio::time::{Instant, sleep};

use super::log::Log;
use super::plan::{Form, Source};
use integration::set_mode;
use integration::{
    Cluster, ClusterOptions, Error, Mesh, MeshOptions, Programs, Service, Slurm as _, scenario,
};

/// Time limit of Slurm operations on a busy machine, including a restart.
pub(super) const PATIENCE: Duration = Duration::from_secs(240);
/// Second replicas of the services that elect a leader.
const REPLICAS: [&str; 2] = ["ingest-2", "node-watcher-2"];
/// How long the election of a new leader may take.
const ELECTED: Duration = Duration::from_secs(20);

/// Peak memory of ingest, in MiB.
const MAX_INGEST_MIB: u64 = 150;
/// Peak memory of any other service, in MiB.
const MAX_SERVICE_MIB: u64 = 300;

/// State and reason of every job in slurmctld, by squeue's id (`12`, `12_3`, `12_[4-7]`, `12+1`).
pub(super) type Queue = HashMap<String, (String, String)>;

/// All running parts.
pub(super) struct Testbed {
    pub(super) cluster: Cluster,
    pub(super) mesh: Mesh,
    pub(super) nats: Mutex<NatsServer>,
    pub(super) services: BTreeMap<&'static str, Mutex<Service>>,
    pub(super) log: RefCell<Log>,
    /// Peak memory of each service, in MiB, over all its processes.
    pub(super) peaks: RefCell<BTreeMap<&'static str, u64>>,
    /// Read-locked by every command of the driver, write-locked while slurmctld is down, so that no action is interrupted.
    pub(super) gate: RwLock<()>,
    /// Environment of every service.
    pub(super) environment: Vec<(&'static str, OsString)>,
    source: Source,
    queue: watch::Sender<Queue>,
    polling: Cell<bool>,
}

impl Testbed {
    /// Starts everything and waits until the mesh is ready.
    pub(super) async fn start(form: Form, source: Source) -> Result<Self, Error> {
        let mut options = ClusterOptions::small("soak");
        options.knobs.retain(|(name, _)| *name != "NODES");
        options
            .knobs
            .extend([("NODES", "5".to_owned()), ("CG", "0".to_owned())]);
        if source == Source::Rest {
            options.knobs.push(("REST", "1".to_owned()));
        }
        let cluster = Cluster::start(&options).await?;
        let slurm = match source {
            Source::Commands => String::new(),
            Source::Rest => by_rest(&cluster).await?,
        };
        let nats = NatsServer::start().await;
        let overlay = format!(
            "[mesh.nats]\nurl = \"{}\"\n[ingest]\npoll_interval = \"1s\"\n[node-watcher]\npoll_interval = \"1s\"\n{slurm}",
            nats.url()
        );
        let mesh = Mesh::set_up(
            &cluster,
            "mesh",
            &MeshOptions {
                overlay,
                price_book: Some(
                    scenario::PRICE_BOOK
                        .replace("n[1-2]", "n[1-5]")
                        .replace("\"n[3-4]\"", "\"g[3-4]\""),
                ),
                identities: Some(scenario::IDENTITIES.to_owned()),
            },
        )
        .await?;
        let environment = match form {
            Form::Short => Vec::new(),
            Form::Long => fake_clock(&cluster.path("clock"))?,
        };
        let mut services = BTreeMap::new();
        for name in Programs::SERVICES.into_iter().chain(REPLICAS) {
            let service = start(&mesh, name, &environment).await?;
            services.insert(name, service);
        }
        for service in services.values_mut() {
            service.wait_ready(200).await?;
        }
        let testbed = Self {
            cluster,
            mesh,
            nats: Mutex::new(nats),
            services: services
                .into_iter()
                .map(|(name, service)| (name, Mutex::new(service)))
                .collect(),
            log: RefCell::new(Log::new()),
            peaks: RefCell::default(),
            gate: RwLock::new(()),
            environment,
            source,
            queue: watch::Sender::default(),
            polling: Cell::new(true),
        };
        testbed.write_hook_configs().await?;
        testbed.cluster.ring(&testbed.hook_config("hook"))?;
        Ok(testbed)
    }

    /// Writes a configuration for the hooks, and one whose spool is full.
    async fn write_hook_configs(&self) -> Result<(), Error> {
        let url = self.nats.lock().await.url();
        let spool = self.cluster.path("spool");
        std::fs::create_dir(&spool).map_err(Error::io("make", &spool))?;
        // SlurmUser runs the hooks.
        set_mode(&spool, 0o777)?;
        for (name, more) in [("hook", ""), ("hook-full", "max_spool_bytes = 1\n")] {
            let path = self.hook_config(name);
            let text =
                format!("cluster = \"soak\"\nspool = {spool:?}\n{more}[nats]\nurl = \"{url}\"\n");
            std::fs::write(&path, text).map_err(Error::io("write", &path))?;
            set_mode(&path, 0o644)?;
        }
        Ok(())
    }

    /// Path of `hook` or `hook-full`.
    pub(super) fn hook_config(&self, name: &str) -> PathBuf {
        self.cluster.path(&format!("{name}.conf"))
    }

    /// Writes to the log.
    pub(super) fn note(&self, text: impl AsRef<str>) {
        self.log.borrow_mut().note(text.as_ref());
    }

    /// Runs a Slurm command, not while slurmctld is down. Retries if it could not connect.
    pub(super) async fn ask(&self, user: &str, command: &[&str]) -> Result<String, Error> {
        const NOT_THROUGH: [&str; 5] = [
            "Unable to contact",
            "Socket timed out",
            "Connection refused",
            "Transport endpoint",
            "try again",
        ];
        let began = Instant::now();
        loop {
            let _open = self.gate.read().await;
            match self.cluster.ask(user, command).await {
                Err(Error::Command { printed, .. })
                    if began.elapsed() < PATIENCE
                        && NOT_THROUGH.iter().any(|words| printed.contains(words)) => {}
                answer => {
                    let printed = answer
                        .as_ref()
                        .map_or_else(Error::to_string, |text| text.replace('\n', " / "));
                    if !matches!(command.first(), Some(&("env" | "squeue"))) {
                        self.note(format!("{user}: {}: {printed}", command.join(" ")));
                    }
                    return answer;
                }
            }
            drop(_open);
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Waits until a service has polled Slurm so often that at least two polls began after now, by its own count and in the same
    /// process. A standby does not poll. False if that does not happen.
    ///
    /// Only the polls of the one leader count. A former leader that stood still continues until it notices: what it polls is not published.
    ///
    /// With slurmrestd polls are 30 s apart. The driver does not wait for them there, and facts that only polls show are not compared.
    pub(super) async fn polled(&self, program: &str) -> bool {
        const POLLS: f64 = 4.0;
        if self.source == Source::Rest {
            return false;
        }
        let line = match program {
            "ingest" => "ingest_poll_seconds_count",
            _ => "node_watcher_poll_seconds_count",
        };
        let began = Instant::now();
        let mut first: Option<(Option<u32>, f64)> = None;
        while began.elapsed() < PATIENCE {
            sleep(Duration::from_millis(300)).await;
            let mut leaders = Vec::new();
            let all = self.services.iter();
            for (_, service) in all.filter(|(name, _)| program_of(name) == program) {
                // The holder of the lock is about to restart the service, or waits like this one.
                let Ok(service) = service.try_lock() else {
                    continue;
                };
                if service.metric("mesh_leader").await == Some(1.0) {
                    leaders.push((service.id(), service.metric(line).await));
                }
            }
            let [(id, Some(count))] = leaders[..] else {
                first = None;
                continue;
            };
            let known = first.filter(|(known, _)| *known == id);
            let (_, start) = *first.insert(known.unwrap_or((id, count)));
            if count >= start + POLLS {
                return true;
            }
        }
        false
    }

    /// Records the peak memory of every service. One that is being killed or restarted is left out.
    pub(super) fn sample_memory(&self) {
        let mut peaks = self.peaks.borrow_mut();
        for (name, service) in &self.services {
            let peak = service.try_lock().ok().and_then(|one| one.peak_mib());
            let known = peaks.entry(*name).or_default();
            *known = (*known).max(peak.unwrap_or_default());
        }
    }

    /// Reads which nodes slurmctld set down by itself.
    pub(super) fn read_unresponsive(&self) -> Result<(), Error> {
        let path = self.cluster.dir().join("log/slurmctld.log");
        let text = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let text = String::from_utf8_lossy(&text);
        self.log.borrow_mut().read_unresponsive(&text);
        Ok(())
    }

    /// Services that have used more memory than allowed.
    pub(super) fn too_large(&self) -> Vec<String> {
        let peaks = self.peaks.borrow();
        let large = peaks.iter().filter(|(name, peak)| **peak > limit(name));
        large
            .map(|(name, peak)| format!("{name} used {peak} MiB of at most {}", limit(name)))
            .collect()
    }

    /// The leader among a service's replicas. The first replica if none reports it, as while NATS is unavailable.
    pub(super) async fn leader(&self, service: &'static str) -> &'static str {
        let began = Instant::now();
        while began.elapsed() < ELECTED {
            let all = self.services.iter();
            for (name, replica) in all.filter(|(name, _)| program_of(name) == service) {
                if replica.lock().await.metric("mesh_leader").await == Some(1.0) {
                    self.note(format!("{name} leads"));
                    return name;
                }
            }
            sleep(Duration::from_millis(500)).await;
        }
        service
    }
}

/// Starts a service, or one of its replicas.
pub(super) async fn start(
    mesh: &Mesh,
    name: &'static str,
    environment: &[(&'static str, OsString)],
) -> Result<Service, Error> {
    Service::start_replica(mesh, program_of(name), name, environment).await
}

/// Allowed peak memory of a service, in MiB.
fn limit(name: &str) -> u64 {
    match program_of(name) {
        "ingest" => MAX_INGEST_MIB,
        _ => MAX_SERVICE_MIB,
    }
}

/// `ingest` for `ingest-2`.
fn program_of(name: &str) -> &str {
    name.strip_suffix("-2").unwrap_or(name)
}

/// The configuration of a mesh that queries slurmrestd, with a token that outlives every soak.
async fn by_rest(cluster: &Cluster) -> Result<String, Error> {
    let command = ["scontrol", "token", "username=root", "lifespan=86400"];
    let token = cluster.ask("root", &command).await?;
    let (file, socket) = (cluster.path("token"), cluster.dir().join("rest/socket"));
    std::fs::write(&file, token).map_err(Error::io("write", &file))?;
    set_mode(&file, 0o600)?;
    Ok(format!(
        "[slurm]\nsource = \"rest\"\nrest_url = \"unix://{}\"\ntoken_file = {file:?}\nrest_user = \"root\"\n",
        socket.display()
    ))
}

/// Variables that give a service its own clock, which is wrong by the number of seconds in the file. Its timers and file times are not
/// affected.
fn fake_clock(file: &Path) -> Result<Vec<(&'static str, OsString)>, Error> {
    set_clock(file, 0)?;
    let library = std::fs::read_dir("/usr/lib")
        .map_err(Error::io("list", "/usr/lib"))?
        .flatten()
        .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.exists())
        .ok_or_else(|| {
            Error::Machine("libfaketime is missing, which a soak needs for steps of the clock: run `make setup`".into())
        })?;
    Ok(vec![
        ("LD_PRELOAD", library.into()),
        ("FAKETIME_TIMESTAMP_FILE", file.into()),
        ("FAKETIME_NO_CACHE", "1".into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ("DONT_FAKE_MONOTONIC", "1".into()),
        ("NO_FAKE_STAT", "1".into()),
    ])
}

/// Sets the error of that clock, in seconds.
pub(super) fn set_clock(file: &Path, offset: i64) -> Result<(), Error> {
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{offset:+}\n")).map_err(Error::io("write", &new))?;
    std::fs::rename(&new, file).map_err(Error::io("write", file))
}
