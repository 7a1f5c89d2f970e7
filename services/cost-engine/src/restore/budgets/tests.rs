use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;

use super::*;
use crate::adapters::People;
use crate::budgets::Clusters;
use crate::budgets::published::published;
use crate::budgets::status::{BudgetStatus, ForecastStatus};
use crate::budgets::usage::{Amounts, RunGroups};
use crate::domain::{Micros, RunsCost};

const BUDGET: &str = "[[budget]]\nname = \"b\"\nscope = { cluster = \"c\" }\nperiod = \"month\"\namount = 1000\nforecast = 100\n";

/// The states and events after an evaluation at noon with this use and forecast.
fn evaluate(
    budget: &Budget,
    (day, used, forecast): (&str, i64, i64),
    known: &[BudgetState],
) -> (Vec<BudgetState>, Vec<Event>) {
    let time: DateTime<Utc> = format!("{day}T12:00:00Z").parse().unwrap();
    let period = budget
        .periodicity
        .period(budget.zone, time.timestamp())
        .unwrap();
    let used = Amounts {
        settled: RunsCost::of(Some(Micros(used * 1_000_000))),
        ..Amounts::default()
    };
    let forecast = ForecastStatus {
        p50_micros: Micros(forecast * 1_000_000),
        p90_micros: Micros(0),
        exhausted_p50: None,
        exhausted_p90: None,
    };
    let status = BudgetStatus {
        forecast: Some(forecast),
        ..BudgetStatus::of(budget, &period, used, "EUR")
    };
    let groups = RunGroups::default();
    let one = (budget, period, used, status, &groups);
    let clusters = Clusters::new("c", ["c"]);
    published(&one, known, &People::default(), &clusters, time)
}

fn merged(known: &[BudgetState], new: Vec<BudgetState>) -> Vec<BudgetState> {
    let is_old = |known: &&BudgetState| new.iter().all(|new| new.period != known.period);
    let mut all: Vec<_> = known.iter().filter(is_old).cloned().collect();
    all.extend(new);
    all.sort_by(|one, other| one.period.cmp(&other.period));
    all
}

#[test]
fn with_states_from_events_the_same_is_published_as_with_the_lost_ones() {
    let budget = files::parse(BUDGET).unwrap().remove(0);
    let (mut known, mut events): (Vec<BudgetState>, Vec<Event>) = (Vec::new(), Vec::new());
    let mut kinds = Vec::new();
    for step in [
        ("2026-10-02", 510, 900),
        ("2026-10-03", 820, 1_200),
        ("2026-10-04", 1_010, 1_200),
        // Five points below, and above again.
        ("2026-10-05", 940, 990),
        ("2026-10-06", 960, 990),
        ("2026-10-07", 1_100, 1_300),
        ("2026-10-08", 400, 990),
        ("2026-10-09", 450, 1_001),
        // A new period clears the one before.
        ("2026-11-01", 10, 500),
        ("2026-11-02", 850, 500),
        ("2026-11-03", 850, 1_500),
        ("2026-12-01", 10, 500),
    ] {
        let mut restore = PublishedBudgets::new(Vec::new());
        for event in &events {
            let Some(Payload::User(payload)) = &event.payload else {
                panic!("{event:?}")
            };
            restore.add(event, payload);
        }
        let restored = restore.states([BUDGET].into_iter());
        let (states, new) = evaluate(&budget, step, &known);
        if !events.is_empty() {
            let (of_restored, again) = evaluate(&budget, step, &restored);
            assert_eq!(again, new, "{step:?}");
            let published = |states: Vec<BudgetState>, known: &[BudgetState]| {
                let states = merged(known, states).into_iter();
                states
                    .map(|state| (state.period, state.starts_at, state.published))
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                published(of_restored, &restored),
                published(states.clone(), &known)
            );
        }
        kinds.extend(
            new.iter()
                .map(|event| event.r#type.replace("user.quota_", "")),
        );
        known = merged(&known, states);
        events.extend(new);
    }
    let expected =
        "high high high exceeded cleared exceeded cleared high cleared high high high cleared";
    assert_eq!(kinds.join(" "), expected);
}

#[test]
fn events_of_slurms_own_limits_are_no_budgets() {
    let quota = Quota {
        source: "slurm".into(),
        budget: "b".into(),
        ..Quota::default()
    };
    let payload = UserEvent {
        quota: Some(quota),
        ..UserEvent::default()
    };
    let event = Event {
        r#type: "user.quota_high".into(),
        ..Event::default()
    };
    let mut restore = PublishedBudgets::new(Vec::new());
    restore.add(&event, &payload);
    assert_eq!(restore.states([].into_iter()), []);
}
