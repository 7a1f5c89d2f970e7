//! `smesh init --kubernetes`: values and Secrets for the first installation of the Helm chart.
//!
//! The chart makes no secrets, so that it renders the same objects each time. They are made here, once.

mod secrets;
mod values;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use self::secrets::Secrets;
use crate::cli::{self, InitKubernetes, NatsServers};
use crate::error::Error;
use crate::show;
use crate::slurm_conf::SlurmConf;
use crate::up::data_dir::write_private;

const VALUES: &str = "values.yaml";
const MANIFEST: &str = "secrets.yaml";
const SECRETS: &str = "secrets";
const NATS_VALUES: &str = "nats-values.yaml";
const DATABASES: &str = "databases.sql";

/// Values of the official NATS chart.
const OFFICIAL_CHART: &str = include_str!("../../../../../deploy/helm/nats-values.yaml");

pub(super) fn run(global: &cli::Global, args: &cli::Init) -> Result<ExitCode, Error> {
    let chart = &args.chart;
    let cluster = cluster(global, args)?;
    check(chart)?;
    let folder = args.output.clone().unwrap_or_else(|| {
        PathBuf::from(format!(
            "slurm-mesh-{}",
            mesh_events::subject::token(&cluster)
        ))
    });
    let path = std::path::absolute(&folder).map_err(|e| Error::io("find", &folder, e))?;
    if path.symlink_metadata().is_ok() {
        return Err(Error::Failed(format!(
            "{} exists, and its secrets may be in use: name another folder with -o",
            folder.display()
        )));
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    // Complete or not there: a half of the secrets would look like all of them.
    let staging = tempfile::Builder::new()
        .prefix(".slurm-mesh-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent)
        .map_err(|source| Error::io("create a folder in", parent, source))?;
    write(staging.path(), &cluster, chart)?;
    fs::rename(staging.path(), &path).map_err(|source| Error::io("create", &path, source))?;
    // Nothing is left to remove.
    drop(staging.keep());
    let steps = next_steps(&folder, chart);
    if global.json {
        show::line(json!({ "cluster": cluster, "wrote": folder, "next": steps }))?;
        return Ok(ExitCode::SUCCESS);
    }
    show::line(format!(
        "wrote {}: values.yaml, and secrets that only you can read\n\nCluster {cluster}. Next:",
        folder.display()
    ))?;
    for step in steps {
        show::line(format!("  {step}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The cluster that `-M` names, else that of this machine.
fn cluster(global: &cli::Global, args: &cli::Init) -> Result<String, Error> {
    if let Some(cluster) = &global.cluster {
        return Ok(cluster.clone());
    }
    let here = SlurmConf::find(args.slurm_conf.as_deref()).and_then(|path| SlurmConf::read(&path));
    let cluster = here
        .ok()
        .and_then(|conf| Some(conf.get("ClusterName")?.to_owned()));
    cluster.ok_or_else(|| {
        Error::Usage("which cluster? Name it with -M; there is no slurm.conf here that does".into())
    })
}

/// Checks that the choices fit together.
fn check(chart: &InitKubernetes) -> Result<(), Error> {
    let is_ours = !matches!(chart.nats, NatsServers::Url(_));
    let fault = if chart.slurmrestd.is_none() && is_ours {
        "--slurmrestd URL is missing. Without it ingest and node-watcher run on slurmctld's host, and need --nats with the URL of a server that the host and the pods reach"
    } else if chart.nats_ca.is_some() && is_ours {
        "--nats-ca is for a server of your own: --nats with its URL"
    } else {
        return Ok(());
    };
    Err(Error::Usage(fault.into()))
}

fn write(folder: &Path, cluster: &str, chart: &InitKubernetes) -> Result<(), Error> {
    let private = |name: &str, text: &str| write_private(&folder.join(name), text.as_bytes(), None);
    let secrets = Secrets::make(folder, cluster, chart)?;
    match &chart.external_secrets {
        None => private(MANIFEST, &secrets.manifest(cluster))?,
        Some(_) => {
            let folder = folder.join(SECRETS);
            fs::create_dir(&folder).map_err(|source| Error::io("create", &folder, source))?;
            for (name, text) in secrets.documents() {
                write_private(&folder.join(format!("{name}.json")), text.as_bytes(), None)?;
            }
        }
    }
    if let Some(sql) = &secrets.databases {
        private(DATABASES, sql)?;
    }
    if chart.nats == NatsServers::OfficialChart {
        public(&folder.join(NATS_VALUES), OFFICIAL_CHART)?;
    }
    public(&folder.join(VALUES), &values::text(cluster, chart))
}

/// Writes a file without secrets.
fn public(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o644)))
        .map_err(|source| Error::io("write", path, source))
}

/// Commands for what comes after, in their order.
fn next_steps(folder: &Path, chart: &InitKubernetes) -> Vec<String> {
    let at = |name: &str| folder.join(name).display().to_string();
    let (namespace, release) = (&chart.namespace, &chart.release);
    let kubectl = format!("kubectl -n {namespace}");
    let mut steps = vec![
        format!(
            "edit {}: images, prices, Ingress, certificates, backups",
            at(VALUES)
        ),
        format!("kubectl create namespace {namespace}"),
    ];
    match &chart.external_secrets {
        None => steps.push(format!("{kubectl} create -f {}", at(MANIFEST))),
        Some(store) => steps.push(format!(
            "put each file of {} into the store of {store} under its name, e.g. vault kv put secret/NAME @NAME.json",
            at(SECRETS)
        )),
    }
    if chart.slurmrestd.is_some() && chart.slurm_token_file.is_none() {
        let user = &chart.rest_user;
        steps.push(format!(
            "scontrol token username={user} lifespan=86400 > slurm.jwt && {kubectl} create secret generic {} --from-file=token=slurm.jwt      or name the Secret of Slinky's Token in slurm.tokenSecret",
            secrets::SLURM_TOKEN
        ));
    }
    if let Some((host, port)) = &chart.postgres {
        steps.push(format!(
            "psql -h {host} -p {port} -f {}      as an administrator of PostgreSQL",
            at(DATABASES)
        ));
    }
    match &chart.nats {
        NatsServers::Embedded(_) => {}
        NatsServers::OfficialChart => {
            if chart.external_secrets.is_some() {
                steps.push(format!(
                    "{kubectl} create secret generic {} --from-file={}",
                    secrets::NATS_SERVER,
                    at("nats/users.conf")
                ));
            }
            steps.push("helm repo add nats https://nats-io.github.io/k8s/helm/charts/".into());
            steps.push(format!(
                "helm install nats nats/nats -n {namespace} -f {} --wait",
                at(NATS_VALUES)
            ));
        }
        NatsServers::Url(url) => steps.push(format!(
            "include {} into the configuration of {url}, and reload it",
            at("nats/users.conf")
        )),
    }
    steps.push(format!(
        "helm install {release} deploy/helm/slurm-mesh -n {namespace} -f {} --wait",
        at(VALUES)
    ));
    steps.push(format!("helm test {release} -n {namespace} --logs"));
    if chart.slurmrestd.is_none() {
        steps.push(format!(
            "on slurmctld's host: install ingest and node-watcher (docs/guide/install-packages.md), each with its seed from {} as nkey_file in [mesh.nats]",
            at("nats")
        ));
    }
    steps
}
