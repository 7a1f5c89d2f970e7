//! `user.quota_high`, `user.quota_exceeded` and `user.quota_cleared`.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, IdSource, Owner, Source};
use mesh_events::proto::mesh::user::v1::{Quota, QuotaContributor, UserEvent};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, timestamp};
use pbjson_types::Timestamp;

use super::crossing::Crossing;
use super::status::BudgetStatus;
use super::{Budget, Clusters, ScopeKey};
use crate::adapters::People;
use crate::domain::{Micros, RunsCost};

/// What an event is about.
pub(crate) struct QuotaFacts<'a> {
    /// The budget.
    pub budget: &'a Budget,
    /// Its use.
    pub status: &'a BudgetStatus,
    /// Name of the period of the thresholds. It is over if a new period clears them.
    pub period: &'a str,
    /// The users with the largest costs.
    pub contributors: &'a [(String, String, Micros)],
    /// The people behind Unix users.
    pub people: &'a People,
    /// The cluster of this process is that of events about budgets that do not name one.
    pub clusters: &'a Clusters,
}

/// The `number`th event of a budget. Its id follows from budget, period, threshold and crossing.
pub(crate) fn event(
    facts: &QuotaFacts<'_>,
    crossing: Crossing,
    (crossings, number): (u64, u64),
    now: DateTime<Utc>,
) -> Event {
    let QuotaFacts {
        budget,
        status,
        period,
        ..
    } = facts;
    let (kind, threshold) = match crossing {
        Crossing::Passed(threshold) if threshold >= 100 => {
            (EventType::UserQuotaExceeded, threshold)
        }
        Crossing::Passed(threshold) | Crossing::Forecast(threshold) => {
            (EventType::UserQuotaHigh, threshold)
        }
        Crossing::Cleared(threshold) => (EventType::UserQuotaCleared, threshold),
    };
    let is_forecast = matches!(crossing, Crossing::Forecast(_));
    let point = match is_forecast {
        true => "forecast".to_owned(),
        false => threshold.to_string(),
    };
    let mut clusters = budget.values(ScopeKey::Cluster);
    let cluster = match (clusters.next(), clusters.next()) {
        (Some(cluster), None) => cluster,
        _ => facts.clusters.own.as_str(),
    };
    let counted_by = format!("budget/{}/{period}/{point}", budget.name);
    let (user, mut account) = concerned(budget, facts.people, cluster);
    if budget.clusters(facts.clusters).len() > 1 {
        // Coordinators of the account on this cluster may not see what it costs elsewhere.
        account.clear();
    }
    let owner = Owner {
        user: user.clone(),
        account: account.clone(),
        ..Owner::default()
    };
    let is_cleared = kind == EventType::UserQuotaCleared;
    let passed = format!("{threshold} %");
    let percent = status.percent.map(|percent| format!("{percent} %"));
    let (before, after) = match is_cleared {
        true => (passed, percent.unwrap_or_else(|| "no price".to_owned())),
        false => (String::new(), passed),
    };
    let payload = UserEvent {
        user,
        account,
        attribute: "Budget".to_owned(),
        before,
        after,
        quota: Some(quota(facts, threshold, is_forecast, crossings)),
        ..UserEvent::default()
    };
    Event {
        id: EventId::sampled(cluster, &counted_by, kind, crossings).to_string(),
        id_source: IdSource::sampled_for(&counted_by, crossings),
        cluster: cluster.to_owned(),
        r#type: kind.to_string(),
        occurred_at: Some(timestamp(now)),
        observed_at: Some(timestamp(now)),
        source: Source::Derived.into(),
        source_detail: "budget".to_owned(),
        confidence: Confidence::Observed.into(),
        // Without one, only administrators and auditors may see the event.
        owner: (owner != Owner::default()).then_some(owner),
        entity: Some(Entity {
            kind: "budget".to_owned(),
            key: format!("budget/{}", budget.name),
        }),
        run_seq: number,
        schema_version: SCHEMA_VERSION,
        payload: Some(Payload::User(payload)),
        ..Event::default()
    }
}

/// The user and the account whose owner and coordinators may see the budget. Several of them have no place in an event, so such events
/// are for administrators and auditors.
fn concerned(budget: &Budget, people: &People, cluster: &str) -> (String, String) {
    let mut owners = budget.owners(people);
    if budget.scope.contains_key(&ScopeKey::Identity) && owners.len() > 1 {
        // One person: the Unix user on this cluster, or the first one.
        let is_here = |owner: &&(Option<String>, String)| owner.0.as_deref() == Some(cluster);
        let named = budget.values(ScopeKey::Identity).count();
        let one = owners.iter().find(is_here).or_else(|| owners.first());
        owners = one.filter(|_| named == 1).cloned().into_iter().collect();
    }
    let user = match (budget.is_for_owners, owners.len()) {
        (true, 1) => owners.pop_first().map(|(_, user)| user),
        _ => None,
    };
    let mut accounts = budget.accounts();
    let account = match (accounts.next(), accounts.next()) {
        (Some(account), None) if budget.is_for_coordinators => account,
        _ => "",
    };
    (user.unwrap_or_default(), account.to_owned())
}

fn quota(facts: &QuotaFacts<'_>, threshold: u32, is_forecast: bool, crossing: u64) -> Quota {
    let (budget, status) = (facts.budget, facts.status);
    let money = |amount: Micros| {
        Some(Money {
            micros: amount.0,
            currency: status.currency.clone(),
        })
    };
    let cost = |cost: RunsCost| cost.amount().and_then(money);
    let time = |time: DateTime<Utc>| -> Timestamp { timestamp(time) };
    let forecast = status.forecast.as_ref();
    Quota {
        source: "budget".to_owned(),
        budget: budget.name.clone(),
        scope: budget.scope_texts(),
        period: status.period.clone(),
        period_start: Some(time(status.period_start)),
        period_end: status.period_end.map(time),
        amount: money(status.amount_micros),
        settled: cost(status.settled_micros),
        in_flight: cost(status.in_flight_micros),
        committed: cost(status.committed_micros),
        counts: budget.counts.as_str().to_owned(),
        percent: status.percent,
        threshold,
        is_forecast,
        forecast_p50: forecast.and_then(|forecast| money(forecast.p50_micros)),
        forecast_p90: forecast.and_then(|forecast| money(forecast.p90_micros)),
        exhausted_p50: forecast
            .and_then(|forecast| forecast.exhausted_p50)
            .map(time),
        exhausted_p90: forecast
            .and_then(|forecast| forecast.exhausted_p90)
            .map(time),
        contributors: facts
            .contributors
            .iter()
            .map(|(cluster, user, amount)| QuotaContributor {
                cluster: cluster.clone(),
                user: user.clone(),
                amount: money(*amount),
            })
            .collect(),
        crossing,
        unpriced_runs: status.unpriced_runs,
    }
}
