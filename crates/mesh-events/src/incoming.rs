//! Events from outside of Slurm, as they travel on `MESH_IN`: CloudEvents 1.0 in structured JSON.
//!
//! Some attributes are extensions: `user`, the Unix user who published the event, and the chain that led to it:
//! `rootid`, `causeid` and `depth`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An event from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IncomingEvent {
    /// `1.0`
    #[serde(default = "version")]
    pub specversion: String,
    /// Id, unique over all sources. The same id is the same event.
    #[serde(default)]
    pub id: String,
    /// `/clusters/<cluster>/in/<name of the source>`
    #[serde(default)]
    pub source: String,
    /// Type, as its sender names it.
    pub r#type: String,
    /// When it happened, or when it was received.
    pub time: DateTime<Utc>,
    /// `application/json`
    #[serde(default = "json")]
    pub datacontenttype: String,
    /// Unix user who published it. Empty for events of machines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The first event of the chain that led to it. Empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rootid: String,
    /// The run of a rule that published it, or whose job did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub causeid: String,
    /// Runs of rules in that chain.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub depth: u32,
    /// The data.
    #[serde(default)]
    pub data: Value,
}

fn version() -> String {
    "1.0".to_owned()
}

fn json() -> String {
    "application/json".to_owned()
}

impl IncomingEvent {
    /// An event of a source.
    pub fn new(
        cluster: &str,
        source: &str,
        id: &str,
        r#type: impl Into<String>,
        time: DateTime<Utc>,
        data: Value,
    ) -> Self {
        Self {
            specversion: version(),
            id: format!("in:{source}:{id}"),
            source: format!("/clusters/{cluster}/in/{source}"),
            r#type: r#type.into(),
            time,
            datacontenttype: json(),
            user: String::new(),
            rootid: String::new(),
            causeid: String::new(),
            depth: 0,
            data,
        }
    }

    /// The event as JSON.
    ///
    /// # Panics
    /// Never: texts, numbers and JSON can be written.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts, numbers and JSON can be written")
    }

    /// Cluster and name of the source.
    pub fn place(&self) -> Option<(&str, &str)> {
        self.source.strip_prefix("/clusters/")?.split_once("/in/")
    }
}
