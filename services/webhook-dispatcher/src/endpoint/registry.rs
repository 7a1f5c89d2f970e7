//! Resolves endpoint definitions, from `mesh.toml` and from the API.
//!
//! Endpoints created by the API are stored in two forms: as JSON that may be displayed, and as the full definition
//! with secrets, encrypted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use chrono::{DateTime, Utc};
use redactor::Redactor;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use standard_webhooks::Signer;

use crate::config::{self, Config, Endpoint, Fault};
use crate::endpoint::vault::Vault;
use crate::error::Error;
use crate::store::endpoints::{EndpointRow, Source};

/// Resolves endpoint definitions.
pub struct Registry {
    /// The `[webhook-dispatcher]` section, without its endpoints.
    pub config: Config,
    /// Encrypts secrets. Without it the API cannot create endpoints.
    pub vault: Option<Vault>,
    files: RwLock<BTreeMap<String, Arc<Endpoint>>>,
}

/// Names of endpoints of `mesh.toml` that differ between two versions of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EndpointChanges {
    /// New ones.
    pub added: Vec<String>,
    /// Those with another definition.
    pub changed: Vec<String>,
    /// Those that are no longer listed.
    pub removed: Vec<String>,
}

impl EndpointChanges {
    /// True if nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn by_name(files: Vec<Arc<Endpoint>>) -> BTreeMap<String, Arc<Endpoint>> {
    let files = files.into_iter();
    files
        .map(|endpoint| (endpoint.name.clone(), endpoint))
        .collect()
}

/// The full definition of an endpoint, including secrets. Encrypted before it is stored.
#[derive(Clone, Deserialize, Serialize)]
pub struct Definition {
    /// The request body of the API, with the signing secret if one was generated.
    pub spec: Value,
    /// Previous signing secrets.
    pub retired: Vec<RetiredSecret>,
}

/// A signing secret that was replaced.
#[derive(Clone, Deserialize, Serialize)]
pub struct RetiredSecret {
    /// `whsec_…`
    pub secret: String,
    /// Signs in addition to the new secret until then.
    pub until: DateTime<Utc>,
}

impl Registry {
    /// A registry of the endpoints of `mesh.toml`.
    pub fn new(mut config: Config, files: Vec<Endpoint>, vault: Option<Vault>) -> Self {
        // The validated ones are used.
        config.endpoints = Vec::new();
        Self {
            config,
            files: RwLock::new(by_name(files.into_iter().map(Arc::new).collect())),
            vault,
        }
    }

    /// Replaces the endpoints of `mesh.toml`. Returns the former ones, and what differs.
    pub fn replace_files(
        &self,
        files: Vec<Arc<Endpoint>>,
    ) -> (Vec<Arc<Endpoint>>, EndpointChanges) {
        let mut files = by_name(files);
        let mut current = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let mut changes = EndpointChanges::default();
        for (name, endpoint) in &mut files {
            match current.get(name) {
                None => changes.added.push(name.clone()),
                Some(former) if !former.is_same(endpoint) => changes.changed.push(name.clone()),
                // Its worker has it.
                Some(former) => *endpoint = Arc::clone(former),
            }
        }
        let gone = current.keys().filter(|name| !files.contains_key(*name));
        changes.removed = gone.cloned().collect();
        let former = std::mem::replace(&mut *current, files);
        (former.into_values().collect(), changes)
    }

    /// The endpoints of `mesh.toml`.
    pub fn files(&self) -> Vec<Arc<Endpoint>> {
        self.read_files().values().cloned().collect()
    }

    /// Names of the endpoints of `mesh.toml`.
    pub fn listed(&self) -> BTreeSet<String> {
        self.read_files().keys().cloned().collect()
    }

    fn read_files(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<Endpoint>>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds the endpoint of a stored row, with its secrets.
    ///
    /// # Errors
    /// If the endpoint is not known to this dispatcher, or its definition is invalid.
    pub fn made_of(&self, stored: &EndpointRow) -> Result<Arc<Endpoint>, Error> {
        let name = &stored.name;
        if stored.source == Source::File {
            let listed = self.read_files().get(name).cloned();
            return listed.ok_or_else(|| Error::Unknown(name.clone()));
        }
        let definition = self.definition(stored)?;
        let checked = self.check(&definition).map_err(|faults| Error::Refused {
            name: name.clone(),
            faults: config::one_line(&faults),
        });
        let (name, owner) = (name.clone(), stored.owner.clone());
        checked.map(|endpoint| {
            Arc::new(Endpoint {
                name,
                owner,
                ..endpoint
            })
        })
    }

    /// Decrypts the definition of an endpoint created by the API. Renamed configuration keys are converted.
    ///
    /// # Errors
    /// If it cannot be decrypted.
    pub fn definition(&self, stored: &EndpointRow) -> Result<Definition, Error> {
        let sealed = stored.secrets.as_deref().unwrap_or_default();
        let definition = self
            .vault
            .as_ref()
            .and_then(|vault| vault.open(&stored.id, sealed))
            .and_then(|text| serde_json::from_slice(&text).ok());
        let mut definition: Definition =
            definition.ok_or_else(|| Error::Sealed(stored.name.clone()))?;
        config::rename_old_keys(&mut definition.spec);
        Ok(definition)
    }

    /// Validates a definition and builds the endpoint.
    ///
    /// # Errors
    /// Every fault.
    pub fn check(&self, definition: &Definition) -> Result<Endpoint, Vec<Fault>> {
        let mut endpoint = self.config.endpoint(&definition.spec)?;
        for retired in &definition.retired {
            // It was validated when it was the current secret.
            if let (Some(signer), Ok(before)) =
                (endpoint.signer.take(), Signer::new(&retired.secret))
            {
                endpoint.signer = Some(signer.beside(before, retired.until));
            }
        }
        if !definition.retired.is_empty() {
            endpoint.redactor = Arc::new(Redactor::new(endpoint.secrets()));
        }
        Ok(endpoint)
    }
}
