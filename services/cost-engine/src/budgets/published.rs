//! What of an evaluation is to be published, by what is published already. Pure.

use chrono::{DateTime, Utc};
use mesh_events::Event;

use super::crossing::{Crossing, PublishedState, crossings};
use super::event::{QuotaFacts, event};
use super::status::BudgetStatus;
use super::usage::{Amounts, RunGroups};
use super::{Budget, Clusters, ScopeKey};
use crate::adapters::{BudgetState, People};
use crate::domain::calendar_period::Period;

/// Most users that an event names.
const MAX_CONTRIBUTORS: usize = 5;

/// A budget, its period, its use, its status, and the costs of the period.
pub(crate) type Evaluated<'a> = (&'a Budget, Period, Amounts, BudgetStatus, &'a RunGroups);

/// The states of a budget after an evaluation, that of its period last, and the events that lead there from the known states.
pub(crate) fn published(
    (budget, period, used, status, groups): &Evaluated<'_>,
    known: &[BudgetState],
    people: &People,
    clusters: &Clusters,
    time: DateTime<Utc>,
) -> (Vec<BudgetState>, Vec<Event>) {
    let state = known.iter().find(|state| state.period == period.name);
    let starts_at = match period.to {
        i64::MAX => 0,
        _ => period.from,
    };
    let is_over = |other: &BudgetState| other.period != period.name && other.starts_at >= period.to;
    if known.iter().any(is_over) {
        // A process whose clock is ahead has begun the next period, and cleared this one.
        return (Vec::new(), Vec::new());
    }
    let forecast = status.forecast.as_ref().map(|forecast| forecast.p50_micros);
    let counted = used.counted(budget.counts).known;
    let (next, found) = crossings(
        budget,
        counted,
        forecast,
        state.map(|state| state.published),
    );
    let is_personal = [ScopeKey::User, ScopeKey::Identity]
        .iter()
        .any(|key| budget.scope.contains_key(key));
    let ended: Vec<_> = known
        .iter()
        .filter(|known| known.period != period.name && known.published.is_open())
        .collect();
    let contributors = match is_personal || (found.is_empty() && ended.is_empty()) {
        true => Vec::new(),
        false => groups.contributors(budget, MAX_CONTRIBUTORS),
    };
    let facts = |period| QuotaFacts {
        budget,
        status,
        period,
        contributors: &contributors,
        people,
        clusters,
    };
    let mut number: u64 = known.iter().map(|state| state.events).sum();
    let mut events = Vec::new();
    let mut add = |period, crossing, crossings| {
        number += 1;
        events.push(event(&facts(period), crossing, (crossings, number), time));
    };
    // What was passed in a period that is over is cleared by the new one.
    for ended in &ended {
        let threshold = match ended.published.threshold {
            0 => budget.forecast,
            threshold => threshold,
        };
        let crossing = Crossing::Cleared(threshold);
        add(ended.period.as_str(), crossing, ended.published.crossing);
    }
    let crossing_number = state.map_or(1, |state| state.published.crossing);
    for crossing in found {
        add(period.name.as_str(), crossing, crossing_number);
    }
    let added = events.len() as u64;
    let cleared = |ended: &BudgetState| BudgetState {
        published: PublishedState {
            crossing: ended.published.crossing + 1,
            ..PublishedState::default()
        },
        ..ended.clone()
    };
    let mut states: Vec<BudgetState> = ended.into_iter().map(cleared).collect();
    states.push(BudgetState {
        budget: budget.name.clone(),
        period: period.name.clone(),
        starts_at,
        published: next,
        events: state.map_or(0, |state| state.events) + added,
    });
    (states, events)
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::cost::v1::Money;
    use mesh_events::proto::mesh::event::v1::event::Payload;

    use super::*;
    use crate::budgets::files;
    use crate::domain::{Micros, RunsCost};

    fn budget() -> Budget {
        let text = "[[budget]]\nname = \"b\"\nscope = { cluster = \"c\" }\nperiod = \"month\"\namount = 1000\nforecast = 100\n";
        files::parse(text).unwrap().remove(0)
    }

    fn state(period: &Period, published: PublishedState) -> BudgetState {
        BudgetState {
            budget: "b".into(),
            period: period.name.clone(),
            starts_at: period.from,
            published,
            events: 3,
        }
    }

    /// The month of a day, with 640 of 1,000 used.
    fn evaluate(day: &str, known: &[BudgetState]) -> (Vec<BudgetState>, Vec<Event>) {
        evaluate_in(&budget(), &["c"], day, known)
    }

    fn evaluate_in(
        budget: &Budget,
        clusters: &[&str],
        day: &str,
        known: &[BudgetState],
    ) -> (Vec<BudgetState>, Vec<Event>) {
        let used = Amounts {
            settled: RunsCost::of(Some(Micros(640_000_000))),
            ..Amounts::default()
        };
        evaluate_used(budget, used, clusters, day, known)
    }

    fn evaluate_used(
        budget: &Budget,
        used: Amounts,
        clusters: &[&str],
        day: &str,
        known: &[BudgetState],
    ) -> (Vec<BudgetState>, Vec<Event>) {
        let period = month(day);
        let status = BudgetStatus::of(budget, &period, used, "EUR");
        let groups = RunGroups::default();
        let one = (budget, period, used, status, &groups);
        let clusters = Clusters::new("c", clusters.iter().copied());
        let people = People::default();
        published(&one, known, &people, &clusters, DateTime::UNIX_EPOCH)
    }

    fn month(day: &str) -> Period {
        let budget = budget();
        let day: DateTime<Utc> = format!("{day}T12:00:00Z").parse().unwrap();
        let period = budget.periodicity.period(budget.zone, day.timestamp());
        period.unwrap()
    }

    #[test]
    fn a_new_period_clears_the_one_before_and_counts_its_own_thresholds() {
        let exceeded = PublishedState {
            threshold: 100,
            forecast: true,
            crossing: 2,
        };
        let october = state(&month("2026-10-05"), exceeded);
        let (states, events) = evaluate("2026-11-01", std::slice::from_ref(&october));
        let found: Vec<_> = events
            .iter()
            .map(|event| (event.r#type.as_str(), event.run_seq))
            .collect();
        assert_eq!(
            found,
            [("user.quota_cleared", 4), ("user.quota_high", 5)],
            "{events:?}"
        );
        let cleared = PublishedState {
            crossing: 3,
            ..PublishedState::default()
        };
        assert_eq!(states[0].published, cleared);
        assert_eq!(
            (states[1].period.as_str(), states[1].published.threshold),
            ("2026-11", 50)
        );
        // With these states nothing is left to publish.
        assert_eq!(evaluate("2026-11-02", &states).1, []);
        // Where only the forecast was published, its threshold is cleared.
        let forecast = PublishedState {
            forecast: true,
            ..PublishedState::default()
        };
        let october = state(&month("2026-10-05"), forecast);
        let (_, events) = evaluate("2026-11-01", &[october]);
        assert_eq!(events[0].r#type, "user.quota_cleared");
    }

    #[test]
    fn an_event_has_no_amount_of_runs_without_a_price() {
        let passed = PublishedState {
            threshold: 50,
            ..PublishedState::default()
        };
        let october = state(&month("2026-10-05"), passed);
        let quota = |in_flight| {
            let used = Amounts {
                settled: RunsCost::of(None) + RunsCost::of(None),
                in_flight,
                ..Amounts::default()
            };
            let known = std::slice::from_ref(&october);
            let (_, events) = evaluate_used(&budget(), used, &["c"], "2026-11-01", known);
            match events.into_iter().next().and_then(|event| event.payload) {
                Some(Payload::User(user)) => (user.after.clone(), user.quota.unwrap()),
                other => panic!("{other:?}"),
            }
        };
        let (after, none) = quota(RunsCost::default());
        assert_eq!((after.as_str(), none.unpriced_runs), ("no price", 2));
        assert_eq!((none.settled, none.committed), (None, None));
        // No job runs: that part is known, what is used is not.
        assert_eq!(none.in_flight.map(|money| money.micros), Some(0));
        assert_eq!(none.percent, None);
        let (after, one) = quota(RunsCost::of(Some(Micros(1_000_000))));
        assert_eq!((after.as_str(), one.unpriced_runs), ("0 %", 2));
        assert_eq!((one.settled, one.percent), (None, Some(0)));
        let micros = |money: Option<Money>| money.map(|money| money.micros);
        assert_eq!(micros(one.committed), Some(1_000_000));
    }

    #[test]
    fn a_clock_that_is_behind_publishes_nothing_of_a_period_that_is_over() {
        let next = state(&month("2026-11-05"), PublishedState::default());
        let (states, events) = evaluate("2026-10-31", &[next]);
        assert_eq!((states, events), (vec![], vec![]));
    }

    #[test]
    fn coordinators_are_sent_no_sums_over_clusters() {
        let of_account = |scope: &str| {
            let text = format!(
                "[[budget]]\nname = \"b\"\nscope = {{ account = \"a\"{scope} }}\nperiod = \"month\"\namount = 1000\n"
            );
            files::parse(&text).unwrap().remove(0)
        };
        for (scope, clusters, account) in [
            ("", &["c"][..], "a"),
            ("", &["c", "other"], ""),
            (", cluster = \"c\"", &["c", "other"], "a"),
            (", subtree = true", &["c"], "a"),
            (", subtree = true", &["c", "other"], ""),
            (", cluster = [\"c\", \"other\"]", &["c"], ""),
        ] {
            let (_, events) = evaluate_in(&of_account(scope), clusters, "2026-10-05", &[]);
            let owner = events[0].owner.as_ref();
            assert_eq!(owner.map_or("", |owner| &owner.account), account, "{scope}");
        }
    }
}
