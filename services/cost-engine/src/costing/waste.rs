//! What of a run's cost is lost or unused.

use mesh_events::proto::mesh::cost::v1::{CostEvent, Waste};
use mesh_events::proto::mesh::job::v1::Job;
use num_traits::{ToPrimitive as _, Zero as _};

use super::{money, nodes_held, times, usage_and_factor};
use crate::domain::money::{Exact, integer};
use crate::domain::{Micros, PriceError, price, waste};
use crate::price_book::{Charge, PriceBook};
use crate::usage::{RunHistory, used};

/// What of a cost is lost or unused, as reports need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WasteColumns {
    /// Why the whole cost is lost. Empty if it is not.
    pub lost: String,
    /// Cost of what was held and not used. `None` if not known.
    pub unused: Option<Micros>,
}

impl WasteColumns {
    /// Those of a cost.
    pub fn of(cost: &CostEvent) -> Self {
        let Some(waste) = &cost.waste else {
            return Self::default();
        };
        Self {
            lost: waste.lost.clone(),
            unused: waste.unused.as_ref().map(|money| Micros(money.micros)),
        }
    }
}

/// What of a run's cost is lost or unused. A run that did not complete is lost as a whole, so nothing of it is unused. `None` for a
/// completed run of whose use nothing is known.
pub(super) fn of_run(
    book: &PriceBook,
    history: &RunHistory,
    record: &Job,
    end: i64,
    cost: Micros,
) -> Result<Option<Waste>, PriceError> {
    let (lost, used) = (waste::lost_kind(&record.state), used(record));
    if lost.is_empty() && used.is_unknown() {
        return Ok(None);
    }
    let (usage, factor) = usage_and_factor(book, history, record, end);
    let (seconds, cpu_seconds) = waste::held(&usage.run);
    let nodes = usage.run.segments.last();
    let nodes = nodes.map_or(0, |segment| segment.allocation.len());
    let limit = record.time_limit_minutes.filter(|minutes| *minutes > 0);
    let limit = limit.map(|minutes| u64::from(minutes) * 60);
    let mut waste = Waste {
        cpu_efficiency_permille: used
            .cpu_seconds
            .and_then(|used| permille(&integer(used), &cpu_seconds)),
        mem_peak_mib: used.mem_mib,
        lost: lost.to_owned(),
        limit_use_permille: limit.and_then(|limit| permille(&integer(seconds), &integer(limit))),
        planned_unused_node_seconds: limit
            .map(|limit| limit.saturating_sub(seconds) * u64::try_from(nodes).unwrap_or_default()),
        ..Waste::default()
    };
    if let (true, Charge::Nodes(mode)) = (lost.is_empty(), &book.charge) {
        let start = usage.run.start.unwrap_or(usage.run.end);
        let priced = price(
            *mode,
            &nodes_held(book, &usage, start)?,
            &waste::rightsized(&usage.run, &used),
        )?;
        let rightsized = times(priced.exact, priced.cost, factor.as_ref())?;
        waste.rightsized = Some(money(book, rightsized));
        waste.unused = Some(money(book, cost.saturating_sub(rightsized)));
    }
    Ok(Some(waste))
}

/// A ratio in thousandths, rounded down. `None` without a denominator.
fn permille(part: &Exact, whole: &Exact) -> Option<u32> {
    if whole.is_zero() {
        return None;
    }
    let ratio = part * integer(1000u32) / whole;
    Some(ratio.to_integer().to_u32().unwrap_or(u32::MAX))
}
