//! The text of values.yaml.

use std::fmt::Write as _;

use serde_json::json;

use super::secrets;
use crate::cli::{InitKubernetes, NatsServers};

/// Port that the chart's network policies allow to slurmrestd.
const SLURMRESTD_PORT: u16 = 6820;
const POSTGRES_PORT: u16 = 5432;

const HEAD: &str = "\
# Values of the Helm chart of slurm-mesh, without secrets. Written by `smesh init --kubernetes`; deploy/helm/slurm-mesh/README.md has every key, e.g.
# services.cost-engine.priceBookConfigMap (without prices there are no costs), ingress, api.tlsSecret, certManager, metrics, backup.
";

/// Writes the values of a release.
pub(super) fn text(cluster: &str, chart: &InitKubernetes) -> String {
    let mut text = HEAD.to_owned();
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        // Writing to a text does not fail.
        writeln!(text, "{arguments}").ok();
    };
    line(format_args!("cluster: {}", json!(cluster)));
    line(format_args!("imageRegistry: {}", json!(chart.registry)));
    if let Some(url) = &chart.slurmrestd {
        // Paths of slurmrestd begin with a slash.
        let url = json!(url.as_str().trim_end_matches('/'));
        let user = json!(chart.rest_user);
        line(format_args!("slurm: {{restUrl: {url}, restUser: {user}}}"));
    }
    match &chart.nats {
        NatsServers::Embedded(count) => line(format_args!(
            "# Not to be changed after the first installation.\nnats: {{replicas: {count}, streamReplicas: {count}}}"
        )),
        NatsServers::OfficialChart => line(format_args!(
            "nats: {{embedded: false, url: \"nats://nats:4222\", streamReplicas: 3}}"
        )),
        NatsServers::Url(url) => {
            let ca = match &chart.nats_ca {
                Some(_) => format!(", caSecret: {}", secrets::NATS_CA),
                None => String::new(),
            };
            line(format_args!(
                "# streamReplicas: 3, if it is a cluster of three.\nnats: {{embedded: false, url: {}, streamReplicas: 1{ca}}}",
                json!(url)
            ));
        }
    }
    if chart.postgres.is_some() {
        line(format_args!(
            "migrate: {{enabled: true, ownerSecret: {{name: {}}}}}",
            secrets::LEDGER_OWNER
        ));
    }
    if let Some(policy) = ports(chart) {
        line(format_args!("networkPolicy: {{{policy}}}"));
    }
    if let Some(store) = &chart.external_secrets {
        let (kind, name) = store.split_once('/').unwrap_or(("SecretStore", store));
        // That of the token is Slinky's, or yours.
        let except = match chart.slurm_token_file {
            None if chart.slurmrestd.is_some() => format!(", except: [{}]", secrets::SLURM_TOKEN),
            _ => String::new(),
        };
        line(format_args!(
            "externalSecrets: {{enabled: true, store: {{name: {}, kind: {}}}{except}}}",
            json!(name),
            json!(kind)
        ));
    }
    let services = services(chart);
    if !services.is_empty() {
        line(format_args!("services:"));
    }
    for service in services {
        line(format_args!("  {service}"));
    }
    text
}

/// Ports that differ from the chart's.
fn ports(chart: &InitKubernetes) -> Option<String> {
    let slurm = chart.slurmrestd.as_ref();
    let slurm = slurm.and_then(url::Url::port_or_known_default);
    let postgres = chart.postgres.as_ref().map(|(_, port)| *port);
    let ports = [
        ("slurmPort", slurm, SLURMRESTD_PORT),
        ("postgresPort", postgres, POSTGRES_PORT),
    ];
    let others = ports.into_iter().filter_map(|(key, port, usual)| {
        let port = port.filter(|port| *port != usual)?;
        Some(format!("{key}: {port}"))
    });
    let others: Vec<String> = others.collect();
    (!others.is_empty()).then(|| others.join(", "))
}

fn services(chart: &InitKubernetes) -> Vec<String> {
    let mut lines = Vec::new();
    if chart.slurmrestd.is_none() {
        let elsewhere = secrets::ASK_SLURM.iter();
        lines.extend(elsewhere.map(|service| format!("{service}: {{enabled: false}}")));
    }
    if chart.postgres.is_some() {
        lines.extend(secrets::DATABASES.iter().map(|service| {
            let secret = secrets::database(service);
            let database = format!("database: {{kind: postgres, existingSecret: {secret}}}");
            let more = match *service {
                "ledger" => format!(", checkpointKeySecret: {}", secrets::CHECKPOINT_KEY),
                "webhook-dispatcher" => format!(", secretsKeySecret: {}", secrets::SECRETS_KEY),
                _ => String::new(),
            };
            format!("{service}: {{replicas: 2, {database}{more}}}")
        }));
    }
    lines
}
