//! What each endpoint is: those of `mesh.toml`, and those that were made by the API.
//!
//! Of the latter the database has twice what they are: a text that may be shown, and everything, secrets included, sealed.

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

/// What each endpoint is.
pub struct Registry {
    config: Config,
    files: BTreeMap<String, Endpoint>,
    vault: Option<Vault>,
}

/// All of an endpoint, secrets included. Sealed before it is stored.
#[derive(Clone, Deserialize, Serialize)]
pub struct Definition {
    /// As the API was given it; a secret that was made is in it.
    pub spec: Value,
    /// Secrets from before.
    pub retired: Vec<RetiredSecret>,
}

/// A secret from before.
#[derive(Clone, Deserialize, Serialize)]
pub struct RetiredSecret {
    /// `whsec_…`
    pub secret: String,
    /// Until then it signs too.
    pub until: DateTime<Utc>,
}

impl Registry {
    /// With the endpoints of `mesh.toml`; without a vault the API makes none.
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

    /// The section.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What seals secrets.
    pub const fn vault(&self) -> Option<&Vault> {
        self.vault.as_ref()
    }

    /// The endpoints of `mesh.toml`.
    pub fn files(&self) -> impl Iterator<Item = &Endpoint> {
        self.files.values()
    }

    /// Their names.
    pub fn listed(&self) -> BTreeSet<String> {
        self.files.keys().cloned().collect()
    }

    /// What a stored endpoint is, with its secrets.
    ///
    /// # Errors
    /// If it is not known here, or what is stored makes none.
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

    /// All of a stored endpoint that the API made, its keys as they are called now.
    ///
    /// # Errors
    /// If it does not open.
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

    /// Checks a definition and makes the endpoint.
    ///
    /// # Errors
    /// Every fault.
    pub fn check(&self, definition: &Definition) -> Result<Endpoint, Vec<Fault>> {
        let mut endpoint = self.config.endpoint(&definition.spec)?;
        for retired in &definition.retired {
            // It was a secret once, so it is one.
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
