//! One configuration file: defaults, then `mesh.toml`, then the environment.

mod mesh;
mod renamed;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use figment::Figment;
use figment::providers::{Env, Format as _, Toml};
use figment::value::Value;
use secret_file::FileStamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use mesh::{ApiConfig, LogFormat, MeshConfig, OtlpSignal, TelemetryConfig};
pub use renamed::RenamedKeys;
use secrets::secret_keys;

/// Defaults of `[mesh]`, every key with its comment.
pub(crate) const DEFAULTS: &str = include_str!("../config/default.toml");

/// An invalid or missing configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file does not exist.
    #[error("no configuration at {path}; create one with `smesh init`, or pass its path with --config", path = path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// A key is unknown, missing or invalid.
    #[error("configuration {file}: {faults}")]
    Invalid {
        /// The file, or another source of the value.
        file: String,
        /// Every fault with its key.
        faults: String,
    },
}

impl ConfigError {
    /// Faults found by a service's `validate()`. Each names its key.
    pub fn faults(file: impl Into<String>, faults: &[String]) -> Self {
        Self::Invalid {
            file: file.into(),
            faults: faults.join("; "),
        }
    }
}

/// The section of a service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSection {
    /// Name of the section.
    pub name: &'static str,
    /// [`Service::DEFAULTS`](crate::Service::DEFAULTS).
    pub defaults: &'static str,
    /// [`Service::RENAMED_KEYS`](crate::Service::RENAMED_KEYS).
    pub renamed_keys: RenamedKeys,
    /// [`Service::LIVE_KEYS`](crate::Service::LIVE_KEYS).
    pub live_keys: &'static [&'static str],
    /// Reads the section as [`Service::Config`](crate::Service::Config), whose types mask its secrets.
    pub shown: fn(&ConfigFile) -> Result<toml::Value, ConfigError>,
}

/// The layers of the configuration, merged. Cheap to clone.
#[derive(Clone)]
pub struct ConfigFile {
    /// The values, until they are [released](Self::release): a list of thousands of endpoints takes more memory than what is made of it.
    figment: Arc<Mutex<Option<Arc<Figment>>>>,
    /// Digests of the values of all keys, to compare them with those of a later version.
    digests: Arc<BTreeMap<String, u64>>,
    path: Option<PathBuf>,
    /// The file before it was read.
    stamp: Option<FileStamp>,
    services: Vec<ServiceSection>,
    /// Sections in which old keys are set, with a fault for each.
    renamed: Vec<(&'static str, Vec<String>)>,
}

impl ConfigFile {
    /// Reads the services' defaults, a file if one is given, and the environment: `MESH_LEDGER__DB__URL` is `[ledger.db] url`,
    /// `MESH_COST_ENGINE__PRICE_BOOK` is key `price_book` of `[cost-engine]`, `MESH_MESH__NATS__URL` is `[mesh.nats] url`.
    ///
    /// # Errors
    /// If the file does not exist or is not TOML.
    pub fn load(services: &[ServiceSection], path: Option<&Path>) -> Result<Self, ConfigError> {
        let stamp = path.and_then(FileStamp::of);
        let figment = merge(services, path)?;
        let mesh = ("mesh", renamed::MESH);
        let sections = services
            .iter()
            .map(|service| (service.name, service.renamed_keys))
            .chain([mesh]);
        let mut config = Self {
            figment: Arc::default(),
            digests: Arc::default(),
            path: path.map(Path::to_owned),
            stamp,
            services: services.to_vec(),
            renamed: Vec::new(),
        };
        // Any lookup fails if the file is not TOML.
        let values = figment
            .find_value("")
            .map_err(|error| config.invalid(error))?;
        let mut digests = BTreeMap::new();
        for (name, keys) in sections {
            if let Some(values) = values.find_ref(name) {
                digest(name, values, &mut digests);
                let faults = renamed::faults(&figment, values, name, keys);
                config
                    .renamed
                    .extend(Some((name, faults)).filter(|(_, faults)| !faults.is_empty()));
            }
        }
        config.digests = Arc::new(digests);
        config.figment = Arc::new(Mutex::new(Some(Arc::new(figment))));
        Ok(config)
    }

    /// Removes the values from memory. Who reads a section after that reads the file again.
    pub(crate) fn release(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Figment>>> {
        self.figment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the same file and the environment again.
    ///
    /// # Errors
    /// As [`ConfigFile::load`].
    pub fn read_again(&self) -> Result<Self, ConfigError> {
        Self::load(&self.services, self.path())
    }

    /// The stamp of the file, taken before it was read.
    pub const fn stamp(&self) -> Option<FileStamp> {
        self.stamp
    }

    /// Keys whose values differ from another configuration's, such as `mesh.api.listen`.
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        let keys: BTreeSet<&String> = self.digests.keys().chain(other.digests.keys()).collect();
        let changed = |key: &&String| self.digests.get(*key) != other.digests.get(*key);
        keys.into_iter().filter(changed).cloned().collect()
    }

    /// Notes that a service does not run, so that changes of its live keys take effect at a restart.
    pub(crate) fn does_not_run(&mut self, service: &str) {
        let mut services = self.services.iter_mut();
        if let Some(section) = services.find(|section| section.name == service) {
            section.live_keys = &[];
        }
    }

    /// True if a service takes a change of the key, such as `webhook-dispatcher.endpoints`, without a restart.
    pub(crate) fn is_live(&self, key: &str) -> bool {
        let (section, key) = key.split_once('.').unwrap_or_default();
        let mut services = self.services.iter();
        services.any(|service| service.name == section && service.live_keys.contains(&key))
    }

    /// Reads a section.
    ///
    /// # Errors
    /// If a key is unknown, missing or wrong; the error names it. If the section has an old key: the error names those of all sections.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, ConfigError> {
        if self.renamed.iter().any(|(section, _)| *section == name) {
            let all = self.renamed.iter().flat_map(|(_, faults)| faults.clone());
            return Err(ConfigError::faults(self.name(), &all.collect::<Vec<_>>()));
        }
        let held = self.lock().clone();
        let figment = match held {
            Some(figment) => figment,
            None => Arc::new(merge(&self.services, self.path())?),
        };
        figment.extract_inner(name).map_err(|error| {
            let faults: Vec<String> = error
                .into_iter()
                .map(|fault| describe_fault(fault, name))
                .collect();
            ConfigError::faults(self.name(), &faults)
        })
    }

    /// Renders all sections after merging, with secrets masked; for `--print-config`.
    ///
    /// # Errors
    /// If a section cannot be read.
    pub fn print(&self) -> Result<String, ConfigError> {
        let mut text = String::new();
        for (name, section) in self.shown_sections() {
            let table = toml::Table::from_iter([(name.to_owned(), section?)]);
            let section = toml::to_string_pretty(&table);
            text += &section.map_err(|error| self.unprintable(&error))?;
            text.push('\n');
        }
        Ok(text)
    }

    /// `[mesh]` and the services' sections, with secrets masked.
    fn shown_sections(
        &self,
    ) -> impl Iterator<Item = (&'static str, Result<toml::Value, ConfigError>)> {
        let services = self.services.iter();
        let services = services.map(|service| (service.name, (service.shown)(self)));
        std::iter::once(("mesh", self.shown::<MeshConfig>("mesh"))).chain(services)
    }

    pub(crate) fn shown<T: DeserializeOwned + Serialize>(
        &self,
        name: &str,
    ) -> Result<toml::Value, ConfigError> {
        let section: T = self.section(name)?;
        toml::Value::try_from(section).map_err(|error| self.unprintable(&error))
    }

    fn unprintable(&self, error: &toml::ser::Error) -> ConfigError {
        ConfigError::faults(self.name(), &[error.to_string()])
    }

    /// The file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Resolves a relative path against the folder of the file, whatever the working directory is.
    pub(crate) fn relative(&self, path: &Path) -> PathBuf {
        // Absolute, so that resolving twice changes nothing.
        let file = self.path().and_then(|file| std::path::absolute(file).ok());
        match file.as_deref().and_then(Path::parent) {
            Some(folder) => folder.join(path),
            None => path.to_owned(),
        }
    }

    /// A fault if others may read the file and it contains a secret.
    pub(crate) fn exposed_secrets(&self) -> Option<String> {
        let path = self.path()?;
        let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
        if mode & OTHERS_READ == 0 {
            return None;
        }
        // Invalid TOML was reported earlier.
        let file: toml::Value = toml::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        let shown = self.shown_sections();
        let shown = shown.filter_map(|(name, section)| Some((name.to_owned(), section.ok()?)));
        let keys = secret_keys(&file, &toml::Table::from_iter(shown).into());
        let key = keys.first()?;
        Some(format!(
            "{key}: secret in a file that others may read (mode {mode:o}); chmod o= the file and replace the secret, or move it to a separate file or the environment"
        ))
    }

    /// Name of the file for messages.
    pub fn name(&self) -> String {
        self.path
            .as_ref()
            .map_or_else(|| "defaults".to_owned(), |path| path.display().to_string())
    }

    fn invalid(&self, error: figment::Error) -> ConfigError {
        let faults: Vec<String> = error.into_iter().map(|fault| fault.to_string()).collect();
        ConfigError::faults(self.name(), &faults)
    }
}

/// Merges the services' defaults, the file and the environment.
fn merge(services: &[ServiceSection], path: Option<&Path>) -> Result<Figment, ConfigError> {
    let mut figment = Figment::from(Toml::string(DEFAULTS));
    for service in services {
        figment = figment.merge(Toml::string(service.defaults));
    }
    if let Some(path) = path {
        if !path.is_file() {
            return Err(ConfigError::NotFound {
                path: path.to_owned(),
            });
        }
        figment = figment.merge(Toml::file_exact(path));
    }
    let environment = Env::prefixed("MESH_")
        .filter(|key| key.as_str().contains("__"))
        .map(|key| {
            let key = key.as_str().to_ascii_lowercase();
            let (section, rest) = key.split_once("__").unwrap_or((&key, ""));
            format!("{}.{}", section.replace('_', "-"), rest.replace("__", ".")).into()
        });
    Ok(figment.merge(environment))
}

/// Digests the values below a key. They may be secrets.
fn digest(key: &str, value: &Value, digests: &mut BTreeMap<String, u64>) {
    match value {
        Value::Dict(_, values) => {
            for (name, value) in values {
                digest(&format!("{key}.{name}"), value, digests);
            }
        }
        value => {
            let mut hasher = DefaultHasher::new();
            serde_json::json!(value).to_string().hash(&mut hasher);
            digests.insert(key.to_owned(), hasher.finish());
        }
    }
}

/// Describes a fault of a section, with its key as in the file: `[ledger] db.url`.
fn describe_fault(fault: figment::Error, section: &str) -> String {
    let mut path = fault.path;
    // figment names the section last.
    if path.last().is_some_and(|last| last == section) {
        path.pop();
    }
    let from_environment = fault
        .metadata
        .is_some_and(|metadata| renamed::is_from_environment(&metadata));
    let place = match path.join(".") {
        key if from_environment => format!("environment, [{section}] {key}"),
        key => format!("[{section}] {key}"),
    };
    format!("{}: {}", place.trim_end(), fault.kind)
}

/// The mode bit that lets everybody read a file. Group access is the operator's choice: it is not compared with the groups of this process,
/// since root, which is in none of the service's groups, reads the file too.
const OTHERS_READ: u32 = 0o004;
#[cfg(test)]
mod tests;
