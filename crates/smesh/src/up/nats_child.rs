//! The built-in nats-server: found, checked, started, restarted when it dies, and stopped at the end.

mod process;

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_bus::Bus;
use mesh_events::catalogue::ROLES;
use mesh_hook::listener;
use mesh_runtime::{Condition, Context};
use tokio::process::Child;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use process::kill;
use process::{Failure, Files, end, move_streams, spawn, stop_leftover, wait_until_it_listens};

use super::data_dir::{DataDir, private, write_private};
use super::nats_conf::{NatsConf, SYSTEM};
use super::nats_program;
use crate::error::Error;

/// How many times another port is chosen if a port is taken by another process.
const PORT_ATTEMPTS: u32 = 5;
/// Interval of the storage health check.
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);
/// A server that does not store is restarted only if this many bytes fit on its disk.
const ROOM: usize = 1 << 20;
/// A server with room that reports another problem is restarted after so many checks in a row. It may end the problem by itself.
const UNHEALTHY_CHECKS: u32 = 3;
/// As many after restarts that did not help: ten minutes.
const MAX_UNHEALTHY_CHECKS: u32 = 300;
/// How long the server may take to open its streams.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A nats-server, kept running until [`NatsChild::stop`].
pub struct NatsChild {
    config: mesh_bus::Config,
    url: String,
    passwords: Vec<String>,
    stop: CancellationToken,
    supervisor: JoinHandle<Result<(), Error>>,
}

impl NatsChild {
    /// Starts the server: credentials, configuration, process.
    ///
    /// # Errors
    /// If no sufficiently new nats-server is installed, its port is taken, or it does not start.
    pub async fn start(
        data: &DataDir,
        cluster: &str,
        config: &mesh_bus::Config,
        port: Option<u16>,
        stores: Condition,
        shutdown: &CancellationToken,
    ) -> Result<Self, Error> {
        let program = nats_program::find().await?;
        let files = Files::of(data);
        stop_leftover(&files).await?;
        move_streams(&files.store)?;
        let passwords = ROLES
            .iter()
            .map(|role| password(data, role))
            .collect::<Result<Vec<_>, _>>()?;
        let system_password = hex::encode(rand::random::<[u8; 24]>());
        let mut attempts = PORT_ATTEMPTS;
        let (child, port) = loop {
            let port = choose_port(data, port)?;
            let text = NatsConf {
                cluster,
                port,
                store: &files.store,
                log: &files.log,
                passwords: &passwords,
                system_password: &system_password,
                events_max_bytes: config.events_max_bytes,
            }
            .render();
            write_private(&files.conf, text.as_bytes(), None)?;
            let mut child = spawn(&program, &files)?;
            attempts -= 1;
            match wait_until_it_listens(&mut child, port, &files).await {
                Ok(()) => break (child, port),
                // Another process was faster. If no port was configured, the next attempt chooses another one.
                Err(Failure::Taken(uid)) if attempts > 0 => {
                    tracing::warn!(
                        port,
                        uid,
                        "another process listens on the port of nats-server"
                    );
                }
                Err(failure) => return Err(failure.explained(port)),
            }
        };
        let url = format!("nats://127.0.0.1:{port}");
        tracing::info!(%url, program = %program.display(), "nats-server started");
        let system = mesh_bus::Config {
            url: url.clone(),
            user: Some(SYSTEM.to_owned()),
            password: Some(system_password.into()),
            provision: false,
            ..mesh_bus::Config::default()
        };
        stores.ok();
        let stop = CancellationToken::new();
        let supervised = RestartInputs {
            program,
            files,
            port,
            system: Bus::connect(&system, SYSTEM).await?,
            stores,
            stop: stop.clone(),
            shutdown: shutdown.clone(),
        };
        let supervisor = tokio::spawn(supervised.run(child));
        Ok(Self {
            config: config.clone(),
            url,
            passwords,
            stop,
            supervisor,
        })
    }

    /// URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Password of a role.
    ///
    /// # Errors
    /// If the catalogue does not know the role.
    pub fn password(&self, role: &str) -> Result<&str, Error> {
        let at = ROLES.iter().position(|known| *known == role);
        at.and_then(|at| self.passwords.get(at))
            .map(String::as_str)
            .ok_or_else(|| Error::Failed(format!("no NATS user for {role}")))
    }

    /// Bus configuration of a role.
    ///
    /// # Errors
    /// If the catalogue does not know the role.
    pub fn config(&self, role: &str) -> Result<mesh_bus::Config, Error> {
        Ok(mesh_bus::Config {
            url: self.url.clone(),
            user: Some(role.to_owned()),
            password: Some(self.password(role)?.into()),
            password_file: None,
            credentials_file: None,
            nkey_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            provision: role == "admin",
            ..self.config.clone()
        })
    }

    /// Declares streams, consumers and buckets, as the only role that may. From then on, lost ones are reported.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn provision(&self, context: &Context) -> Result<(), Error> {
        let bus = Bus::connect(&self.config("admin")?, "admin").await?;
        let ready = tokio::time::timeout(START_PATIENCE, bus.ready(&context.shutdown)).await;
        match ready {
            Ok(ready) => ready?,
            // Returns the reason of the refusal.
            Err(_) => bus.provision().await?,
        }
        context.watch_nats("smesh", &bus);
        Ok(())
    }

    /// Stops the server and waits for its end.
    ///
    /// # Errors
    /// If the server could not be kept running before.
    pub async fn stop(self) -> Result<(), Error> {
        self.stop.cancel();
        self.supervisor.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "stop nats-server");
            Ok(())
        })
    }
}

/// Bus configuration of the administrator for a running `smesh up`.
///
/// # Errors
/// If it is not running, or its files belong to another user.
pub fn administrator(data_dir: &Path) -> Result<mesh_bus::Config, Error> {
    let read = |name: &str| {
        let path = private(data_dir, name);
        fs::read_to_string(&path).map_err(|source| Error::io("read", &path, source))
    };
    let port = read("nats.port")?;
    let port: u16 = port
        .trim()
        .parse()
        .map_err(|_| Error::Failed(format!("nats.port contains {port:?}")))?;
    let folder = private(data_dir, "");
    let folder = fs::metadata(&folder).map_err(|source| Error::io("inspect", &folder, source))?;
    // The password is not sent to a server of another user.
    let owner = listener::owner((Ipv4Addr::LOCALHOST, port).into());
    if owner.ok().flatten() != Some(folder.uid()) {
        let problem = format!("its nats-server does not listen on port {port}");
        return Err(Error::Failed(problem));
    }
    Ok(mesh_bus::Config {
        url: format!("nats://127.0.0.1:{port}"),
        user: Some("admin".to_owned()),
        password: Some(read("nats-passwords/admin")?.into()),
        provision: false,
        ..mesh_bus::Config::default()
    })
}

/// Creates a password for a role. It is new at every start: while the server was down, another user may have listened on its port, and
/// a password sent there must be worthless. The file is for the administrator's own tools.
fn password(data: &DataDir, role: &str) -> Result<String, Error> {
    let folder = data.private("nats-passwords");
    if !folder.is_dir() {
        fs::create_dir(&folder).map_err(|source| Error::io("create", &folder, source))?;
    }
    let path = folder.join(role);
    let password = hex::encode(rand::random::<[u8; 24]>());
    write_private(&path, password.as_bytes(), None)?;
    Ok(password)
}

/// The requested port, else the port of the last run, else a free one.
fn choose_port(data: &DataDir, asked: Option<u16>) -> Result<u16, Error> {
    let free = |port: u16| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|listener| listener.local_addr())
    };
    let path = data.private("nats.port");
    let stored_port = fs::read_to_string(&path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|port| free(*port).is_ok());
    let port = match asked.filter(|port| *port != 0).or(stored_port) {
        Some(port) => {
            free(port).map_err(|source| Error::Failed(format!("port {port} on 127.0.0.1 for nats-server: {source}; choose another with --nats-port")))?;
            port
        }
        None => free(0)
            .map_err(|source| Error::io("find a free port on", "127.0.0.1", source))?
            .port(),
    };
    write_private(&path, port.to_string().as_bytes(), None)?;
    Ok(port)
}

/// Data needed to restart the server.
struct RestartInputs {
    program: PathBuf,
    files: Files,
    port: u16,
    /// Connection for health checks.
    system: Bus,
    stores: Condition,
    stop: CancellationToken,
    shutdown: CancellationToken,
}

impl RestartInputs {
    /// Restarts the server whenever it dies, first at once, then with growing pauses, until stopped. If another process has taken its
    /// port meanwhile, everything stops: the services reconnect to that port by themselves, and the next start has another port and
    /// new passwords.
    async fn run(self, mut child: Child) -> Result<(), Error> {
        let mut pause = Duration::ZERO;
        let mut needed = UNHEALTHY_CHECKS;
        loop {
            let started = tokio::time::Instant::now();
            tokio::select! {
                () = self.stop.cancelled() => {
                    end(&mut child, &self.files).await;
                    return Ok(());
                }
                status = child.wait() => match status {
                    Ok(status) => tracing::error!(%status, log = %self.files.log.display(), "nats-server died, restarting it"),
                    Err(error) => tracing::error!(%error, "wait for nats-server"),
                },
                // Without a restart, the server refuses even after its disk has room again.
                problem = self.stores_nothing(&mut needed) => {
                    // Other streams may work, and are interrupted.
                    needed = (needed * 2).min(MAX_UNHEALTHY_CHECKS);
                    tracing::error!(problem, "nats-server stores nothing, restarting it");
                    end(&mut child, &self.files).await;
                }
            }
            if started.elapsed() > Duration::from_secs(60) {
                pause = Duration::ZERO;
            }
            child = loop {
                tokio::select! {
                    () = self.stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).clamp(Duration::from_millis(100), Duration::from_secs(10));
                match self.restart().await {
                    Ok(new) => break new,
                    Err(failure @ Failure::Taken(_)) => {
                        self.shutdown.cancel();
                        return Err(failure.explained(self.port));
                    }
                    Err(Failure::Other(error)) => tracing::error!(
                        error = mesh_runtime::error_chain(&error),
                        "restart nats-server"
                    ),
                }
            };
        }
    }

    /// Returns when the server does not store but may after a restart: if it has met a write error and there is room again, or if it has
    /// had a problem for `needed` checks in a row.
    async fn stores_nothing(&self, needed: &mut u32) -> String {
        let mut in_a_row = 0;
        let mut last_problem: Option<String> = None;
        let not_stored = |problem: &str, checks: u32| {
            let seconds = checks * HEALTH_INTERVAL.as_secs() as u32;
            self.stores.fail(format!(
                "nats-server stores nothing: {problem}; if that does not end, it is restarted in {seconds} s"
            ));
        };
        loop {
            tokio::time::sleep(HEALTH_INTERVAL).await;
            // An unresponsive server is reported by all connected services.
            let Ok(problem) = self.system.server_problem().await else {
                in_a_row = 0;
                if let Some(problem) = &last_problem {
                    not_stored(problem, *needed);
                }
                continue;
            };
            last_problem.clone_from(&problem);
            let Some(problem) = problem else {
                self.stores.ok();
                (in_a_row, *needed) = (0, UNHEALTHY_CHECKS);
                continue;
            };
            let room = has_room(&self.files.store).await;
            in_a_row = if room.is_ok() { in_a_row + 1 } else { 0 };
            let is_due = room.is_ok() && (problem.contains("write error") || in_a_row >= *needed);
            match &room {
                Ok(()) if is_due => self.stores.fail(format!(
                    "nats-server stores nothing: {problem}; it is restarted"
                )),
                Ok(()) => not_stored(&problem, *needed - in_a_row),
                Err(error) => self.stores.fail(format!(
                    "nats-server stores nothing: {problem}; free space on the disk of {} ({error}), then it is restarted automatically",
                    self.files.store.display()
                )),
            }
            if is_due {
                return problem;
            }
        }
    }

    async fn restart(&self) -> Result<Child, Failure> {
        let mut child = spawn(&self.program, &self.files).map_err(Failure::Other)?;
        tokio::select! {
            // The caller stops it as it stops a running server.
            () = self.stop.cancelled() => {}
            listens = wait_until_it_listens(&mut child, self.port, &self.files) => listens?,
        }
        Ok(child)
    }
}

/// Checks that data can be written to a folder and synced.
async fn has_room(folder: &Path) -> std::io::Result<()> {
    let folder = folder.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        let mut file = tempfile::tempfile_in(folder)?;
        file.write_all(&vec![1; ROOM])?;
        file.sync_all()
    });
    written.await.map_err(std::io::Error::other)?
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    #[test]
    fn a_stored_port_that_is_in_use_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::prepare(folder.path()).unwrap();
        let stored_port = choose_port(&data, None).unwrap();
        assert_eq!(choose_port(&data, None).unwrap(), stored_port);
        let _other = TcpListener::bind((Ipv4Addr::LOCALHOST, stored_port)).unwrap();
        assert_ne!(choose_port(&data, None).unwrap(), stored_port);
        assert!(choose_port(&data, Some(stored_port)).is_err(), "asked for");
    }

    /// In an account that is not the system's, a client can answer in the server's place.
    #[tokio::test]
    async fn a_server_with_any_problem_that_does_not_end_is_restarted() {
        let nats = mesh_testkit::NatsServer::start().await;
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::prepare(folder.path()).unwrap();
        let files = Files::of(&data);
        fs::create_dir_all(&files.store).unwrap();
        let config = mesh_bus::Config {
            url: nats.url(),
            provision: false,
            ..mesh_bus::Config::default()
        };
        let health = mesh_runtime::Health::default();
        let supervised = RestartInputs {
            program: PathBuf::new(),
            files,
            port: 0,
            system: Bus::connect(&config, SYSTEM).await.unwrap(),
            stores: health.condition("nats"),
            stop: CancellationToken::new(),
            shutdown: CancellationToken::new(),
        };
        let client = async_nats::connect(nats.url()).await.unwrap();
        let mut requests = client
            .subscribe("$SYS.REQ.SERVER.PING.HEALTHZ")
            .await
            .unwrap();
        client.flush().await.unwrap();
        let mut needed = 2;
        let checks = supervised.stores_nothing(&mut needed);
        let answers = async {
            let answer = r#"{"data":{"status":"unavailable","error":"JetStream not enabled"}}"#;
            let healthy = r#"{"data":{"status":"ok"}}"#;
            // It recovers once: the count starts again, up to the first number of checks. So it does after a check without an answer.
            for (text, expected) in [
                (answer, "it is restarted in 2 s"),
                (healthy, ""),
                (answer, "it is restarted in 4 s"),
                (answer, "it is restarted in 2 s"),
                ("no answer", "it is restarted in 6 s"),
                (answer, "it is restarted in 4 s"),
                (answer, "it is restarted in 2 s"),
                (answer, "it is restarted"),
            ] {
                let request = requests.next().await.unwrap();
                let reply = request.reply.unwrap();
                client.publish(reply, text.into()).await.unwrap();
                mesh_testkit::wait_until(expected, START_PATIENCE, async || {
                    let problems = health.problems();
                    let problem = problems.get("nats").map_or("", String::as_str);
                    problem.ends_with(expected) && problem.is_empty() == expected.is_empty()
                })
                .await;
            }
        };
        let (problem, ()) =
            tokio::time::timeout(START_PATIENCE, async { tokio::join!(checks, answers) })
                .await
                .unwrap();
        assert_eq!(problem, "JetStream not enabled");
    }

    #[test]
    fn every_start_has_new_passwords() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::prepare(folder.path()).unwrap();
        let first = password(&data, "hook").unwrap();
        let second = password(&data, "hook").unwrap();
        assert!(first.len() >= 32 && first != second);
        let stored_port = fs::read_to_string(data.private("nats-passwords/hook")).unwrap();
        assert_eq!(stored_port, second);
    }
}
