//! Restarts nats-server when it dies, or when it stores nothing any more.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_bus::Bus;
use mesh_runtime::Condition;
use tokio::process::Child;
use tokio_util::sync::CancellationToken;

use super::process::{Failure, Files, end, spawn, wait_until_it_listens};
use crate::error::Error;

/// Interval of the storage health check.
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);
/// A server that does not store is restarted only if this many bytes fit on its disk.
const ROOM: usize = 1 << 20;
/// A server with room that reports another problem is restarted after so many checks in a row. It may end the problem by itself.
const UNHEALTHY_CHECKS: u32 = 3;
/// As many after restarts that did not help: ten minutes.
const MAX_UNHEALTHY_CHECKS: u32 = 300;

/// Watches the server and restarts it.
pub(super) struct Supervisor {
    pub program: PathBuf,
    pub files: Files,
    pub port: u16,
    /// Connection for health checks.
    pub system: Bus,
    pub stores: Condition,
    pub stop: CancellationToken,
    pub shutdown: CancellationToken,
}

impl Supervisor {
    /// Restarts the server whenever it dies, first at once, then with growing pauses, until stopped. If another process has taken its
    /// port meanwhile, everything stops: the services reconnect to that port by themselves, and the next start has another port and
    /// new passwords.
    pub async fn run(self, mut child: Child) -> Result<(), Error> {
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
    use std::fs;

    use futures_util::StreamExt as _;

    use super::*;
    use crate::up::data_dir::DataDir;
    use crate::up::nats_child::START_PATIENCE;
    use crate::up::nats_conf::SYSTEM;

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
        let supervised = Supervisor {
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
}
