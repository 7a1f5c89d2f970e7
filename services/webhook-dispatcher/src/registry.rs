//! Resolves endpoint definitions, from `mesh.toml` and from the API.
//!
//! Endpoints created by the API are stored in two forms: as JSON that may be displayed, and as the full definition
//! with secrets, encrypted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::adapters::endpoints::{EndpointRow, Source};
use crate::config::{self, Config, Endpoint, Fault};
use crate::domain::redactor::Redactor;
use crate::error::Error;
use crate::signature::Signer;
use crate::vault::Vault;

/// Resolves endpoint definitions.
pub struct Registry {
    config: Config,
    files: BTreeMap<String, Endpoint>,
    vault: Option<Vault>,
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
    /// A registry of the endpoints of `mesh.toml`. Without a vault the API cannot create endpoints.
    pub fn new(config: Config, files: Vec<Endpoint>, vault: Option<Vault>) -> Self {
        let files = files
            .into_iter()
            .map(|endpoint| (endpoint.name.clone(), endpoint))
            .collect();
        Self {
            config,
            files,
            vault,
        }
    }

    /// The `[webhook-dispatcher]` section.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The vault that encrypts secrets.
    pub const fn vault(&self) -> Option<&Vault> {
        self.vault.as_ref()
    }

    /// The endpoints of `mesh.toml`.
    pub fn files(&self) -> impl Iterator<Item = &Endpoint> {
        self.files.values()
    }

    /// Names of the endpoints of `mesh.toml`.
    pub fn listed(&self) -> BTreeSet<String> {
        self.files.keys().cloned().collect()
    }

    /// Builds the endpoint of a stored row, with its secrets.
    ///
    /// # Errors
    /// If the endpoint is not known to this dispatcher, or its definition is invalid.
    pub fn made_of(&self, stored: &EndpointRow) -> Result<Endpoint, Error> {
        let name = &stored.name;
        if stored.source == Source::File {
            let listed = self.files.get(name).cloned();
            return listed.ok_or_else(|| Error::Unknown(name.clone()));
        }
        let definition = self.definition(stored)?;
        let checked = self.check(&definition).map_err(|faults| Error::Refused {
            name: name.clone(),
            faults: faults
                .iter()
                .map(|fault| format!("{}: {}", fault.key, fault.problem))
                .collect::<Vec<_>>()
                .join("; "),
        });
        let (name, owner) = (name.clone(), stored.owner.clone());
        checked.map(|endpoint| Endpoint {
            name,
            owner,
            ..endpoint
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
