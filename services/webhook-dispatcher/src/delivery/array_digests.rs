//! Array digests of chat endpoints: events of array tasks are aggregated instead of sent one by one.
//!
//! A digest is stored, together with the messages it produced, before its event is settled. After a crash an
//! event may be read again, which does not change the digest. Message ids are derived from the digest and a sequence
//! number, so none is sent twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use event_message::digest::{self, Digest, DigestSchedule, Summary};
use mesh_events::EventType;
use tokio::sync::Mutex;

use crate::clock;
use crate::delivery::EndpointWorker;
use crate::delivery::due::NOTHING_WAITS;
use crate::error::Error;
use crate::names;
use crate::store::Delivery;
use crate::stream::event::StreamEvent;

/// Interval while nothing is due.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);

/// The unfinished digests of an endpoint. `None` until read from the database.
pub type ArrayDigests = Mutex<Option<BTreeMap<String, Digest>>>;

impl EndpointWorker {
    /// True if the endpoint aggregates array events.
    pub fn makes_digests(&self) -> bool {
        self.endpoint.digest && !self.array_companions.is_empty()
    }

    /// Adds a batch of events to the digests of their arrays. Events of a replay have digests of their own. Returns
    /// for each event whether it was added; the others must be sent individually.
    ///
    /// # Errors
    /// If the database read or write fails. The events are handled again.
    pub async fn digest(&self, events: &[Arc<StreamEvent>]) -> Result<Vec<bool>, Error> {
        if !self.makes_digests() {
            return Ok(vec![false; events.len()]);
        }
        let keyed = events.iter();
        let keyed = keyed.map(|read| Some((&**read, self.digest_of(read)?)));
        let keyed: Vec<Option<(&StreamEvent, String)>> = keyed.collect();
        if keyed.iter().all(Option::is_none) {
            return Ok(vec![false; events.len()]);
        }
        let now = clock::now();
        let filter = &self.endpoint.filter;
        let mut arrays = self.arrays.lock().await;
        let live = self.live(&mut arrays).await?;
        let mut changed = BTreeMap::new();
        let mut sent = Vec::new();
        let mut taken = Vec::with_capacity(events.len());
        for event in keyed {
            let Some((read, key)) = event else {
                taken.push(false);
                continue;
            };
            let (kind, event) = (read.kind, &*read.event);
            let beside = matches!(kind, EventType::JobSubmitted | EventType::CostFinalized);
            if !filter.concerns(kind, event) || !(beside || filter.meets(event)) {
                taken.push(true);
                continue;
            }
            if !changed.contains_key(&key)
                && let Some(digest) = self.begun(live, &key, read, now).await?
            {
                changed.insert(key.clone(), digest);
            }
            let digest = changed.get_mut(&key);
            taken.push(digest.is_some());
            if let Some(digest) = digest {
                let summaries = digest.apply(kind, event, |kind| filter.selects(kind), now);
                sent.extend(summaries.into_iter().map(|summary| (key.clone(), summary)));
            }
        }
        self.keep_digests(&changed, sent, now).await?;
        live.extend(changed);
        self.wake();
        Ok(taken)
    }

    fn digest_of(&self, read: &StreamEvent) -> Option<String> {
        let key = digest::key(read.kind, &read.event)?;
        Some(match &read.replay {
            Some(replay) => format!("{key}/{replay}"),
            None => key,
        })
    }

    /// The digest that an event belongs to. `None` if it has not started and the event is too old to start one.
    async fn begun(
        &self,
        live: &BTreeMap<String, Digest>,
        key: &str,
        read: &StreamEvent,
        now: DateTime<Utc>,
    ) -> Result<Option<Digest>, Error> {
        if let Some(digest) = live.get(key) {
            return Ok(Some(digest.clone()));
        }
        if let Some(digest) = self.stored(key).await? {
            return Ok(Some(digest));
        }
        Ok(match &read.replay {
            Some(replay) => Some(Digest::replayed(replay)),
            // An old event of an array without a digest is treated like any other event.
            None if self.is_too_old(&read.event, now) => None,
            None => Some(Digest::default()),
        })
    }

    /// Sends the messages of digests that are due. Returns the time until the next one is due.
    ///
    /// # Errors
    /// If the database read or write fails.
    pub async fn tick_digests(&self, now: DateTime<Utc>) -> Result<Duration, Error> {
        if !self.makes_digests() {
            return Ok(NOTHING_WAITS);
        }
        let pace = self.pace();
        let mut arrays = self.arrays.lock().await;
        let live = self.live(&mut arrays).await?;
        let mut pause = IDLE_INTERVAL;
        let mut changed = BTreeMap::new();
        let mut sent = Vec::new();
        let due = |digest: &Digest| digest.is_due(&pace, now);
        for (key, digest) in live.iter().filter(|(_, digest)| due(digest)) {
            let mut digest = digest.clone();
            sent.extend(
                digest
                    .tick(&pace, now)
                    .map(|summary| (key.clone(), summary)),
            );
            changed.insert(key.clone(), digest);
        }
        self.keep_digests(&changed, sent, now).await?;
        live.extend(changed);
        live.retain(|_, digest| !digest.is_over());
        if live.is_empty() {
            pause = NOTHING_WAITS;
        }
        for due in live.values().filter_map(|digest| digest.due(&pace)) {
            pause = pause.min((due - now).to_std().unwrap_or_default());
        }
        Ok(pause)
    }

    fn pace(&self) -> DigestSchedule {
        if self.endpoint.format.keeps_current() {
            DigestSchedule::CURRENT
        } else {
            DigestSchedule::MESSAGES
        }
    }

    /// Stores messages and digests. The messages go first: a crash in between repeats them instead of losing them.
    async fn keep_digests(
        &self,
        digests: &BTreeMap<String, Digest>,
        sent: Vec<(String, Summary)>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        if digests.is_empty() {
            return Ok(());
        }
        let (store, epoch, endpoint) = (&self.shared.store, self.lease.epoch, &self.endpoint.name);
        let asked = |kind| self.endpoint.filter.selects(kind);
        // Consecutive due times preserve the order.
        let mut at = now;
        for (key, summary) in sent.iter().filter(|(_, sent)| sent.concerns(asked)) {
            let id = names::digest_id(endpoint, key, summary.number);
            let body = serde_json::json!(summary).to_string().into_bytes();
            store
                .save(epoch, Delivery::message(endpoint, id, body, at))
                .await?;
            at += TimeDelta::milliseconds(1);
        }
        let state = |digest: &Digest| Some(serde_json::json!(digest).to_string());
        let updates = digests
            .iter()
            .map(|(key, digest)| (key.clone(), state(digest)));
        let updates = updates.collect();
        self.rows().store_provider_state(updates, now).await
    }

    async fn live<'a>(
        &self,
        arrays: &'a mut Option<BTreeMap<String, Digest>>,
    ) -> Result<&'a mut BTreeMap<String, Digest>, Error> {
        let live = match arrays.take() {
            Some(live) => live,
            None => {
                let stored = self.rows().provider_states_below("digest").await?;
                stored
                    .into_iter()
                    // An unreadable digest was written by another version: the array starts a new one.
                    .filter_map(|(key, state)| Some((key, serde_json::from_str(&state).ok()?)))
                    .filter(|(_, digest): &(String, Digest)| !digest.is_over())
                    .collect()
            }
        };
        Ok(arrays.insert(live))
    }

    async fn stored(&self, key: &str) -> Result<Option<Digest>, Error> {
        let stored = self.rows().provider_state(key).await?;
        Ok(stored.and_then(|state| serde_json::from_str(&state).ok()))
    }
}
