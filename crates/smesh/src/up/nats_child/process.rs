//! The process of nats-server: started, recognised, ended.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mesh_events::catalogue::SERVICES_ACCOUNT;
use mesh_hook::listener;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::process::{Child, Command};

use super::super::data_dir::{DataDir, write_private};
use super::START_PATIENCE;
use crate::error::Error;

/// How long the server may take to stop before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Files {
    pub(super) conf: PathBuf,
    pid: PathBuf,
    pub(super) log: PathBuf,
    pub(super) store: PathBuf,
}

impl Files {
    pub(super) fn of(data: &DataDir) -> Self {
        Self {
            conf: data.private("nats.conf"),
            pid: data.private("nats.pid"),
            log: data.private("nats.log"),
            store: data.private("jetstream"),
        }
    }
}

/// Moves the streams of a former version, in which all users were in the server's default account, to the account of the services.
pub(super) fn move_streams(store: &Path) -> Result<(), Error> {
    let store = store.join("jetstream");
    let (from, to) = (store.join("$G"), store.join(SERVICES_ACCOUNT));
    if !from.join("streams").is_dir() || to.exists() {
        return Ok(());
    }
    fs::rename(&from, &to).map_err(|source| Error::io("move", &from, source))?;
    tracing::info!(to = %to.display(), "streams moved to the account of the services");
    Ok(())
}

pub(super) fn spawn(program: &Path, files: &Files) -> Result<Child, Error> {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&files.log)
        .map_err(|source| Error::io("open", &files.log, source))?;
    let child = Command::new(program)
        .arg("--config")
        .arg(&files.conf)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // Ctrl-C is for this process only, because the server stops last.
        .process_group(0)
        .spawn()
        .map_err(|source| Error::io("start", program, source))?;
    let pid = child.id().unwrap_or_default();
    write_private(&files.pid, pid.to_string().as_bytes(), None)?;
    Ok(child)
}

/// Why a started server is not usable.
pub(super) enum Failure {
    /// Another user's socket listens on the port. The value is the uid.
    Taken(u32),
    /// Any other error.
    Other(Error),
}

impl Failure {
    pub(super) fn explained(self, port: u16) -> Error {
        match self {
            Self::Taken(uid) => Error::Failed(format!(
                "port {port} on 127.0.0.1 is in use by a process of uid {uid}; choose another with --nats-port"
            )),
            Self::Other(error) => error,
        }
    }
}

/// Waits until the server listens. No other process on its port may receive a password.
pub(super) async fn wait_until_it_listens(
    child: &mut Child,
    port: u16,
    files: &Files,
) -> Result<(), Failure> {
    let started = tokio::time::Instant::now();
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let own = rustix::process::geteuid().as_raw();
    loop {
        let ended = child
            .try_wait()
            .map_err(|source| Failure::Other(Error::io("wait for", "nats-server", source)))?;
        let owner = listener::owner(address)
            .map_err(|source| Failure::Other(Error::io("read", "/proc/self/net/tcp", source)))?;
        match (ended, owner) {
            (None, Some(uid)) if uid == own => return Ok(()),
            (Some(_), Some(uid)) => return Err(Failure::Taken(uid)),
            _ => {}
        }
        if ended.is_some() || started.elapsed() > START_PATIENCE {
            // The server may still be starting, and the next one needs the store.
            child.kill().await.ok();
            let log = fs::read_to_string(&files.log).unwrap_or_default();
            let last = log.lines().last().unwrap_or("no output");
            return Err(Failure::Other(Error::Failed(format!(
                "nats-server did not start: {last} (see {})",
                files.log.display()
            ))));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(super) async fn end(child: &mut Child, files: &Files) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // The process may have ended already.
        kill_process(pid, Signal::TERM).ok();
        if tokio::time::timeout(STOP_PATIENCE, child.wait())
            .await
            .is_err()
        {
            tracing::warn!("nats-server does not stop, killing it");
            child.kill().await.ok();
        }
    }
    fs::remove_file(&files.pid).ok();
}

/// Kills the server at once. Acknowledged messages are on disk. Used when this process must end immediately.
pub fn kill(data: &DataDir) {
    if let Some((_, process)) = noted(&Files::of(data)) {
        kill_process(process, Signal::KILL).ok();
    }
}

/// The process of the pid file, if it is a nats-server with our configuration. The pid may belong to another process by now.
fn noted(files: &Files) -> Option<(i32, Pid)> {
    let text = fs::read_to_string(&files.pid).ok()?;
    let pid = text.trim().parse().ok()?;
    let process = Pid::from_raw(pid).filter(|_| is_ours(pid, &files.conf))?;
    Some((pid, process))
}

/// Stops the server left behind by a killed run.
pub(super) async fn stop_leftover(files: &Files) -> Result<(), Error> {
    let Some((pid, process)) = noted(files) else {
        return Ok(());
    };
    tracing::warn!(pid, "stopping the nats-server of a run that was killed");
    kill_process(process, Signal::TERM).ok();
    let started = tokio::time::Instant::now();
    while test_kill_process(process).is_ok() && is_ours(pid, &files.conf) {
        match started.elapsed() {
            waited if waited > 2 * STOP_PATIENCE => {
                return Err(Error::Failed(format!(
                    "nats-server {pid} of an earlier run does not stop; stop it manually"
                )));
            }
            waited if waited > STOP_PATIENCE => {
                kill_process(process, Signal::KILL).ok();
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn is_ours(pid: i32, conf: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let Ok(command) = fs::read(format!("/proc/{pid}/cmdline")) else {
        return false;
    };
    let mut arguments = command.split(|byte| *byte == 0);
    let program = arguments.next().unwrap_or_default();
    program.ends_with(b"nats-server")
        && arguments.any(|argument| argument == conf.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use mesh_bus::Bus;
    use mesh_events::catalogue::{self, Accounts, Login};
    use mesh_testkit::NatsServer;
    use tokio::net::TcpSocket;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn child(program: &str) -> Child {
        Command::new(program).spawn().unwrap()
    }

    #[tokio::test]
    async fn a_port_of_another_process_is_not_mistaken_for_our_server() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(&DataDir::prepare(folder.path()).unwrap());
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = other.local_addr().unwrap().port();
        let mut ended = child("true");
        ended.wait().await.unwrap();
        let failure = wait_until_it_listens(&mut ended, port, &files).await;
        let Err(failure @ Failure::Taken(_)) = failure else {
            panic!("it answers, but it is not ours");
        };
        assert!(failure.explained(port).to_string().contains("--nats-port"));
        // A port that nobody else gets meanwhile, either.
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let port = silent.local_addr().unwrap().port();
        let failure = wait_until_it_listens(&mut ended, port, &files).await;
        assert!(matches!(failure, Err(Failure::Other(_))), "nobody listens");
    }

    #[tokio::test]
    async fn streams_of_a_former_version_keep_their_messages() {
        let mut nats = NatsServer::start().await;
        let config = mesh_bus::Config {
            url: nats.url(),
            ..mesh_bus::Config::default()
        };
        let bus = Bus::connect(&config, "admin").await.unwrap();
        bus.ready(&CancellationToken::new()).await.unwrap();
        let published = bus.publish_raw("mesh.testbed.in.x".into(), "1", b"x".to_vec());
        published.await.unwrap();
        nats.kill();
        move_streams(nats.store()).unwrap();
        assert!(!nats.store().join("jetstream/$G").exists());

        let mut accounts = Accounts::default();
        let (name, password) = ("admin", "admin");
        accounts.add("admin", "testbed", Login::Password { name, password });
        nats.configure(&format!("accounts {{\n{}}}", accounts.render()));
        nats.restart().await;
        let config = mesh_bus::Config {
            user: Some(name.into()),
            password: Some(password.into()),
            provision: false,
            ..config
        };
        let bus = Bus::connect(&config, "admin").await.unwrap();
        bus.ready(&CancellationToken::new()).await.unwrap();
        let state = bus.stream_state(catalogue::MESH_IN).await.unwrap();
        assert_eq!(state.last_sequence, 1);

        // What a server of a former version made later does not replace them.
        fs::create_dir_all(nats.store().join("jetstream/$G/streams")).unwrap();
        move_streams(nats.store()).unwrap();
        let state = bus.stream_state(catalogue::MESH_IN).await.unwrap();
        assert_eq!(state.last_sequence, 1);
    }
}
