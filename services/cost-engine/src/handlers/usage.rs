//! Records and facts that arrive after the final cost of a run.

use chrono::DateTime;
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::IdSource;
use mesh_events::proto::mesh::job::v1::{Job, Usage};
use mesh_events::{EventId, EventType};
use prost::Message as _;

use super::BatchOutcome;
use super::batch::{Batch, JobEvent, derived, owner};
use crate::adapters::{AdjustmentRow, FinalCost};
use crate::costing::{self, PublishedCost, WasteColumns};
use crate::domain::{Class, Micros};
use crate::error::Error;
use crate::metrics;
use crate::usage::{better_usage, seconds};

/// Of an adjustment, what its payload does not say.
struct Adjustment {
    reason: &'static str,
    previous: Option<Micros>,
    class: Class,
    /// End of the run in Unix seconds.
    ended_at: i64,
}

impl Batch {
    /// Handles a record of a run that has a final cost: it may say for the first time what the run used.
    pub(super) async fn record_usage(
        &mut self,
        cause: &JobEvent<'_>,
        settled: FinalCost,
    ) -> Result<BatchOutcome, Error> {
        let mut history = self.history(cause).await?;
        let (Some((end, record)), Some(total)) = (&mut history.end, settled.current) else {
            return Ok(BatchOutcome::Nothing);
        };
        let usage = better_usage(record.usage.as_ref(), cause.job.usage.as_ref());
        if record.usage == usage {
            return Ok(match usage {
                Some(_) => BatchOutcome::Repeated,
                None => BatchOutcome::Nothing,
            });
        }
        let Some(id) = derived(cause.event, EventType::CostAdjusted) else {
            return Ok(BatchOutcome::Refused("its id is not a UUID".to_owned()));
        };
        // First, because an older record that comes again must not replace a newer one.
        if self.transaction.has_adjustment(&id.0.to_string()).await? {
            return Ok(BatchOutcome::Repeated);
        }
        record.usage = usage;
        let (cluster, (user, account)) = (&cause.run.cluster, owner(cause.event));
        self.transaction
            .store_end(cluster, user, account, record, *end)
            .await?;
        let adjustment = Adjustment {
            reason: costing::USAGE,
            previous: Some(total),
            class: settled.class(),
            ended_at: *end,
        };
        let Some(book) = self.book_of(&settled.price_book).await? else {
            return Ok(BatchOutcome::Stored);
        };
        let now = (total, adjustment.class);
        let payload = match costing::adjusted_by_usage(&book, &history, cause.job, now) {
            Ok(Some(payload)) => payload,
            Ok(None) => return Ok(BatchOutcome::Stored),
            Err(error) => return Ok(BatchOutcome::Refused(error.problem())),
        };
        self.add_adjustment(cause, id, &adjustment, payload).await?;
        Ok(BatchOutcome::Cost)
    }

    /// Handles a better record of a run that has a final cost.
    pub(super) async fn corrected(
        &mut self,
        cause: &JobEvent<'_>,
        class: Class,
        settled: FinalCost,
    ) -> Result<BatchOutcome, Error> {
        if let Some((id, _)) = derived(cause.event, EventType::CostAdjusted)
            && self.transaction.has_adjustment(&id.to_string()).await?
        {
            return Ok(BatchOutcome::Repeated);
        }
        let known = self.history(cause).await?.end;
        let known = known.and_then(|(_, record)| record.usage);
        let record = Job {
            usage: better_usage(known.as_ref(), cause.job.usage.as_ref()),
            ..cause.job.clone()
        };
        let (user, account) = owner(cause.event);
        let end = seconds(record.end_time.as_ref()).unwrap_or(cause.at);
        self.transaction
            .store_end(&cause.run.cluster, user, account, &record, end)
            .await?;
        self.adjust(cause, class, settled, known).await
    }

    /// Handles a fact that changes what an ended run held.
    pub(super) async fn late_fact(
        &mut self,
        cause: &JobEvent<'_>,
        settled: FinalCost,
    ) -> Result<BatchOutcome, Error> {
        let known = self.history(cause).await?.end;
        let usage = known.and_then(|(_, record)| record.usage);
        let class = settled.class();
        self.adjust(cause, class, settled, usage).await
    }

    /// Recomputes a final cost from the stored history with its original price book, and publishes the difference. `usage` is what was
    /// known of the run's use.
    async fn adjust(
        &mut self,
        cause: &JobEvent<'_>,
        class: Class,
        settled: FinalCost,
        usage: Option<Usage>,
    ) -> Result<BatchOutcome, Error> {
        let history = self.history(cause).await?;
        let Some((ended_at, _)) = history.end else {
            tracing::warn!(
                job.id = cause.job.display_id,
                event.id = cause.event.id,
                "late fact ignored: history of run not stored"
            );
            return Ok(BatchOutcome::Stored);
        };
        let Some(book) = self.book_of(&settled.price_book).await? else {
            tracing::warn!(
                job.id = cause.job.display_id,
                event.id = cause.event.id,
                price_book = settled.price_book,
                "late fact ignored: price book of run not stored"
            );
            return Ok(BatchOutcome::Stored);
        };
        let Some(id) = derived(cause.event, EventType::CostAdjusted) else {
            return Ok(BatchOutcome::Refused("its id is not a UUID".to_owned()));
        };
        if self.transaction.has_adjustment(&id.0.to_string()).await? {
            return Ok(BatchOutcome::Repeated);
        }
        let before = PublishedCost {
            total: settled.current,
            class: settled.class(),
            waste: settled.waste,
            usage,
        };
        let payload = match costing::adjusted(&book, &history, cause.job, &before, class) {
            Ok(Some(payload)) => payload,
            Ok(None) => return Ok(BatchOutcome::Stored),
            Err(error) => return Ok(BatchOutcome::Refused(error.problem())),
        };
        let adjustment = Adjustment {
            reason: costing::LATE_FACT,
            previous: before.total,
            class,
            ended_at,
        };
        self.add_adjustment(cause, id, &adjustment, payload).await?;
        self.note_changed(cause);
        Ok(BatchOutcome::Cost)
    }

    /// Adds a `cost.adjusted` event with its row.
    async fn add_adjustment(
        &mut self,
        cause: &JobEvent<'_>,
        id: (EventId, Option<IdSource>),
        adjustment: &Adjustment,
        payload: CostEvent,
    ) -> Result<(), Error> {
        let micros = |money: &Option<Money>| money.as_ref().map(|money| Micros(money.micros));
        let event_id = id.0.to_string();
        let row = AdjustmentRow {
            cluster: &cause.run.cluster,
            run: cause.key,
            event_id: &event_id,
            cause_id: &cause.event.id,
            reason: adjustment.reason,
            previous: adjustment.previous,
            delta: micros(&payload.delta).unwrap_or_default(),
            total: micros(&payload.total).unwrap_or_default(),
            class: adjustment.class,
            charged_seconds: payload.charged_seconds,
            at: DateTime::from_timestamp(adjustment.ended_at, 0).unwrap_or_default(),
            waste: WasteColumns::of(&payload),
        };
        let made = costing::event(id, EventType::CostAdjusted, cause.event, payload);
        let body = made.encode_to_vec();
        if adjustment.reason == costing::USAGE {
            self.transaction
                .add_usage(&row, &body, cause.traceparent)
                .await?;
        } else {
            self.transaction
                .add_adjustment(&row, &body, cause.traceparent)
                .await?;
        }
        metrics::cost(EventType::CostAdjusted.event(), true);
        Ok(())
    }
}
