//! Arguments of `smesh init`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use url::Url;

/// `smesh init`
#[derive(Debug, Args)]
#[command(after_help = "\
Also writes price-book.toml (prices of nodes) and identity.toml (identities of users) to the same folder. Edit both. In
/etc/slurm-mesh also makes hook.toml, a link to the file that `smesh up` writes. Prints what to do next.

With --kubernetes it writes a folder for the Helm chart instead: values.yaml, every Secret, users and keys of NATS (nats/), the token
of the API, and what else the choices need. It needs no cluster, and overwrites nothing. Only you can read the folder: keep it like a
password. Without --slurmrestd, ingest and node-watcher run on slurmctld's host, and --nats is the URL of a server that both reach.

Examples:
  smesh init                                  writes ./mesh.toml from Slurm's configuration
  smesh init -o /etc/slurm-mesh/mesh.toml --data-dir /var/lib/slurm-mesh
  smesh init --kubernetes -M prod --slurmrestd http://slurm-restapi.slurm:6820 --slurm-token-file slurm.jwt
  smesh init --kubernetes -M prod --nats tls://nats.example.org:4222 --nats-ca ca.pem --postgres db.example.org")]
pub struct Init {
    /// slurm.conf to read [default: $SLURM_CONF, else /etc/slurm/slurm.conf]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// Folder for state [default: /var/lib/slurm-mesh]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// File to write, with --kubernetes a folder [default: mesh.toml, slurm-mesh-CLUSTER]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
    /// Print mesh.toml and what else would be written, and write nothing
    #[arg(long, conflicts_with = "force")]
    pub dry_run: bool,
    /// Write values and Secrets for the Helm chart instead
    #[arg(long, conflicts_with_all = ["data_dir", "force", "dry_run"])]
    pub kubernetes: bool,
    /// Choices of `--kubernetes`.
    #[command(flatten)]
    pub chart: InitKubernetes,
}

/// Choices of `smesh init --kubernetes`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of --kubernetes")]
pub struct InitKubernetes {
    /// URL of slurmrestd, as pods reach it
    #[arg(long, value_name = "URL", requires = "kubernetes", value_parser = http_url)]
    pub slurmrestd: Option<Url>,
    /// User of the token for slurmrestd: SlurmUser or an operator
    #[arg(
        long,
        value_name = "USER",
        default_value = "slurm",
        requires = "kubernetes"
    )]
    pub rest_user: String,
    /// File with a token for slurmrestd [default: you make its Secret, or Slinky does]
    #[arg(long, value_name = "FILE", requires = "slurmrestd")]
    pub slurm_token_file: Option<PathBuf>,
    /// 1 or 3 nats-servers of the chart, `chart` for the official NATS chart, or the URL of a server of your own
    #[arg(
        long,
        value_name = "1|3|chart|URL",
        default_value = "1",
        requires = "kubernetes"
    )]
    pub nats: NatsServers,
    /// Certificate authorities of that server (PEM)
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub nats_ca: Option<PathBuf>,
    /// Server of PostgreSQL for ledger, cost-engine and webhook-dispatcher [default: SQLite on volumes]
    #[arg(long, value_name = "HOST[:PORT]", requires = "kubernetes", value_parser = host_port)]
    pub postgres: Option<(String, u16)>,
    /// Write the Secrets as JSON files, for the store of this (Cluster)SecretStore of External Secrets
    #[arg(long, value_name = "[KIND/]NAME", requires = "kubernetes")]
    pub external_secrets: Option<String>,
    /// Registry of the images, and folder there
    #[arg(
        long,
        value_name = "NAME",
        default_value = "slurm-mesh",
        requires = "kubernetes"
    )]
    pub registry: String,
    /// Namespace of the release, for the commands that are printed
    #[arg(
        long,
        value_name = "NAME",
        default_value = "mesh",
        requires = "kubernetes"
    )]
    pub namespace: String,
    /// Name of the release, for the commands that are printed
    #[arg(
        long,
        value_name = "NAME",
        default_value = "first",
        requires = "kubernetes"
    )]
    pub release: String,
}

/// Which nats-servers the release uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatsServers {
    /// So many of the chart's own.
    Embedded(u8),
    /// Three of the official NATS chart.
    OfficialChart,
    /// A server of the site, at this URL.
    Url(String),
}

impl FromStr for NatsServers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_nats = |url: &str| {
            let url = Url::parse(url).ok();
            url.is_some_and(|url| matches!(url.scheme(), "nats" | "tls") && url.has_host())
        };
        match text {
            "1" => Ok(Self::Embedded(1)),
            "3" => Ok(Self::Embedded(3)),
            "chart" => Ok(Self::OfficialChart),
            urls if urls.split(',').all(is_nats) => Ok(Self::Url(urls.to_owned())),
            _ => Err("1, 3, chart, or a URL such as tls://nats.example.org:4222 is needed".into()),
        }
    }
}

fn http_url(text: &str) -> Result<Url, String> {
    Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or_else(|| "a URL such as http://slurmrestd.slurm:6820 is needed".to_owned())
}

/// A host and its port, by default that of PostgreSQL.
fn host_port(text: &str) -> Result<(String, u16), String> {
    let url = Url::parse(&format!("postgres://{text}/")).ok();
    let host = url.as_ref().and_then(Url::host_str);
    match (&url, host) {
        (Some(url), Some(host)) if url.path() == "/" && url.username().is_empty() => {
            Ok((host.to_owned(), url.port().unwrap_or(5432)))
        }
        _ => Err("a host is needed, or a host and a port, e.g. db.example.org:5432".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_a_number_a_chart_or_addresses() {
        assert_eq!("3".parse(), Ok(NatsServers::Embedded(3)));
        assert_eq!("chart".parse(), Ok(NatsServers::OfficialChart));
        let two = "tls://a.example.org:4222,tls://b.example.org:4222";
        assert_eq!(two.parse(), Ok(NatsServers::Url(two.to_owned())));
        for wrong in ["2", "nats.example.org", "http://x", "nats://a,b", ""] {
            assert!(wrong.parse::<NatsServers>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_database_server_is_a_host_with_or_without_a_port() {
        assert_eq!(host_port("db").unwrap(), ("db".to_owned(), 5432));
        assert_eq!(host_port("[::1]:5433").unwrap(), ("[::1]".to_owned(), 5433));
        for wrong in ["", "postgres://db", "db/ledger", "me@db", "db:x"] {
            assert!(host_port(wrong).is_err(), "{wrong}");
        }
    }
}
