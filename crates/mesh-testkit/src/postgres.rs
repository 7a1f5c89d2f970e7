//! A PostgreSQL server for tests.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use crate::Port;

/// The superuser of every server.
const SUPERUSER: &str = "postgres";
/// PostgreSQL refuses to run as root; Debian's package creates this user.
const UNIX_USER: &str = "postgres";
/// Deadline of a start, including recovery after a kill.
const PATIENCE: Duration = Duration::from_secs(60);
/// Commits are not durable unless a client asks for it: the ledger must ask.
const CONFIGURATION: &str = "listen_addresses = ''\nmax_wal_size = 256MB\nshared_buffers = 32MB\nsynchronous_commit = off\n";

/// A PostgreSQL server with data and socket in a separate folder. It listens on no TCP port unless started with TLS. Stopped on drop or by
/// its guard process.
pub struct Postgres {
    folder: PathBuf,
    /// False if the folder belongs to the test and stays.
    temporary: bool,
    /// TCP port of a server with TLS.
    port: Option<Port>,
    server: Option<Server>,
    databases: AtomicU32,
}

struct Server {
    postmaster: Child,
    /// A process that waits for its input to end, as it does however this process ends. It then stops the server and removes its folder.
    guard: Child,
}

impl Postgres {
    /// Starts a server.
    ///
    /// # Panics
    /// If there is no PostgreSQL, with the command that installs one.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a server with additional lines of configuration.
    ///
    /// # Panics
    /// If there is no PostgreSQL, with the command that installs one.
    pub async fn start_with(configuration: &str) -> Self {
        Self::start_in(temporary(), true, None, configuration).await
    }

    /// Starts a server that also listens on a port of 127.0.0.1, with TLS by this certificate and key (PEM).
    ///
    /// # Panics
    /// If there is no PostgreSQL, with the command that installs one.
    pub async fn start_tls(certificate: &str, key: &str) -> Self {
        let (folder, port) = (temporary(), Port::take());
        let mut configuration = format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nssl = on\n",
            port.address().port()
        );
        for (setting, name, text) in [
            ("ssl_cert_file", "server.crt", certificate),
            ("ssl_key_file", "server.key", key),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("write what TLS needs");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("keep it");
            configuration.push_str(&format!("{setting} = '{}'\n", path.display()));
        }
        Self::start_in(folder, true, Some(port), &configuration).await
    }

    /// Starts a server in an empty folder, e.g. of a small file system; the folder stays.
    ///
    /// # Panics
    /// If there is no PostgreSQL, with the command that installs one.
    pub async fn start_at(folder: &Path) -> Self {
        Self::start_in(folder.to_owned(), false, None, "").await
    }

    /// One server for all tests of a process: fast, and not killed before they end.
    ///
    /// # Panics
    /// If there is no PostgreSQL, with the command that installs one.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Postgres> = OnceCell::const_new();
        let start = || Self::start_with("fsync = off\nmax_connections = 200");
        SHARED.get_or_init(start).await
    }

    async fn start_in(
        folder: PathBuf,
        temporary: bool,
        port: Option<Port>,
        configuration: &str,
    ) -> Self {
        let data = folder.join("data");
        std::fs::create_dir(&data).expect("create data folder");
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("open folder");
        if is_root() {
            let status = Command::new("chown")
                .args(["-R", &format!("{UNIX_USER}:")])
                .arg(&folder)
                .status()
                .expect("run chown");
            assert!(status.success(), "no user {UNIX_USER}: run `make setup`");
        }
        let output = as_unix_user(&program("initdb"))
            .arg("--pgdata")
            .arg(&data)
            .args(["--username", SUPERUSER, "--encoding=UTF8", "--locale=C"])
            .args([
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                "--no-sync",
            ])
            .current_dir("/")
            .output()
            .expect("run initdb");
        assert!(
            output.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = format!(
            "{CONFIGURATION}unix_socket_directories = '{}'\n{configuration}\n",
            folder.display()
        );
        std::fs::write(data.join("postgresql.auto.conf"), text).expect("write configuration");
        let mut server = Self {
            folder,
            temporary,
            port,
            server: None,
            databases: AtomicU32::new(0),
        };
        server.restart().await;
        server
    }

    /// Address of a database for a role; the socket needs no password.
    pub fn url(&self, role: &str, database: &str) -> String {
        let folder = self.folder.display();
        let port = self.port();
        format!("postgres://{role}@localhost/{database}?host={folder}&port={port}")
    }

    /// TCP port of a server with TLS; for others only a part of their socket's name.
    pub fn port(&self) -> u16 {
        self.port
            .as_ref()
            .map_or(5432, |port| port.address().port())
    }

    /// Creates an empty database. Returns its address for its owner, the superuser.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn create_database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let postgres = self.url(SUPERUSER, "postgres");
        psql(&postgres, &format!("CREATE DATABASE {name}"));
        self.url(SUPERUSER, &name)
    }

    /// Folder of data, socket and log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends the server as a power cut would; its data stays.
    pub fn kill(&mut self) {
        if let Some(Server {
            mut postmaster,
            mut guard,
        }) = self.server.take()
        {
            // The guard first, so that it never kills a later process with the same id.
            guard.kill().expect("kill guard");
            guard.wait().expect("wait for guard");
            postmaster.kill().expect("kill PostgreSQL");
            postmaster.wait().expect("wait for PostgreSQL");
        }
    }

    /// Suspends all its processes until the result is dropped: it accepts connections and never answers, like a server whose disk hangs.
    ///
    /// # Panics
    /// If there is no server.
    pub fn pause(&self) -> PausedPostgres {
        let postmaster = self.server.as_ref().expect("a server").postmaster.id();
        // The postmaster first, which starts the others.
        signal("-STOP", &[postmaster.to_string()]);
        let children = format!("/proc/{postmaster}/task/{postmaster}/children");
        let children = std::fs::read_to_string(children).expect("read its processes");
        let mut processes = vec![postmaster.to_string()];
        processes.extend(children.split_whitespace().map(str::to_owned));
        signal("-STOP", &processes);
        PausedPostgres(processes)
    }

    /// Starts the killed server again on its data.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart(&mut self) {
        self.kill();
        let start = Instant::now();
        let mut postmaster = self.spawn();
        let ready = || {
            Command::new(program("pg_isready"))
                .args(["--quiet", "--host"])
                .arg(&self.folder)
                .args(["--port", &self.port().to_string()])
                .status()
                .expect("run pg_isready")
                .success()
        };
        while !ready() {
            // Remaining processes of a killed server hold its shared memory for a moment; the new one then exits at once.
            if postmaster
                .try_wait()
                .expect("wait for PostgreSQL")
                .is_some()
            {
                postmaster = self.spawn();
            }
            if start.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(self.folder.join("postgres.log"));
                panic!("PostgreSQL did not start:\n{}", log.unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let remove = if self.temporary { "rm -rf \"$2\"" } else { "" };
        let guard = Command::new("sh")
            .args([
                "-c",
                &format!(
                    "cat >/dev/null; kill -QUIT $1; while kill -0 $1; do sleep 0.1; done; {remove}"
                ),
                "guard",
            ])
            .arg(postmaster.id().to_string())
            .arg(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start guard");
        self.server = Some(Server { postmaster, guard });
    }

    fn spawn(&self) -> Child {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("postgres.log"))
            .expect("create log");
        as_unix_user(&program("postgres"))
            .arg("-D")
            .arg(self.folder.join("data"))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start PostgreSQL")
    }
}

/// A suspended server; resumes when dropped.
#[must_use]
pub struct PausedPostgres(Vec<String>);

impl Drop for PausedPostgres {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

/// Processes that have ended meanwhile are ignored.
fn signal(name: &str, processes: &[String]) {
    let mut kill = Command::new("kill");
    kill.arg(name).args(processes).stderr(Stdio::null());
    kill.status().expect("run kill");
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
        if self.temporary {
            // Remaining processes may still write; their files are in the system's temporary folder.
            drop(std::fs::remove_dir_all(&self.folder));
        }
    }
}

/// Runs SQL on the database of an address.
///
/// # Panics
/// If the server refuses.
pub fn psql(url: &str, sql: &str) {
    let mut psql = Command::new(program("psql"))
        .args([
            "--no-psqlrc",
            "--quiet",
            "--set=ON_ERROR_STOP=1",
            "--dbname",
            url,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run psql");
    let mut input = psql.stdin.take().expect("piped");
    input.write_all(sql.as_bytes()).expect("write to psql");
    drop(input);
    let output = psql.wait_with_output().expect("wait for psql");
    assert!(
        output.status.success(),
        "psql: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn temporary() -> PathBuf {
    tempfile::tempdir().expect("a temporary folder").keep()
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// Runs a program as a user that may run a server. The process id stays: setpriv replaces itself.
fn as_unix_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", UNIX_USER, "--regid", UNIX_USER, "--init-groups"])
        .arg(program);
    command
}

/// A program of the newest PostgreSQL. `POSTGRES_BIN` names another folder; Debian installs each version in a separate folder.
fn program(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("POSTGRES_BIN") {
        return PathBuf::from(folder).join(name);
    }
    let installed = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let newest = installed
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse::<u32>().ok()?,
                entry.path(),
            ))
        })
        .filter(|(_, path)| path.join("bin/postgres").exists())
        .max();
    let (_, path) = newest.expect(
        "no PostgreSQL: run `make setup`, or set POSTGRES_BIN to the folder of its programs",
    );
    path.join("bin").join(name)
}
