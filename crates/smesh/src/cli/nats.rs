//! Arguments of the commands for a nats-server that `smesh up` does not run.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

/// `smesh nats`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Only needed if the services run separately on the site's own nats-server; `smesh up` does all of this. Run in this order:

  smesh nats config -M CLUSTER -o /etc/slurm-mesh/nats     users, permissions and secrets
  nats-server -c /etc/slurm-mesh/nats/nats.conf            or include users.conf in the site's configuration
  smesh nats provision                                     streams, consumers and buckets; then start the services with provision = false")]
pub enum Nats {
    /// Write users, permissions and secrets for a nats-server
    Config(Box<NatsConfig>),
    /// Declare streams, consumers and buckets, then exit
    Provision(NatsProvision),
}

/// `smesh nats config`
#[derive(Debug, Args)]
#[command(after_help = "\
Writes to DIR:
  nats.conf        server configuration with JetStream, which syncs every write; includes users.conf
  users.conf       a user for each role, with only the permissions that it needs
  ROLE.seed        NKey seed of a role, for nkey_file in [mesh.nats]; the server only has the public keys
  hook.password    password of the hooks, for password_file in hook.toml; users.conf contains it, too
  leaf.conf        with --leaf: server configuration of the leaf node on the Slurm host, to which hooks connect without TLS
  hook.toml        with --leaf: configuration of these hooks, for /etc/slurm-mesh on the Slurm host
  CLUSTER/         with --add-cluster: the secrets, leaf.conf and hook.toml of that cluster; its hooks are the user hook-CLUSTER

Existing secrets are kept. Run it again after an upgrade, which may add permissions. To replace a secret, delete its file first.
Then reload the configuration of the server: nats-server --signal reload.

Example:
  smesh nats config -M prod -o /etc/slurm-mesh/nats --listen 0.0.0.0:4222 --tls-cert /etc/nats/server.pem --tls-key /etc/nats/server.key")]
pub struct NatsConfig {
    /// Folder to write to; created if missing
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Address on which the server listens
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4222")]
    pub listen: String,
    /// Folder in which the server stores streams
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/slurm-mesh/jetstream"
    )]
    pub store: PathBuf,
    /// Certificate of the server (PEM); without it connections are not encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Certificate authorities of clients (PEM); makes client certificates required
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Another cluster on the same server, with users of its own; may be repeated
    #[arg(long, value_name = "CLUSTER")]
    pub add_cluster: Vec<String>,
    /// Address of this server for leaf nodes on Slurm hosts; writes leaf.conf and hook.toml for each cluster
    #[arg(long, value_name = "HOST:PORT")]
    pub leaf: Option<String>,
    /// Address on which a leaf node listens for hooks
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:4222",
        requires = "leaf"
    )]
    pub leaf_listen: String,
    /// Certificate authorities of this server (PEM), at their path on the Slurm host; without it those of the system
    #[arg(long, value_name = "FILE", requires_all = ["leaf", "tls_cert"])]
    pub leaf_ca: Option<PathBuf>,
}

/// `smesh nats provision`
#[derive(Debug, Args)]
#[command(after_help = "\
Connects as configured in [mesh.nats], which must be the role admin. Creates missing items, updates changed ones, and never deletes data. Run it
before the first start of the services and after each upgrade.

Exit status: 0 everything exists; 1 NATS does not answer in time, or refuses (the error names the reason).")]
pub struct NatsProvision {
    /// Longest time to wait for NATS
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}
