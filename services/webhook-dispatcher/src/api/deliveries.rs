//! Lists deliveries and starts redeliveries of dead letters.

use std::fmt::Display;

use mesh_runtime::api::Caller;

use super::{ApiError, DeliveryList, DeliveryWithAttempts, Page, RedeliveryList, Webhooks};
use crate::attempt::cause::Cause;
use crate::clock;
use crate::store::State;
use crate::store::delivery_position::DeliveryPosition;
use crate::store::redeliveries::{DeliverySelection, RedeliverRequest, RedeliveryJob};

/// Maximum running redelivery jobs per endpoint.
const MAX_JOBS: i64 = 10;
/// Maximum ids in a redelivery request.
const MAX_IDS: usize = 1_000;

impl Webhooks {
    /// Lists deliveries of an endpoint, newest first.
    pub(super) async fn deliveries(
        &self,
        caller: &Caller,
        name: &str,
        page: Page,
    ) -> Result<DeliveryList, ApiError> {
        let stored = self.visible(caller, name).await?;
        let states = "waiting, delivered, dead, expired";
        let wanted = DeliverySelection {
            state: known("state", states, page.state.as_deref(), State::parse)?,
            kind: page.kind,
            cause: known("cause", causes(), page.cause.as_deref(), Cause::parse)?,
            since: page.since,
            until: page.until,
        };
        let cursors = "next_cursor of the page before, unchanged";
        let after = known(
            "cursor",
            cursors,
            page.cursor.as_deref(),
            DeliveryPosition::parse,
        )?;
        let max = page.limit.unwrap_or(50).clamp(1, 500);
        // One more than requested, to know whether another page follows.
        let found = self
            .shared
            .store
            .recent(&stored.name, &wanted, after.as_ref(), max + 1);
        let mut deliveries = found.await?;
        let more = deliveries.len() > max as usize;
        deliveries.truncate(max as usize);
        let last = deliveries.last().filter(|_| more);
        Ok(DeliveryList {
            owner: stored.owner,
            next_cursor: last.map(|delivery| delivery.place().cursor()),
            deliveries,
        })
    }

    /// Reads a delivery with its attempts, and the owner of its endpoint.
    pub(super) async fn delivery(
        &self,
        caller: &Caller,
        name: &str,
        event_id: &str,
    ) -> Result<DeliveryWithAttempts, ApiError> {
        let stored = self.visible(caller, name).await?;
        let (store, name) = (&self.shared.store, &stored.name);
        let Some(delivery) = store.load(name, event_id).await? else {
            return Err(ApiError::NoDelivery(event_id.to_owned()));
        };
        Ok(DeliveryWithAttempts {
            owner: stored.owner,
            event: delivery.cloud_event(),
            tried: store.attempts(name, event_id).await?,
            delivery,
        })
    }

    /// Starts a redelivery of dead letters.
    pub(super) async fn redeliver(
        &self,
        caller: &Caller,
        name: &str,
        again: RedeliverRequest,
    ) -> Result<RedeliveryJob, ApiError> {
        let stored = self.changeable(caller, name).await?;
        let name = &stored.name;
        let narrowed = again.all
            || again.kind.is_some()
            || again.cause.is_some()
            || again.since.is_some()
            || again.until.is_some();
        if again.ids.is_empty() != narrowed {
            let problem = "name ids, or say which: all, type, cause, since, until; not both";
            return Err(ApiError::invalid("ids", problem));
        }
        if again.ids.len() > MAX_IDS {
            let problem = format!("at most {MAX_IDS}; say which by type, cause, since or until");
            return Err(ApiError::invalid("ids", problem));
        }
        if !(1..=1_000).contains(&again.rate.unwrap_or(1)) {
            return Err(ApiError::invalid("rate", "from 1 to 1000"));
        }
        known("cause", causes(), again.cause.as_deref(), Cause::parse)?;
        for id in &again.ids {
            match self.shared.store.load(name, id).await? {
                None => return Err(ApiError::NoDelivery(id.clone())),
                Some(delivery) if delivery.state == State::Dead => {}
                Some(delivery) => {
                    return Err(ApiError::Conflict(format!(
                        "{id} is {}: only dead letters are delivered again",
                        delivery.state.as_str()
                    )));
                }
            }
        }
        let now = clock::now();
        let job = RedeliveryJob {
            id: uuid::Uuid::new_v4().to_string(),
            webhook: name.clone(),
            state: "running".to_owned(),
            queued: 0,
            by: caller.name.clone(),
            created_at: now,
            updated_at: now,
            cursor: String::new(),
            filter: again,
        };
        let act = self.act(caller, &stored, "redelivery", Vec::new(), &job.id, now);
        if !self.shared.store.redeliver(&job, MAX_JOBS, act).await? {
            return Err(ApiError::Conflict(format!(
                "{MAX_JOBS} redeliveries to {name:?} are under way; wait until one is done"
            )));
        }
        self.worker_pool.wake();
        self.shared.outcomes.notify_one();
        Ok(job)
    }

    /// Lists redelivery jobs of an endpoint, with the endpoint's owner.
    pub(super) async fn redeliveries(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<RedeliveryList, ApiError> {
        let stored = self.visible(caller, name).await?;
        let redeliveries = self.shared.store.redeliveries(&stored.name).await?;
        let owner = stored.owner;
        Ok(RedeliveryList {
            owner,
            redeliveries,
        })
    }
}

fn causes() -> String {
    Cause::ALL.map(Cause::as_str).join(", ")
}

fn known<T>(
    key: &'static str,
    allowed: impl Display,
    word: Option<&str>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    word.map(|word| {
        let unknown = || ApiError::invalid(key, format!("{word:?} is none; allowed: {allowed}"));
        parse(word).ok_or_else(unknown)
    })
    .transpose()
}
