//! The Secrets that the values name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ledger_format::note::PrivateKey;
use serde_json::json;
use webhook_dispatcher::endpoint::vault::Vault;

use crate::cli::{InitKubernetes, NatsConfig, NatsServers};
use crate::commands::nats;
use crate::error::Error;
use crate::services::SERVICES;
use crate::up::data_dir::write_private;

pub(super) const API: &str = "slurm-mesh-api";
pub(super) const SLURM_TOKEN: &str = "slurm-mesh-slurm-token";
pub(super) const NATS_SERVER: &str = "slurm-mesh-nats-server";
pub(super) const NATS_CA: &str = "slurm-mesh-nats-ca";
pub(super) const LEDGER_OWNER: &str = "slurm-mesh-ledger-owner";
pub(super) const CHECKPOINT_KEY: &str = "slurm-mesh-checkpoint-key";
pub(super) const SECRETS_KEY: &str = "slurm-mesh-secrets-key";

/// Services that ask Slurm.
pub(super) const ASK_SLURM: [&str; 2] = ["ingest", "node-watcher"];

/// Services with a database of their own, which are on by default.
pub(super) const DATABASES: [&str; 3] = ["ledger", "cost-engine", "webhook-dispatcher"];

/// Name of the Secret with the URL of a service's database.
pub(super) fn database(service: &str) -> String {
    format!("slurm-mesh-{service}-db")
}

/// Secrets by name, and their values by key.
#[derive(Default)]
pub(super) struct Secrets {
    by_name: BTreeMap<String, BTreeMap<String, String>>,
    /// SQL with the passwords of the databases' roles.
    pub databases: Option<String>,
}

impl Secrets {
    /// Makes the secrets. Those that have to be kept outside the cluster, too, are written to files of the folder.
    pub(super) fn make(
        folder: &Path,
        cluster: &str,
        chart: &InitKubernetes,
    ) -> Result<Self, Error> {
        let mut secrets = Self::default();
        secrets.nats(&folder.join("nats"), cluster, chart)?;
        let token = random();
        write_private(&folder.join("api.token"), token.as_bytes(), None)?;
        secrets.add(API, "token", token);
        if let Some(file) = &chart.slurm_token_file {
            let token = secret_file::read_of_any_owner(file)
                .map_err(|source| Error::io("read token", file, source))?;
            secrets.add(SLURM_TOKEN, "token", token);
        }
        if let Some(file) = &chart.nats_ca {
            let ca = fs::read_to_string(file).map_err(|source| Error::io("read", file, source))?;
            secrets.add(NATS_CA, "ca.crt", ca);
        }
        if let Some((host, port)) = &chart.postgres {
            secrets.postgres(host, *port);
            // All replicas share these keys.
            let origin = ledger::CheckpointConfig::default().origin(cluster);
            let key = PrivateKey::new(&origin, &rand::random())
                .map_err(|error| Error::Failed(format!("origin {origin}: {error}")))?;
            secrets.add(
                CHECKPOINT_KEY,
                "ledger-checkpoint.key",
                key.to_secret_text(),
            );
            let path = folder.join("secrets.key");
            let failed =
                |error: webhook_dispatcher::Error| Error::Failed(mesh_runtime::error_chain(&error));
            Vault::open_or_make(&path).map_err(failed)?;
            secrets.add(SECRETS_KEY, "secrets.key", read(&path)?);
        }
        Ok(secrets)
    }

    fn add(&mut self, name: impl Into<String>, key: impl Into<String>, value: String) {
        let secret = self.by_name.entry(name.into()).or_default();
        secret.insert(key.into(), value);
    }

    fn nats(&mut self, folder: &Path, cluster: &str, chart: &InitKubernetes) -> Result<(), Error> {
        nats::write_config(
            cluster,
            &NatsConfig {
                output: folder.to_owned(),
                // In the chart's containers.
                listen: "0.0.0.0:4222".into(),
                store: PathBuf::from("/data/jetstream"),
                tls_cert: None,
                tls_key: None,
                tls_client_ca: None,
                add_cluster: Vec::new(),
                leaf: None,
                leaf_listen: String::new(),
                leaf_ca: None,
            },
        )?;
        let is_here = |name: &&str| chart.slurmrestd.is_some() || !ASK_SLURM.contains(name);
        let services = SERVICES.iter().map(|service| service.name());
        for role in services.filter(is_here).chain(["admin"]) {
            let file = format!("{role}.seed");
            let seed = read(&folder.join(&file))?;
            self.add(format!("slurm-mesh-nats-{role}"), file, seed);
        }
        let files: &[&str] = match chart.nats {
            NatsServers::Embedded(_) => &["nats.conf", "users.conf"],
            NatsServers::OfficialChart => &["users.conf"],
            NatsServers::Url(_) => &[],
        };
        for file in files {
            self.add(NATS_SERVER, *file, read(&folder.join(file))?);
        }
        Ok(())
    }

    /// Roles and databases. The ledger's own role may only add to the tables, which belong to another one.
    fn postgres(&mut self, host: &str, port: u16) {
        let mut sql = "-- Roles and databases of slurm-mesh, written by `smesh init --kubernetes`. Run it once, as an administrator of PostgreSQL.\n\
             CREATE ROLE ledger_appender NOLOGIN;\nCREATE ROLE ledger_reader NOLOGIN;\nCREATE ROLE ledger_retention NOLOGIN;\n"
            .to_owned();
        let mut login = |role: &str, database: &str, secret: String, more: &str| {
            let password = random();
            sql += &format!("CREATE ROLE {role} LOGIN PASSWORD '{password}'{more};\n");
            let url = format!("postgres://{role}:{password}@{host}:{port}/{database}");
            self.add(secret, "url", url);
        };
        for service in DATABASES {
            let name = service.replace('-', "_");
            if service == "ledger" {
                login("ledger_owner", &name, LEDGER_OWNER.to_owned(), "");
                let appends = " IN ROLE ledger_appender";
                login("ledger_append", &name, database(service), appends);
            } else {
                login(&name, &name, database(service), "");
            }
        }
        for (name, owner) in [
            ("ledger", "ledger_owner"),
            ("cost_engine", "cost_engine"),
            ("webhook_dispatcher", "webhook_dispatcher"),
        ] {
            sql += &format!(
                "CREATE DATABASE {name} OWNER {owner} ENCODING 'UTF8' TEMPLATE template0;\n"
            );
        }
        self.databases = Some(sql);
    }

    /// A manifest for `kubectl create -f`. Texts are written as in JSON, which is YAML, too.
    pub(super) fn manifest(&self, cluster: &str) -> String {
        let mut text = format!(
            "# Secrets of slurm-mesh for cluster {cluster}, written by `smesh init --kubernetes`. Keep this file like a password.\n"
        );
        for (name, values) in &self.by_name {
            text += &format!(
                "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {}}}\nstringData:\n",
                json!(name)
            );
            for (key, value) in values {
                text += &format!("  {}: {}\n", json!(key), json!(value));
            }
        }
        text
    }

    /// The same as a JSON document for each name.
    pub(super) fn documents(&self) -> impl Iterator<Item = (&str, String)> {
        let secrets = self.by_name.iter();
        secrets.map(|(name, values)| (name.as_str(), json!(values).to_string()))
    }
}

/// A secret of 192 bits.
fn random() -> String {
    hex::encode(rand::random::<[u8; 24]>())
}

fn read(path: &Path) -> Result<String, Error> {
    secret_file::read(path).map_err(|source| Error::io("read", path, source))
}
