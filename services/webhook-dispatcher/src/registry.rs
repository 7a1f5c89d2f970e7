//! What each endpoint is: those of `mesh.toml`, and those that were made by the API.

use std::collections::{BTreeMap, BTreeSet};

use crate::adapters::endpoints::Source;
use crate::adapters::store::Store;
use crate::config::Endpoint;
use crate::error::Error;

/// What each endpoint is.
pub struct Registry {
    files: BTreeMap<String, Endpoint>,
}

impl Registry {
    /// With the endpoints of `mesh.toml`.
    pub fn new(files: Vec<Endpoint>) -> Self {
        let files = files
            .into_iter()
            .map(|endpoint| (endpoint.name.clone(), endpoint))
            .collect();
        Self { files }
    }

    /// The endpoints of `mesh.toml`.
    pub fn files(&self) -> impl Iterator<Item = &Endpoint> {
        self.files.values()
    }

    /// Their names.
    pub fn listed(&self) -> BTreeSet<String> {
        self.files.keys().cloned().collect()
    }

    /// An endpoint, with its secrets.
    ///
    /// # Errors
    /// If it is not known here, or what is stored makes none.
    pub async fn endpoint(&self, store: &Store, name: &str) -> Result<Endpoint, Error> {
        let unknown = || Error::Unknown(name.to_owned());
        let stored = store.endpoint(name).await?.ok_or_else(unknown)?;
        match stored.source {
            Source::File => self.files.get(name).cloned().ok_or_else(unknown),
            Source::Api => Err(unknown()),
        }
    }
}
