//! Arrays at an endpoint for people: events of their tasks go into digests instead of becoming a message each.
//!
//! A digest is on disk before its event is acknowledged, together with the messages it gave. So after a crash an event may come again,
//! which a digest does not mind; messages have ids made of the digest and their number, so none is sent twice.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_events::{Event, EventType};
use tokio::sync::Mutex;

use crate::adapters::store::Delivery;
use crate::domain::digest::{self, Digest, Pace, Summary};
use crate::domain::names;
use crate::error::Error;
use crate::lane::Lane;

/// Nothing is due for so long.
const LONG: Duration = Duration::from_secs(60);

/// The digests of an endpoint that still have something to tell or to wait for; `None` until they were read.
pub type Arrays = Mutex<Option<BTreeMap<String, Digest>>>;

impl Lane {
    /// Takes an event of an array in; what a replay tells once more has a digest of its own. False if it is to be told by itself.
    ///
    /// # Errors
    /// If the database does not read or write; the event comes again.
    pub async fn digest(
        &self,
        kind: EventType,
        event: &Event,
        replay: Option<&str>,
    ) -> Result<bool, Error> {
        let Some(key) = digest::key(kind, event).filter(|_| self.makes_digests()) else {
            return Ok(false);
        };
        let key = match replay {
            Some(replay) => format!("{key}/{replay}"),
            None => key,
        };
        let filter = &self.endpoint.filter;
        let beside = matches!(kind, EventType::JobSubmitted | EventType::CostFinalized);
        if !filter.concerns(kind, event) || !(beside || filter.meets(event)) {
            return Ok(true);
        }
        let now = Utc::now();
        let mut arrays = self.arrays.lock().await;
        let live = self.live(&mut arrays).await?;
        let mut digest = match live.get(&key) {
            Some(digest) => digest.clone(),
            None => match self.stored(&key).await? {
                Some(digest) => digest,
                None => match replay {
                    Some(replay) => Digest::replayed(replay),
                    // Of an array nobody was told of, what is too old is counted as any other event.
                    None if self.is_too_old(event, now) => return Ok(false),
                    None => Digest::default(),
                },
            },
        };
        let told = digest.apply(kind, event, |kind| filter.selects(kind), now);
        self.tell(&key, &digest, told, now).await?;
        live.insert(key, digest);
        self.wake();
        Ok(true)
    }

    /// Tells what digests have to tell; returns how long nothing else will be due.
    ///
    /// # Errors
    /// If the database does not read or write.
    pub async fn tick_digests(&self, now: DateTime<Utc>) -> Result<Duration, Error> {
        if !self.makes_digests() {
            return Ok(LONG);
        }
        let pace = self.pace();
        let mut arrays = self.arrays.lock().await;
        let live = self.live(&mut arrays).await?;
        let mut pause = LONG;
        let due: Vec<String> = live
            .iter()
            .filter(|(_, digest)| digest.due(&pace).is_some_and(|due| due <= now))
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            let Some(mut digest) = live.get(&key).cloned() else {
                continue;
            };
            let told = digest.tick(&pace, now);
            self.tell(&key, &digest, told, now).await?;
            live.insert(key, digest);
        }
        live.retain(|_, digest| !digest.is_over());
        for due in live.values().filter_map(|digest| digest.due(&pace)) {
            pause = pause.min((due - now).to_std().unwrap_or_default());
        }
        Ok(pause)
    }

    fn makes_digests(&self) -> bool {
        self.endpoint.digest && !self.array_companions.is_empty()
    }

    fn pace(&self) -> Pace {
        if self.endpoint.format.keeps_current() {
            Pace::CURRENT
        } else {
            Pace::MESSAGES
        }
    }

    /// Writes a digest and what it tells: the messages first, so that a crash in between repeats them instead of losing them.
    async fn tell(
        &self,
        key: &str,
        digest: &Digest,
        told: impl IntoIterator<Item = Summary>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let (store, epoch) = (&self.shared.store, self.lease.epoch);
        let asked = |kind| self.endpoint.filter.selects(kind);
        for summary in told.into_iter().filter(|summary| summary.concerns(asked)) {
            let id = names::digest_id(&self.endpoint.name, key, summary.number);
            let body = serde_json::json!(summary).to_string().into_bytes();
            let message = Delivery::message(&self.endpoint.name, id, body, now);
            store.save(epoch, message).await?;
        }
        let state = serde_json::json!(digest).to_string();
        let keep = vec![(key.to_owned(), Some(state))];
        store.keep(epoch, &self.endpoint.name, keep, now).await
    }

    async fn live<'a>(
        &self,
        arrays: &'a mut Option<BTreeMap<String, Digest>>,
    ) -> Result<&'a mut BTreeMap<String, Digest>, Error> {
        let live = match arrays.take() {
            Some(live) => live,
            None => {
                let stored = self
                    .shared
                    .store
                    .kept_below(&self.endpoint.name, "digest")
                    .await?;
                stored
                    .into_iter()
                    // What cannot be read was written by another version: the array is told of anew.
                    .filter_map(|(key, state)| Some((key, serde_json::from_str(&state).ok()?)))
                    .filter(|(_, digest): &(String, Digest)| !digest.is_over())
                    .collect()
            }
        };
        Ok(arrays.insert(live))
    }

    async fn stored(&self, key: &str) -> Result<Option<Digest>, Error> {
        let keys = vec![key.to_owned()];
        let mut kept = self.shared.store.kept(&self.endpoint.name, keys).await?;
        Ok(kept
            .remove(key)
            .and_then(|state| serde_json::from_str(&state).ok()))
    }
}
