//! Checks that every stream and bucket stores, without storing a message.
//!
//! A probe message would be an event to its readers: the ledger captures all of SLURM_EVENTS and MESH_AUDIT and checks every sequence of
//! them. A publish that has to be refused (`Nats-Expected-Last-Sequence`) is refused before the server touches the disk. So the
//! administrator sends two requests that change nothing:
//!
//! - It declares the stream again with its present configuration. The server writes the declaration to the stream's folder, like a message.
//! - It purges a subject that the stream does not take and that has no messages. Before the server looks for them it returns the error of
//!   an earlier failed write. After such an error the server stores nothing more until it is restarted, even when there is room again.
//!
//! No other role has the rights for either.

use std::time::Duration;

use futures_util::future::join_all;
use mesh_events::catalogue::{BUCKETS, STREAMS};
use serde_json::{Value, json};

use crate::{Bus, Error};

/// A healthy server answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Subject of no stream: there is nothing to be purged.
const NO_SUBJECT: &str = "doctor.probe";
/// A stream with less room than the largest message needs counts as full.
const MIN_ROOM: u64 = 1 << 20;

/// Whether a stream or bucket stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageState {
    /// Name of the stream; for a bucket `KV_<bucket>`.
    pub stream: String,
    /// Why it does not store; `None` if it does.
    pub problem: Option<String>,
}

impl Bus {
    /// Checks that every stream and bucket of the catalogue stores. For the administrator.
    ///
    /// # Errors
    /// If NATS does not answer, or these are not the administrator's credentials: NATS does not answer forbidden requests.
    pub async fn probe_storage(&self) -> Result<Vec<StorageState>, Error> {
        let buckets = BUCKETS.iter().map(|bucket| format!("KV_{}", bucket.name));
        let streams = STREAMS.iter().map(|stream| stream.name.to_owned());
        let probes = streams.chain(buckets).map(|stream| async {
            let problem = self.storage_problem(&stream).await?;
            Ok(StorageState { stream, problem })
        });
        join_all(probes).await.into_iter().collect()
    }

    async fn storage_problem(&self, stream: &str) -> Result<Option<String>, Error> {
        let info = self.ask("STREAM.INFO", stream, &json!({})).await?;
        if let Some(problem) = refusal(&info).or_else(|| unable(&info)) {
            return Ok(Some(problem));
        }
        let declared = self.ask("STREAM.UPDATE", stream, &info["config"]).await?;
        if let Some(problem) = refusal(&declared) {
            return Ok(Some(problem));
        }
        let nothing = json!({ "filter": NO_SUBJECT });
        let purged = self.ask("STREAM.PURGE", stream, &nothing).await?;
        Ok(refusal(&purged))
    }

    async fn ask(&self, verb: &'static str, stream: &str, request: &Value) -> Result<Value, Error> {
        let failed = || Error::jetstream("probe", stream);
        let request = async_nats::Request::new()
            .payload(request.to_string().into())
            .timeout(Some(ANSWER_TIMEOUT));
        let subject = format!("$JS.API.{verb}.{stream}");
        let answer = self.client.send_request(subject, request).await;
        let answer = answer.map_err(|source| failed()(source.into()))?;
        serde_json::from_slice(&answer.payload).map_err(|source| failed()(source.into()))
    }
}

/// The server's error, if it refused the request.
fn refusal(answer: &Value) -> Option<String> {
    let error = answer.get("error")?;
    let text = error["description"].as_str();
    Some(text.map_or_else(|| error.to_string(), str::to_owned))
}

/// Why the server would not store a message, by its own report. A stream that discards its oldest messages is never full.
fn unable(info: &Value) -> Option<String> {
    let (stored, max_bytes) = (&info["state"]["bytes"], &info["config"]["max_bytes"]);
    if let (Some(stored), Some(max_bytes @ 1..)) = (stored.as_u64(), max_bytes.as_u64())
        && stored.saturating_add(MIN_ROOM) > max_bytes
        && info["config"]["discard"] != "old"
    {
        return Some(format!("it is full: {stored} of {max_bytes} bytes"));
    }
    let cluster = info.get("cluster")?;
    let has_leader = cluster["leader"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    (!has_leader).then(|| "it has no leader".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_full_or_without_a_leader_does_not_store() {
        let info = |bytes: u64, max_bytes: i64, cluster: Value| {
            let mut info =
                json!({ "state": { "bytes": bytes }, "config": { "max_bytes": max_bytes } });
            if !cluster.is_null() {
                info["cluster"] = cluster;
            }
            unable(&info)
        };
        let leader = json!({ "leader": "n1" });
        assert_eq!(info(5, -1, Value::Null), None);
        assert_eq!(info(5, 8 << 20, leader.clone()), None);
        let full = info((8 << 20) - 100, 8 << 20, leader).unwrap();
        assert!(full.starts_with("it is full"), "{full}");
        let rolling = json!({ "state": { "bytes": 99 }, "config": { "max_bytes": 99, "discard": "old" },
            "cluster": { "leader": "n1" } });
        assert_eq!(unable(&rolling), None);
        for without in [json!({}), json!({ "leader": "" })] {
            let problem = info(5, 8 << 20, without);
            assert_eq!(problem.as_deref(), Some("it has no leader"));
        }
    }
}
