//! Which content waits for its cost: messages to people, incidents, and bodies that include it.
//!
//! A message about a start shows the burn rate, one about an end the final cost. cost-engine publishes both right
//! after the event. So these messages wait a few seconds (`cost_join_timeout`) for the `cost.estimated` or
//! `cost.finalized` of their run, and are sent without it if none arrives. A run that never had an allocation costs
//! nothing and does not wait.

use event_filter::{Filter, TypeSet};
use mesh_events::{Event, EventType};

/// Which events are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JoinKey {
    /// `job.started` and `cost.estimated`.
    Start,
    /// The end of a run and `cost.finalized`.
    End,
}

impl JoinKey {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::End => "end",
        }
    }

    /// The cost event of the pair.
    pub const fn cost(self) -> EventType {
        match self {
            Self::Start => EventType::CostEstimated,
            Self::End => EventType::CostFinalized,
        }
    }
}

/// The join key of an event that waits for its cost. The cost event has the same key.
pub fn awaits(kind: EventType, event: &Event) -> Option<String> {
    let pair = match kind {
        EventType::JobStarted => JoinKey::Start,
        kind if kind.is_end() => JoinKey::End,
        _ => return None,
    };
    let job = event.job()?;
    job.start_time
        .is_some()
        .then(|| key(pair, &event.cluster, &job.run))
}

/// The join key of a cost event.
pub fn completes(kind: EventType, event: &Event) -> Option<String> {
    let pair = match kind {
        EventType::CostEstimated => JoinKey::Start,
        EventType::CostFinalized => JoinKey::End,
        _ => return None,
    };
    Some(key(pair, &event.cluster, &event.job()?.run))
}

fn key(pair: JoinKey, cluster: &str, run: &str) -> String {
    format!("{}/{cluster}/{run}", pair.as_str())
}

/// Cost types to consume in addition, to complete messages.
pub fn companions(filter: &Filter) -> TypeSet {
    let ends = EventType::ALL
        .iter()
        .copied()
        .any(|kind| kind.is_end() && filter.selects(kind));
    [
        (filter.selects(EventType::JobStarted), JoinKey::Start),
        (ends, JoinKey::End),
    ]
    .into_iter()
    .filter(|(wanted, _)| *wanted)
    .map(|(_, pair)| pair.cost())
    .collect()
}

/// Types that array digests need in addition to those requested: tasks cannot be counted without all their ends.
/// Empty if neither starts nor ends are requested.
pub fn array_companions(filter: &Filter) -> TypeSet {
    let needed = |kind: EventType| {
        matches!(kind, EventType::JobSubmitted | EventType::JobStarted) || kind.is_end()
    };
    let sent = |kind: EventType| kind == EventType::JobStarted || kind.is_end();
    let all = EventType::ALL.iter().copied();
    if all.clone().any(|kind| sent(kind) && filter.selects(kind)) {
        all.filter(|kind| needed(*kind)).collect()
    } else {
        TypeSet::default()
    }
}

#[cfg(test)]
mod tests {
    use event_filter::TypePattern;

    use super::*;

    #[test]
    fn a_chat_that_shows_starts_and_ends_needs_both_costs() {
        let of = |types: &[&str]| {
            let types: Vec<TypePattern> = types.iter().map(|text| text.parse().unwrap()).collect();
            let companions = companions(&Filter::new(&types, &[], &[]));
            companions.iter().collect::<Vec<_>>()
        };
        assert_eq!(
            of(&["job.*"]),
            [EventType::CostEstimated, EventType::CostFinalized]
        );
        assert_eq!(of(&["job.failed"]), [EventType::CostFinalized]);
        assert_eq!(of(&["node.*"]), []);
    }
}
