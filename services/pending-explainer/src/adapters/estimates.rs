//! The state of start estimates in the key-value bucket: one compressed value per cluster.
//!
//! A value is written before its estimates are shown, and every write names the revision that it is based on. So of several instances one
//! takes in each snapshot, and whoever goes on after a crash has all scores and open estimates.

use std::io::{Read as _, Write as _};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use mesh_bus::{Bucket, is_newer_format};
use mesh_events::subject;

use crate::domain::start_estimate::EstimateState;
use crate::error::Error;

/// Version of the stored format.
const VERSION: u32 = 1;

/// The stored state, and its revision.
#[derive(Clone, Debug, Default)]
pub struct StoredEstimates {
    /// The state.
    pub state: EstimateState,
    revision: Option<u64>,
}

/// The key. No cluster's token begins like this, so it is none of the shards'.
fn key(cluster: &str) -> String {
    format!("_estimates.{}", subject::token(cluster))
}

impl StoredEstimates {
    /// Reads the state if it is not that of `last`. One that cannot be read is put aside, and replaced by that of `last`.
    ///
    /// # Errors
    /// If NATS does not answer, or the stored format is a newer version's.
    pub async fn load(bucket: &Bucket, cluster: &str, last: Self) -> Result<Self, Error> {
        let key = key(cluster);
        let Some(entry) = bucket.get(&key).await? else {
            // Deleted: what this instance knows is written again.
            return Ok(Self {
                revision: None,
                ..last
            });
        };
        if Some(entry.revision) == last.revision {
            return Ok(last);
        }
        let mut json = Vec::new();
        let read = DeflateDecoder::new(entry.value.as_ref())
            .read_to_end(&mut json)
            .map_err(serde_json::Error::io)
            .and_then(|_| serde_json::from_slice::<EstimateState>(&json));
        let state = match read {
            Ok(state) if state.version <= VERSION => state,
            Err(error) if !is_newer_format(&json, VERSION) => {
                let reason = mesh_runtime::error_chain(&error);
                bucket.put_aside(&entry, &reason).await?;
                last.state
            }
            Ok(_) | Err(_) => return Err(Error::Newer { key }),
        };
        Ok(Self {
            state,
            revision: Some(entry.revision),
        })
    }

    /// Writes the state.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another instance wrote it.
    pub async fn save(&mut self, bucket: &Bucket, cluster: &str) -> Result<(), Error> {
        let key = key(cluster);
        self.state.version = VERSION;
        let unusable = |source| Error::Json {
            key: key.clone(),
            source,
        };
        let packed = packed(&self.state).map_err(unusable)?;
        self.revision = Some(bucket.put(&key, Bytes::from(packed), self.revision).await?);
        Ok(())
    }
}

/// The value of a state.
pub(crate) fn packed(state: &EstimateState) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(state)?;
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    let packed = encoder.write_all(&json).and_then(|()| encoder.finish());
    packed.map_err(serde_json::Error::io)
}
