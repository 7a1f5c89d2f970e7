//! Arguments of the commands for a nats-server that `smesh up` does not run.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

/// `smesh nats`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Only where services run by themselves, on a nats-server of the site's own: `smesh up` does all of this. In this order:

  smesh nats config -M CLUSTER -o /etc/slurm-mesh/nats     users, rights and secrets
  nats-server -c /etc/slurm-mesh/nats/nats.conf            or include users.conf into the site's own configuration
  smesh nats provision                                     streams, consumers and buckets; then the services with provision = false")]
pub enum Nats {
    /// Write users with their rights for a nats-server, and a secret for each
    Config(NatsConfig),
    /// Declare streams, consumers and buckets, and exit
    Provision(NatsProvision),
}

/// `smesh nats config`
#[derive(Debug, Args)]
#[command(after_help = "\
Writes into DIR:
  nats.conf        a server with JetStream that syncs every write; includes users.conf
  users.conf       a user for each role, with the rights it needs and no others
  ROLE.seed        NKey seed of a role, for [mesh.nats] nkey_file; the server has the public keys only
  hook.password    password of the hooks, for `password_file` in hook.toml; it stands in users.conf, too

Secrets that are there are kept, so that it may be run again after an upgrade, which may add rights; remove one to have a new one made.
Then have the server read its configuration again: nats-server --signal reload.

Example:
  smesh nats config -M prod -o /etc/slurm-mesh/nats --listen 0.0.0.0:4222 --tls-cert /etc/nats/server.pem --tls-key /etc/nats/server.key")]
pub struct NatsConfig {
    /// Folder to write into; made if it is not there
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Where the server listens
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4222")]
    pub listen: String,
    /// Where the server keeps streams
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/slurm-mesh/jetstream"
    )]
    pub store: PathBuf,
    /// Certificate of the server; without it nothing is encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities of clients: they have to show a certificate, too
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
}

/// `smesh nats provision`
#[derive(Debug, Args)]
#[command(after_help = "\
Connects as [mesh.nats] says, which has to be the role admin. Creates what is missing, updates what has changed, deletes nothing that holds
data. Run it before the services and after each upgrade.

Exit status: 0 everything is there; 1 NATS does not answer in time or refuses; the message says what.")]
pub struct NatsProvision {
    /// How long to wait for NATS
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}
