//! The context that a process hands to its services.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{Coordinators, audited, metrics};
use crate::{ConfigError, ConfigFile, Health, MeshConfig, WatchedFiles};

/// Interval of checks for missing streams and buckets.
const RESTORE_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest time between two looks for removed messages, which ask about every stream.
const REMOVALS_INTERVAL: Duration = Duration::from_secs(60);

/// Configuration, shutdown signal and health of a process. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The `[mesh]` section.
    pub mesh: MeshConfig,
    /// Cancelled when the service shall finish its work in progress and end.
    pub shutdown: CancellationToken,
    /// Conditions of readiness, and health notes.
    pub health: Health,
    pub(crate) coordinators: Coordinators,
    config: ConfigFile,
}

impl Context {
    /// Reads `[mesh]` of a configuration and checks it.
    ///
    /// # Errors
    /// If a key is unknown, missing or wrong.
    pub fn new(config: ConfigFile, shutdown: CancellationToken) -> Result<Self, ConfigError> {
        let mut mesh: MeshConfig = config.section("mesh")?;
        let mut faults = Vec::new();
        if mesh.cluster.is_empty() {
            faults.push("mesh.cluster: set it to Slurm's ClusterName".to_owned());
        }
        if !(0.0..=1.0).contains(&mesh.telemetry.sample_ratio) {
            faults.push("mesh.telemetry.sample_ratio: from 0 to 1".to_owned());
        }
        faults.extend(mesh.nats.faults());
        faults.extend(mesh.api.faults());
        faults.extend(mesh.telemetry.faults());
        faults.extend(config.exposed_secrets());
        if !faults.is_empty() {
            return Err(ConfigError::faults(config.name(), &faults));
        }
        // Resolved once and here, so that every service uses the same file, wherever it was started.
        for path in mesh.paths() {
            *path = config.relative(path);
        }
        Ok(Self {
            mesh,
            shutdown,
            health: Health::default(),
            coordinators: Coordinators::default(),
            config,
        })
    }

    /// The same context with other NATS credentials: one process may run several services, each with its own rights.
    pub fn with_nats(&self, nats: mesh_bus::Config) -> Self {
        let mut context = self.clone();
        context.mesh.nats = nats;
        context
    }

    /// Notes that a service of this process does not run: changes of its keys are reported as taking effect at a restart.
    pub fn does_not_run(&mut self, service: &str) {
        self.config.does_not_run(service);
    }

    /// Adds the audit of reads to a service's routes. From now on the process also follows the account coordinators.
    pub fn audited(&self, bus: &mesh_bus::Bus, routes: Router) -> Router {
        metrics::describe();
        self.coordinators.watch(bus, &self.shutdown);
        audited(routes, bus, &self.mesh.cluster, &self.shutdown)
    }

    /// Keeps the condition `<service>.nats` up to date: a service is not ready while NATS is unavailable or does not store. The note
    /// `<service>.repairs` lists what was found changed or deleted within the last hour. If the bus may provision, missing streams and
    /// buckets are declared again.
    pub fn watch_nats(&self, service: &str, bus: &mesh_bus::Bus) {
        let condition = self.health.condition(&format!("{service}.nats"));
        let repairs = self.health.note(&format!("{service}.repairs"));
        let (bus, shutdown) = (bus.clone(), self.shutdown.clone());
        if bus.provisions() {
            let (bus, shutdown) = (bus.clone(), self.shutdown.clone());
            tokio::spawn(async move {
                let mut next_look = Instant::now();
                while !shutdown.is_cancelled() {
                    if bus.connected()
                        && let Err(error) = look_after_streams(&bus, &mut next_look).await
                    {
                        tracing::debug!(
                            error = crate::error_chain(&error),
                            "look up missing streams and messages"
                        );
                    }
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = tokio::time::sleep(RESTORE_INTERVAL) => {}
                    }
                }
            });
        }
        tokio::spawn(async move {
            loop {
                match bus.problem() {
                    Some(problem) => condition.fail(problem),
                    None => condition.ok(),
                }
                match bus.repairs().as_slice() {
                    [] => repairs.clear(),
                    done => repairs.say(done.join("; ")),
                }
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
            }
        });
    }

    /// Reads a section of the configuration.
    ///
    /// # Errors
    /// If a key is unknown, missing or wrong.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, ConfigError> {
        self.config.section(name)
    }

    /// The configuration as it is in the file now, checked like at the start. Its health is its own.
    ///
    /// # Errors
    /// As [`ConfigFile::load`] and [`Context::new`].
    pub fn read_again(&self) -> Result<Self, ConfigError> {
        Self::new(self.config.read_again()?, self.shutdown.clone())
    }

    /// The configuration file, if there is one, to notice changes since it was read.
    pub fn watched_config(&self) -> WatchedFiles {
        let mut files = WatchedFiles::default();
        if let Some(path) = self.config.path() {
            files.add_with_stamp(path.to_owned(), self.config.stamp());
        }
        files
    }

    /// The layers of the configuration as they were when read.
    pub(crate) const fn config(&self) -> &ConfigFile {
        &self.config
    }

    /// An error for faults that a service found in its section.
    pub fn faults(&self, faults: &[String]) -> ConfigError {
        ConfigError::faults(self.config.name(), faults)
    }

    /// Name of the configuration file, for messages.
    pub fn config_file(&self) -> String {
        self.config.name()
    }

    /// Resolves a path of a service's section: relative paths start at the folder of the file. Paths of `[mesh]` are resolved already;
    /// resolving again changes nothing.
    pub fn relative(&self, path: &Path) -> PathBuf {
        self.config.relative(path)
    }
}

/// Declares missing streams again, and reports messages that were removed if that is due. One is done also if the other fails.
async fn look_after_streams(
    bus: &mesh_bus::Bus,
    next_look: &mut Instant,
) -> Result<(), mesh_bus::Error> {
    let declared = bus.redeclare_missing().await;
    if Instant::now() < *next_look {
        return declared;
    }
    let looked = Box::pin(bus.note_removals()).await;
    if looked.is_ok() {
        *next_look = Instant::now() + REMOVALS_INTERVAL;
    }
    declared.and(looked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(folder: &Path, text: &str) -> Context {
        let path = folder.join("mesh.toml");
        std::fs::write(&path, text).unwrap();
        let config = ConfigFile::load(&[], Some(&path)).unwrap();
        Context::new(config, CancellationToken::new()).unwrap()
    }

    #[test]
    fn relative_paths_count_from_the_folder_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(
            folder.path(),
            "[mesh]\ncluster = 'c'\ndata_dir = 'data'\nidentity_map = 'who.toml'\n\
             [mesh.nats]\nuser = 'u'\npassword_file = 'nats.password'\nca_file = '/etc/nats-ca.pem'\n\
             [mesh.api]\nsocket = 'api.sock'\ntoken_file = '../token'\n",
        );
        let (mesh, at) = (&context.mesh, |name: &str| folder.path().join(name));
        assert_eq!(mesh.data_dir, at("data"));
        assert_eq!(mesh.identity_map, Some(at("who.toml")));
        assert_eq!(mesh.nats.password_file, Some(at("nats.password")));
        assert_eq!(mesh.nats.ca_file, Some("/etc/nats-ca.pem".into()));
        assert_eq!(mesh.api.socket, at("api.sock"));
        assert_eq!(mesh.api.token_file, at("../token"));
        assert_eq!(context.relative(&mesh.data_dir), mesh.data_dir, "again");
    }

    #[test]
    fn keys_that_contradict_each_other_are_named() {
        let nats = |keys: &str| {
            let nats: mesh_bus::Config = toml::from_str(keys).unwrap();
            nats.faults().join("; ")
        };
        for (keys, fault) in [
            ("user = 'u'\nnkey_file = 'n'", "set only one of them"),
            (
                "credentials_file = 'c'\nnkey_file = 'n'",
                "set only one of them",
            ),
            ("password_file = 'p'", "mesh.nats.user: required"),
            ("cert_file = 'c'", "mesh.nats.key_file: set both"),
            ("replicas = 2", "mesh.nats.replicas: 1, 3 or 5"),
        ] {
            assert!(nats(keys).contains(fault), "{keys}: {}", nats(keys));
        }
        assert_eq!(nats("user = 'u'\npassword_file = 'p'\nca_file = 'c'"), "");
    }

    #[test]
    fn unset_values_remain_unset() {
        let folder = tempfile::tempdir().unwrap();
        let mesh = context(folder.path(), "[mesh]\ncluster = 'c'\n").mesh;
        assert_eq!((mesh.api.socket, mesh.api.token_file), Default::default());
        assert_eq!(mesh.identity_map, None);
    }

    #[test]
    fn a_file_named_by_a_relative_path_is_resolved_once() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let name = Path::new(folder.path().file_name().unwrap());
        let context = context(name, "[mesh]\ncluster = 'c'\ndata_dir = 'data'\n");
        let expected = std::path::absolute(name.join("data")).unwrap();
        assert_eq!(context.mesh.data_dir, expected);
        assert_eq!(context.relative(&context.mesh.data_dir), expected);
    }
}
