//! The built-in nats-server: found, checked, started, restarted when it dies, and stopped at the end.

mod process;
mod supervisor;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use mesh_bus::Bus;
use mesh_events::catalogue::ROLES;
use mesh_hook::listener;
use mesh_runtime::{Condition, Context};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use process::kill;
use process::{Failure, Files, move_streams, spawn, stop_leftover, wait_until_it_listens};

use supervisor::Supervisor;

use super::data_dir::{DataDir, private, write_private};
use super::nats_conf::{NatsConf, SYSTEM};
use super::nats_program;
use crate::error::Error;

/// How many times another port is chosen if a port is taken by another process.
const PORT_ATTEMPTS: u32 = 5;
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
        let supervised = Supervisor {
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

#[cfg(test)]
mod tests {
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
