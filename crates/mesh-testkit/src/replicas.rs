//! Two replicas of a service as real processes, and faults for the leader.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::wait_for;

/// Deadline of a take-over in a test; on an idle machine it takes less than ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process of a service. Killed on drop.
pub struct Replica {
    program: PathBuf,
    config: PathBuf,
    socket: PathBuf,
    child: Child,
}

/// Two replicas of a service.
pub struct Replicas {
    service: &'static str,
    replicas: [Replica; 2],
}

impl Replica {
    fn start(program: &Path, config: &Path, socket: &Path) -> Self {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(socket.with_extension("log"))
            .unwrap();
        let child = Command::new(program)
            .arg("--config")
            .arg(config)
            .env("MESH_MESH__API__SOCKET", socket)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", program.display()));
        Self {
            program: program.to_owned(),
            config: config.to_owned(),
            socket: socket.to_owned(),
            child,
        }
    }

    /// The response of `/readyz`; `None` while there is none.
    async fn readyz(&self) -> Option<serde_json::Value> {
        let answer = async {
            let mut stream = UnixStream::connect(&self.socket).await.ok()?;
            let request = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(request).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            serde_json::from_str(answer.split("\r\n\r\n").nth(1)?).ok()
        };
        tokio::time::timeout(Duration::from_secs(1), answer)
            .await
            .ok()
            .flatten()
    }

    async fn signal(&self, signal: &str) {
        let pid = self.child.id().expect("the process runs").to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.await.unwrap().success(), "kill {signal} {pid}");
    }
}

impl Replicas {
    /// Starts both at once. `folder` gets their sockets and logs.
    pub fn start(service: &'static str, program: &str, config: &Path, folder: &Path) -> Self {
        let replica = |name: &str| {
            Replica::start(
                Path::new(program),
                config,
                &folder.join(name).with_extension("sock"),
            )
        };
        Self {
            service,
            replicas: [replica("one"), replica("two")],
        }
    }

    /// The logs of both.
    pub fn logs(&self) -> String {
        let logs = self.replicas.iter().map(|replica| {
            let log = replica.socket.with_extension("log");
            std::fs::read_to_string(log).unwrap_or_default()
        });
        logs.collect()
    }

    /// Waits until `index` is in a role and ready.
    pub async fn wait_role(&self, index: usize, role: &str) {
        let description = format!("replica {index} of {} is {role}", self.service);
        wait_for(&description, PATIENCE, async || {
            let response = self.replicas[index].readyz().await?;
            (response["roles"][self.service] == role && response["ready"] == true).then_some(())
        })
        .await;
    }

    /// Waits until one leads and the other is on standby; returns the leader.
    pub async fn settled(&self) -> usize {
        let description = format!("one of two {} leads", self.service);
        wait_for(&description, PATIENCE, async || {
            let mut roles = Vec::new();
            for replica in &self.replicas {
                let response = replica.readyz().await?;
                roles.push(response["roles"][self.service].as_str()?.to_owned());
            }
            match [roles[0].as_str(), roles[1].as_str()] {
                ["leader", "standby"] => Some(0),
                ["standby", "leader"] => Some(1),
                _ => None,
            }
        })
        .await
    }

    /// Waits until the other one leads, and prints how long that took.
    #[allow(clippy::print_stdout, reason = "for the reader of the test's output")]
    async fn taken_over(&self, from: usize, how: &str, since: Instant) {
        self.wait_role(1 - from, "leader").await;
        println!(
            "{}: {how}: the standby leads after {:?}",
            self.service,
            since.elapsed()
        );
    }

    /// Kills the leader. Returns once the other one leads and the restarted one is on standby.
    pub async fn kill_leader(&mut self) {
        let leader = self.settled().await;
        let since = Instant::now();
        self.replicas[leader].signal("-KILL").await;
        self.taken_over(leader, "kill -9", since).await;
        self.restart(leader).await;
    }

    /// Stops the leader in order, and otherwise as [`Self::kill_leader`].
    pub async fn stop_leader(&mut self) {
        let leader = self.settled().await;
        let since = Instant::now();
        self.replicas[leader].signal("-TERM").await;
        self.taken_over(leader, "an orderly stop", since).await;
        self.restart(leader).await;
    }

    /// Suspends the leader's process for at least `pause`, and until the other one leads. Afterwards it must be on standby, in the same
    /// process.
    pub async fn pause_leader(&mut self, pause: Duration, action: impl AsyncFnOnce()) {
        let leader = self.settled().await;
        let since = Instant::now();
        self.replicas[leader].signal("-STOP").await;
        self.taken_over(leader, "SIGSTOP", since).await;
        action().await;
        tokio::time::sleep(pause.saturating_sub(since.elapsed())).await;
        self.replicas[leader].signal("-CONT").await;
        self.wait_role(leader, "standby").await;
        let ended = self.replicas[leader].child.try_wait().unwrap();
        assert_eq!(ended, None, "who leads no more stays");
        self.wait_role(1 - leader, "leader").await;
    }

    async fn restart(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        replica.child.wait().await.unwrap();
        *replica = Replica::start(&replica.program, &replica.config, &replica.socket);
        self.wait_role(index, "standby").await;
    }

    /// Stops both in order.
    pub async fn stop(mut self) {
        for replica in &mut self.replicas {
            replica.signal("-TERM").await;
            let status = replica.child.wait().await.unwrap();
            assert!(status.success(), "{status}");
        }
    }
}

impl Drop for Replicas {
    /// Prints the logs of a test that failed; its folder is removed.
    #[allow(clippy::print_stdout, reason = "for the reader of the test's output")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.logs());
        }
    }
}
