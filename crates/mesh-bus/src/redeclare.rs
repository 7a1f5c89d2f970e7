//! Declares deleted streams and buckets again, and detects a server that no longer stores.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use mesh_events::catalogue::{BUCKETS, STREAMS};
use serde::Deserialize;

use crate::{Bus, Error, metrics};

/// A healthy server answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Health of a server; answered in the system account only.
const HEALTH_SUBJECT: &str = "$SYS.REQ.SERVER.PING.HEALTHZ";

#[derive(Deserialize)]
struct HealthAnswer {
    data: HealthStatus,
}

#[derive(Deserialize)]
struct HealthStatus {
    status: String,
    #[serde(default)]
    error: String,
}

impl Bus {
    /// Declares the catalogue again if one of its streams or buckets is missing, and reports it. For connections that may provision.
    ///
    /// # Errors
    /// If NATS does not answer or refuses.
    pub async fn redeclare_missing(&self) -> Result<(), Error> {
        let failed = || Error::jetstream("list", "streams");
        let names = self.jetstream.stream_names();
        let found: BTreeSet<String> = names
            .try_collect()
            .await
            .map_err(|source| failed()(source.into()))?;
        let buckets = BUCKETS.iter().map(|bucket| format!("KV_{}", bucket.name));
        let streams = STREAMS.iter().map(|stream| stream.name.to_owned());
        let missing: BTreeSet<String> = streams
            .chain(buckets)
            .filter(|name| !found.contains(name))
            .collect();
        // Reported first: if declaring fails midway, the next check finds some of them again.
        for name in self.status.newly_missing(missing.clone()) {
            let what = match name.strip_prefix("KV_") {
                Some(bucket) => format!("bucket {bucket}"),
                None => format!("stream {name}"),
            };
            metrics::repaired(&name);
            tracing::error!(
                stream = name,
                "{what} was deleted by another client and is declared again; its content is lost"
            );
            let repaired = format!("{what} was deleted, its content is lost");
            self.status.repaired(repaired);
        }
        if missing.is_empty() {
            return Ok(());
        }
        // Not what is deleted meanwhile: the next check finds and reports it.
        Box::pin(self.declare_catalogue(|name| missing.contains(name))).await
    }

    /// The server's own health report; `None` if it is healthy. For a user of the system account.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn server_problem(&self) -> Result<Option<String>, Error> {
        let failed = || Error::jetstream("ask for the health of", "NATS");
        let request = async_nats::Request::new().timeout(Some(ANSWER_TIMEOUT));
        let answer = self.client.send_request(HEALTH_SUBJECT, request).await;
        let answer = answer.map_err(|source| failed()(source.into()))?;
        let answer: HealthAnswer =
            serde_json::from_slice(&answer.payload).map_err(|source| failed()(source.into()))?;
        let HealthStatus { status, error } = answer.data;
        Ok(match status.as_str() {
            "ok" => None,
            _ if error.is_empty() => Some(status),
            _ => Some(error),
        })
    }

    /// Whether this connection declares streams, consumers and buckets.
    pub fn provisions(&self) -> bool {
        self.config.provision
    }
}
