//! The own nats-server: found, checked, started, restarted when it dies, stopped at the end.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mesh_bus::Bus;
use mesh_events::catalogue::ROLES;
use mesh_runtime::Context;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::data_dir::{DataDir, write_private};
use super::nats_conf::NatsConf;
use crate::error::Error;

/// Oldest server that has what the mesh needs (atomic batches, strict API).
const MIN_VERSION: (u32, u32) = (2, 12);
/// How long a server may take to finish before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long a server may take to open its streams.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A nats-server that is kept running until [`NatsChild::stop`].
pub struct NatsChild {
    config: mesh_bus::Config,
    url: String,
    passwords: Vec<String>,
    stop: CancellationToken,
    supervisor: JoinHandle<()>,
}

impl NatsChild {
    /// Starts the server: credentials, configuration, process.
    ///
    /// # Errors
    /// If there is no nats-server that is new enough, its port is taken, or it does not start.
    pub async fn start(
        data: &DataDir,
        config: &mesh_bus::Config,
        port: Option<u16>,
    ) -> Result<Self, Error> {
        let program = find().await?;
        let files = Files::of(data);
        stop_leftover(&files).await?;
        let passwords = ROLES
            .iter()
            .map(|role| password(data, role))
            .collect::<Result<Vec<_>, _>>()?;
        let port = choose_port(data, port)?;
        let text = NatsConf {
            port,
            store: &files.store,
            log: &files.log,
            passwords: &passwords,
            events_max_bytes: config.events_max_bytes,
        }
        .render();
        write_private(&files.conf, text.as_bytes())?;
        let mut child = spawn(&program, &files)?;
        wait_until_it_listens(&mut child, port, &files).await?;
        let url = format!("nats://127.0.0.1:{port}");
        tracing::info!(%url, program = %program.display(), "nats-server started");
        let stop = CancellationToken::new();
        let supervisor = tokio::spawn(supervise(child, program, files, stop.clone()));
        Ok(Self {
            config: config.clone(),
            url,
            passwords,
            stop,
            supervisor,
        })
    }

    /// Its address.
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

    /// The configuration with which a role connects.
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
            provision: role == "admin",
            ..self.config.clone()
        })
    }

    /// Declares streams, consumers and buckets, as the only role that may.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn provision(&self, context: &Context) -> Result<(), Error> {
        let bus = Bus::connect(&self.config("admin")?, "admin").await?;
        let ready = tokio::time::timeout(START_PATIENCE, bus.ready(&context.shutdown)).await;
        let declared = match ready {
            Ok(ready) => ready,
            // Says what it is that the server refuses.
            Err(_) => bus.provision().await,
        };
        bus.close().await;
        Ok(declared?)
    }

    /// Stops the server and waits until it is gone.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.supervisor.await {
            tracing::warn!(%error, "stop nats-server");
        }
    }
}

struct Files {
    conf: PathBuf,
    pid: PathBuf,
    log: PathBuf,
    store: PathBuf,
}

impl Files {
    fn of(data: &DataDir) -> Self {
        Self {
            conf: data.private("nats.conf"),
            pid: data.private("nats.pid"),
            log: data.private("nats.log"),
            store: data.private("jetstream"),
        }
    }
}

/// `NATS_SERVER_BIN`, else the search path, else what `scripts/nats-server` has fetched.
async fn find() -> Result<PathBuf, Error> {
    const ADVICE: &str = "run scripts/nats-server, which fetches it on Debian, or install it and set NATS_SERVER_BIN; or set [mesh.nats] url to a server you have";
    let named = std::env::var_os("NATS_SERVER_BIN").map(PathBuf::from);
    let candidates: Vec<PathBuf> = match named {
        Some(path) => vec![path],
        None => searched(),
    };
    let mut old = None;
    for path in candidates {
        match version(&path).await {
            Some(version) if version >= MIN_VERSION => return Ok(path),
            Some(version) => old = Some((path, version)),
            None => {}
        }
    }
    let (major, minor) = MIN_VERSION;
    Err(Error::Failed(match old {
        Some((path, (a, b))) => format!(
            "{} is version {a}.{b}; nats-server {major}.{minor} or newer is needed: {ADVICE}",
            path.display()
        ),
        None => format!("no nats-server found; {major}.{minor} or newer is needed: {ADVICE}"),
    }))
}

fn searched() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = std::env::split_paths(&path)
        .map(|folder| folder.join("nats-server"))
        .collect();
    let fetched = Path::new(".tools/nats/usr/sbin/nats-server");
    let program = std::env::current_exe().unwrap_or_default();
    let folders = std::env::current_dir()
        .into_iter()
        .chain(program.ancestors().map(Path::to_owned));
    candidates.extend(folders.map(|folder| folder.join(fetched)));
    candidates.retain(|path| path.is_file());
    candidates
}

/// `nats-server: v2.15.1` as (2, 15); `None` if it does not run.
async fn version(path: &Path) -> Option<(u32, u32)> {
    let output = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .await
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.trim().rsplit('v').next()?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The role's password: made once, kept, so that a hook's configuration stays good over restarts.
fn password(data: &DataDir, role: &str) -> Result<String, Error> {
    let folder = data.private("nats-passwords");
    if !folder.is_dir() {
        fs::create_dir(&folder).map_err(|source| Error::io("create", &folder, source))?;
    }
    let path = folder.join(role);
    match fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= 32 => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::io("read", &path, source)),
    }
    let password = hex::encode(rand::random::<[u8; 24]>());
    write_private(&path, password.as_bytes())?;
    Ok(password)
}

/// The port that was asked for; else the one of the last run, else a free one.
fn choose_port(data: &DataDir, asked: Option<u16>) -> Result<u16, Error> {
    let free = |port: u16| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|listener| listener.local_addr())
    };
    let path = data.private("nats.port");
    let kept = fs::read_to_string(&path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|port| free(*port).is_ok());
    let port = match asked.filter(|port| *port != 0).or(kept) {
        Some(port) => {
            free(port).map_err(|source| Error::Failed(format!("port {port} on 127.0.0.1 for nats-server: {source}; choose another with --nats-port")))?;
            port
        }
        None => free(0)
            .map_err(|source| Error::io("find a free port on", "127.0.0.1", source))?
            .port(),
    };
    write_private(&path, port.to_string().as_bytes())?;
    Ok(port)
}

fn spawn(program: &Path, files: &Files) -> Result<Child, Error> {
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
        // Ctrl-C is for us: the server goes last.
        .process_group(0)
        .spawn()
        .map_err(|source| Error::io("start", program, source))?;
    let pid = child.id().unwrap_or_default();
    write_private(&files.pid, pid.to_string().as_bytes())?;
    Ok(child)
}

async fn wait_until_it_listens(child: &mut Child, port: u16, files: &Files) -> Result<(), Error> {
    let started = tokio::time::Instant::now();
    while tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .await
        .is_err()
    {
        let ended = child
            .try_wait()
            .map_err(|source| Error::io("wait for", "nats-server", source))?;
        if ended.is_some() || started.elapsed() > START_PATIENCE {
            let log = fs::read_to_string(&files.log).unwrap_or_default();
            let last = log.lines().last().unwrap_or("it said nothing");
            return Err(Error::Failed(format!(
                "nats-server did not start: {last} (see {})",
                files.log.display()
            )));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Starts the server again whenever it dies, at first at once, then ever slower.
async fn supervise(mut child: Child, program: PathBuf, files: Files, stop: CancellationToken) {
    let mut pause = Duration::from_millis(100);
    loop {
        let started = tokio::time::Instant::now();
        tokio::select! {
            () = stop.cancelled() => return end(&mut child, &files).await,
            status = child.wait() => match status {
                Ok(status) => tracing::error!(%status, log = %files.log.display(), "nats-server died, starting it again"),
                Err(error) => tracing::error!(%error, "wait for nats-server"),
            },
        }
        if started.elapsed() > Duration::from_secs(60) {
            pause = Duration::from_millis(100);
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(10));
            match spawn(&program, &files) {
                Ok(new) => {
                    child = new;
                    break;
                }
                Err(error) => tracing::error!(
                    error = mesh_runtime::chain(&error),
                    "start nats-server again"
                ),
            }
        }
    }
}

async fn end(child: &mut Child, files: &Files) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // It may be gone already.
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

/// Stops the server of a run that was killed. Only a process that is a nats-server with our configuration is touched: the pid
/// may belong to somebody else by now.
async fn stop_leftover(files: &Files) -> Result<(), Error> {
    let Some(pid) = fs::read_to_string(&files.pid)
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok())
    else {
        return Ok(());
    };
    let Some(process) = Pid::from_raw(pid).filter(|_| is_ours(pid, &files.conf)) else {
        return Ok(());
    };
    tracing::warn!(pid, "stopping the nats-server of a run that was killed");
    kill_process(process, Signal::TERM).ok();
    let started = tokio::time::Instant::now();
    while test_kill_process(process).is_ok() && is_ours(pid, &files.conf) {
        match started.elapsed() {
            waited if waited > 2 * STOP_PATIENCE => {
                return Err(Error::Failed(format!(
                    "nats-server {pid} of an earlier run does not end; end it yourself"
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
