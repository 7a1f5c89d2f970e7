//! Nodes, partitions, and the controllers' status and configuration, over REST.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Api, CLUSTERS, CONF, DIAG, Family, NODES, PARTITIONS, PING, Response, Rest, documented,
    envelope, nothing, unreadable,
};
use crate::{
    Drift, Error, NodeRecord, PartitionRecord, Ping,
    json::{self, Envelope, Fields},
};

impl Rest {
    /// Every node.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodeRecord>, Error> {
        let api = self.api().await?;
        if api.version(Family::Controller) == Some(36) {
            // Its states have no flags: a drained node would look idle.
            return Err(Error::NotServed {
                command: NODES,
                served: api.served(Family::Controller),
                needed: "v0.0.37 or newer",
            });
        }
        let nodes = self.whole(NODES, "nodes", json::node).await?;
        self.drifts.note(nodes.iter().flat_map(Drift::of_node));
        Ok(nodes)
    }

    /// Every partition.
    pub(crate) async fn partitions(&self) -> Result<Vec<PartitionRecord>, Error> {
        self.whole(PARTITIONS, "partitions", json::partition).await
    }

    /// A list that was parsed completely and is not empty.
    async fn whole<T: Send + 'static>(
        &self,
        command: &'static str,
        question: &'static str,
        read: fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let records = self
            .all(command, Family::Controller, question, "", read)
            .await?;
        match records.is_empty() {
            true => Err(nothing(command)),
            false => Ok(records),
        }
    }

    /// The part of the configuration that slurmrestd has: v0.0.45 nearly all, older ones the cluster, the version and the clock.
    pub(crate) async fn config(&self) -> Result<BTreeMap<String, String>, Error> {
        let api = self.api().await?;
        let mut config = BTreeMap::new();
        if api.path(Family::Controller, "conf").is_some()
            && let Response::Document(body) = self.get(CONF, Family::Controller, "conf", "").await?
        {
            let document: Value =
                serde_json::from_slice(&body).map_err(|e| unreadable(CONF, &body, &e))?;
            let values = document["slurm_conf"].as_object().into_iter().flatten();
            config.extend(values.filter_map(|(key, value)| Some((key.clone(), printed(value)?))));
        }
        let about = match self.get(DIAG, Family::Controller, "diag", "").await? {
            Response::Document(body) => envelope(DIAG, &body)?,
            _ => return Err(nothing(DIAG)),
        };
        let mut set = |key: &str, value: String| {
            if !value.is_empty() {
                config.entry(key.to_owned()).or_insert(value);
            }
        };
        set(
            "AsOf",
            about
                .clock
                .map_or_else(String::new, |time| time.to_string()),
        );
        set("SLURM_VERSION", about.release);
        set("ClusterName", about.cluster);
        set(
            "AccountingStorageType",
            match about.accounting_storage {
                found if !found.is_empty() => found,
                // 22.05 does not report it, but serves /slurmdb only with slurmdbd.
                _ if api.version(Family::Accounting).is_some() => {
                    "accounting_storage/slurmdbd".to_owned()
                }
                _ => String::new(),
            },
        );
        if !config.contains_key("ClusterName")
            && let Some(cluster) = self.only_cluster(&api).await
        {
            config.insert("ClusterName".to_owned(), cluster);
        }
        Ok(config)
    }

    /// The only cluster of accounting: 22.05 reports it nowhere else.
    async fn only_cluster(&self, api: &Api) -> Option<String> {
        api.path(Family::Accounting, "clusters")?;
        let read = |value: &Value| Fields::new(value).text("name");
        let found = self
            .list(CLUSTERS, Family::Accounting, "clusters", "", read)
            .await;
        match found.ok()??.0.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        }
    }

    /// Checks whether a controller is up.
    pub(crate) async fn ping(&self) -> Result<Ping, Error> {
        let (controllers, _) = self.pings().await?;
        Ok(Ping {
            up: controllers.iter().any(|(up, _)| *up),
            lines: controllers.into_iter().map(|(_, line)| line).collect(),
        })
    }

    /// Version of slurmrestd.
    pub(crate) async fn version(&self) -> Result<String, Error> {
        let (_, envelope) = self.pings().await?;
        match envelope.release.is_empty() {
            true => Err(nothing(PING)),
            false => Ok(envelope.release),
        }
    }

    async fn pings(&self) -> Result<(Vec<(bool, String)>, Envelope), Error> {
        let found = match self.get(PING, Family::Controller, "ping", "").await? {
            Response::Document(body) => documented(PING, body, "pings", ping).await?,
            _ => return Err(nothing(PING)),
        };
        match found.0.is_empty() {
            true => Err(nothing(PING)),
            false => Ok(found),
        }
    }
}

/// `ping: "UP"` (22.05), `pinged: "UP"` (v0.0.40 to v0.0.44), `responding: true` (v0.0.42 and later).
fn ping(value: &Value) -> (bool, String) {
    let mut fields = Fields::new(value);
    let states = [fields.text("ping"), fields.text("pinged")];
    let up = fields.flag("responding") || states.iter().any(|state| state == "UP");
    let mode = match fields.text("mode") {
        found if !found.is_empty() => found,
        _ if fields.flag("primary") => "primary".to_owned(),
        _ => "backup".to_owned(),
    };
    let host = fields.text("hostname");
    let state = if up { "UP" } else { "DOWN" };
    (up, format!("Slurmctld({mode}) at {host} is {state}"))
}

/// A value as `scontrol show config` would print it.
fn printed(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(if *flag { "Yes" } else { "No" }.to_owned()),
        Value::Array(items) => {
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            Some(texts?.join(","))
        }
        Value::Object(_) => Some(
            Fields::new(&serde_json::json!({ "v": value }))
                .signed("v")?
                .to_string(),
        ),
        Value::Null => None,
    }
}
