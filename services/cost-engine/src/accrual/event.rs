//! The event of a tick.

use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Correlation, IdSource, Source};
use mesh_events::{Event, EventId, EventType, RunKey, SCHEMA_VERSION, Slot};

use super::{AccrualPoint, AccrualReason, AccrualState};

/// What is stored of a run for its events.
#[derive(Clone, Debug)]
pub struct AccrualFacts {
    /// False once the run has ended.
    pub is_open: bool,
    /// Of the run's `cost.estimated`: owner, entity, confidence and number.
    pub envelope: Event,
    /// Numbers of later job events of the run, with their times.
    pub numbers: Vec<(i64, u64)>,
    /// What is published.
    pub state: AccrualState,
}

/// The number in the id: odd for an amount, which is passed once, and even for all others, whose times only grow.
fn number(tick: &AccrualPoint) -> u64 {
    match tick.reason {
        AccrualReason::Threshold(threshold) => threshold.0.unsigned_abs() * 2 + 1,
        AccrualReason::BurnRate | AccrualReason::Interval => tick.as_of.unsigned_abs() * 2,
    }
}

/// `cost.accrued` of a run. Everything but `late` follows from the run, its job events until the tick, and the tick.
pub fn event(
    run: &RunKey,
    facts: &AccrualFacts,
    tick: &AccrualPoint,
    payload: CostEvent,
    is_late: bool,
) -> Event {
    let cause = EventId::recorded(run, Slot::CostEstimated);
    let (n, as_of) = (number(tick), payload.as_of);
    let known = facts.numbers.iter().filter(|(at, _)| *at <= tick.as_of);
    let run_seq = known.map(|(_, number)| *number).max().unwrap_or_default();
    Event {
        id: EventId::derived(cause, EventType::CostAccrued, n).to_string(),
        id_source: IdSource::derived(cause, n),
        cluster: run.cluster.clone(),
        r#type: EventType::CostAccrued.to_string(),
        occurred_at: as_of,
        observed_at: as_of,
        source: Source::Derived.into(),
        source_detail: cause.to_string(),
        confidence: facts.envelope.confidence,
        late: is_late,
        correlation: Some(Correlation {
            event_ids: vec![cause.to_string()],
            entities: Vec::new(),
        }),
        owner: facts.envelope.owner.clone(),
        actor: None,
        entity: facts.envelope.entity.clone(),
        run_seq: run_seq.max(facts.envelope.run_seq),
        schema_version: SCHEMA_VERSION,
        payload: Some(Payload::Cost(payload)),
    }
}
