//! Evaluates all budgets: after costs were committed, when budgets or prices change, and every minute, because the cost of running
//! jobs grows without events. What is published of a budget is stored in the transaction that adds the events to the outbox.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Datelike as _, Utc, Weekday};
use prost::Message as _;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::account_tree::AccountTree;
use super::crossing::PublishedState;
use super::forecast::{self, Forecast, PAST_DAYS, RemainingDay};
use super::open_costs::CostCurves;
use super::pending_costs::PendingCosts;
use super::published::{Evaluated, published};
use super::status::{BudgetStatus, ForecastStatus};
use super::usage::{Amounts, RunGroups};
use super::{Budget, Clusters};
use crate::adapters::{BudgetFacts, BudgetState, People, PriceBooks, RunKeys, Store};
use crate::domain::calendar_period::{LocalDay, Period, day};
use crate::domain::{Interval, RunsCost};
use crate::error::Error;
use crate::metrics;
use crate::outbox::Outbox;
use crate::price_book::PriceBook;

/// Longest time between evaluations.
const EVALUATION_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest time between evaluations. After long ones four times their duration.
const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How often forecasts are computed.
const FORECAST_INTERVAL_SECONDS: i64 = 3600;
/// Time limit of storing what is published.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The last evaluation.
#[derive(Debug, Default)]
pub(crate) struct Evaluation {
    /// Its time. `None` before the first one.
    pub as_of: Option<DateTime<Utc>>,
    /// Budgets with a present period.
    pub budgets: Vec<(Budget, BudgetStatus)>,
    /// The people behind Unix users.
    pub people: People,
    /// The clusters that have costs.
    pub clusters: Clusters,
}

pub(crate) struct BudgetEvaluator {
    pub store: Store,
    pub budgets: watch::Receiver<Arc<Vec<Budget>>>,
    pub book: watch::Receiver<Arc<PriceBook>>,
    pub evaluation: watch::Sender<Arc<Evaluation>>,
    /// Notified when costs were committed, and when the tree of accounts has changed.
    pub committed: Arc<Notify>,
    pub outbox: Outbox,
    /// Cluster of this process.
    pub cluster: String,
    pub curves: CostCurves,
    pub daily: DailyFacts,
    /// What pending jobs may cost.
    pub pending_costs: PendingCosts,
}

/// What is computed once an hour, and when budgets or the tree of accounts change.
#[derive(Default)]
pub(crate) struct DailyFacts {
    /// For which budgets and which accounts, and when.
    valid: Option<(Arc<Vec<Budget>>, AccountTree, i64)>,
    forecasts: HashMap<String, Forecast>,
    unknown_accounts: HashMap<String, Vec<String>>,
}

impl BudgetEvaluator {
    /// Evaluates until shutdown.
    pub async fn run(mut self, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            let started = Instant::now();
            if let Err(error) = self.evaluate(Utc::now()).await {
                tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    "evaluation of budgets failed, retrying"
                );
            }
            let duration = started.elapsed();
            metrics::budgets_evaluated(duration);
            let pause = duration.saturating_mul(4).clamp(MIN_PAUSE, MAX_PAUSE);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.committed.notified() => {}
                _ = self.budgets.changed() => {}
                _ = self.book.changed() => {}
                () = tokio::time::sleep(EVALUATION_INTERVAL) => {}
            }
        }
    }

    async fn evaluate(&mut self, time: DateTime<Utc>) -> Result<(), Error> {
        let budgets = Arc::clone(&self.budgets.borrow_and_update());
        let book = Arc::clone(&self.book.borrow_and_update());
        let now = time.timestamp();
        let current: Vec<(&Budget, Period)> = budgets
            .iter()
            .filter_map(|budget| Some((budget, budget.periodicity.period(budget.zone, now)?)))
            .collect();
        let tree = match budgets.iter().any(Budget::has_subtree) {
            true => self.store.account_tree().await?,
            false => AccountTree::default(),
        };
        // What the database has of the tree before it was ever read counts too little.
        let is_tree_known = !tree.is_empty();
        let is_daily_due = self.daily.valid.as_ref().is_none_or(|(of, of_tree, at)| {
            !Arc::ptr_eq(of, &budgets)
                || *of_tree != tree
                || now.abs_diff(*at) >= FORECAST_INTERVAL_SECONDS as u64
        });
        let mut intervals = Intervals::default();
        for (budget, period) in &current {
            intervals.add((period.from, period.to));
            if is_daily_due && period.to < i64::MAX {
                for (_, interval) in past_days(budget, now) {
                    intervals.add(interval);
                }
            }
        }
        let facts = match intervals.list.is_empty() {
            true => BudgetFacts::default(),
            false => {
                let facts = self.store.budget_facts(&book.currency, &intervals.list);
                facts.await?
            }
        };
        let clusters = Clusters::new(&self.cluster, facts.clusters());
        let groups = self
            .groups(&book, &intervals.list, (&facts, &tree), now)
            .await?;
        if is_daily_due {
            self.daily = self
                .daily_facts(&current, &intervals, (&groups, &tree), now)
                .await;
            self.daily.valid = Some((Arc::clone(&budgets), tree, now));
        }
        let mut evaluated = Vec::with_capacity(current.len());
        for (budget, period) in current {
            let of_period = &groups[intervals.position((period.from, period.to))];
            let used = of_period.used(budget);
            let status = self.status(budget, &period, used, &book);
            evaluated.push((budget, period, used, status, of_period));
        }
        let mut states: HashMap<String, Vec<BudgetState>> = HashMap::new();
        for state in facts.states {
            states.entry(state.budget.clone()).or_default().push(state);
        }
        let is_changed = |one: &&Evaluated<'_>| {
            if one.0.has_subtree() && !is_tree_known {
                return false;
            }
            let known = states.get(&one.0.name).map_or(&[][..], Vec::as_slice);
            let (states, events) = published(one, known, &facts.people, &clusters, time);
            !events.is_empty() || states.iter().any(|state| !known.contains(state))
        };
        let changed: Vec<&Evaluated<'_>> = evaluated.iter().filter(is_changed).collect();
        let stored = self
            .store_published(&changed, (&facts.people, &clusters), time)
            .await?;
        let result = Evaluation {
            as_of: Some(time),
            budgets: evaluated
                .into_iter()
                .map(|(budget, period, _, mut status, _)| {
                    let known = stored.get(&budget.name).copied().or_else(|| {
                        let states = states.get(&budget.name)?;
                        let state = states.iter().find(|state| state.period == period.name)?;
                        Some(state.published)
                    });
                    status.threshold = known.unwrap_or_default().threshold;
                    (budget.clone(), status)
                })
                .collect(),
            people: facts.people,
            clusters,
        };
        self.evaluation.send_replace(Arc::new(result));
        Ok(())
    }

    /// Costs of each interval by group.
    async fn groups(
        &mut self,
        book: &PriceBook,
        intervals: &[Interval],
        (facts, tree): (&BudgetFacts, &AccountTree),
        now: i64,
    ) -> Result<Vec<RunGroups>, Error> {
        self.curves.set_open(book, &facts.open, now);
        self.pending_costs
            .set(&self.store, book, &facts.pending, now)
            .await?;
        let mut books = PriceBooks::of(&self.store);
        let mut cut_runs = HashSet::new();
        let mut groups = Vec::with_capacity(intervals.len());
        for (interval, period) in intervals.iter().zip(&facts.periods) {
            let mut costs: HashMap<RunKeys, Amounts> = HashMap::new();
            let mut add = |keys: &RunKeys, amounts| match costs.get_mut(keys) {
                Some(sum) => *sum += amounts,
                None => {
                    costs.insert(keys.clone(), amounts);
                }
            };
            for (keys, settled) in &period.sums {
                let amounts = Amounts {
                    settled: *settled,
                    ..Amounts::default()
                };
                add(keys, amounts);
            }
            for run in &period.cut {
                cut_runs.insert((run.keys.cluster.clone(), run.run.clone()));
                let part = self.curves.part(&mut books, run, *interval).await?;
                let amounts = Amounts {
                    settled: RunsCost::of(Some(part)),
                    ..Amounts::default()
                };
                add(&run.keys, amounts);
            }
            for run in &facts.open {
                // An amount beyond 64 bits is no amount.
                let amounts = self.curves.amounts(book, run, *interval, now);
                add(&run.keys, amounts.unwrap_or_default());
            }
            // Pending jobs belong to the present period, as they may start now.
            if interval.0 <= now && now < interval.1 {
                for run in &facts.pending {
                    add(&run.keys, self.pending_costs.amounts(run));
                }
            }
            groups.push(RunGroups::new(costs, &facts.people, tree));
        }
        self.curves.retain_cut(|run| cut_runs.contains(run));
        Ok(groups)
    }

    async fn daily_facts(
        &self,
        current: &[(&Budget, Period)],
        intervals: &Intervals,
        (groups, tree): (&[RunGroups], &AccountTree),
        now: i64,
    ) -> DailyFacts {
        let mut facts = DailyFacts::default();
        for (budget, period) in current.iter().filter(|(_, period)| period.to < i64::MAX) {
            let spent_on = |(weekday, interval): (Weekday, Interval)| {
                let spent = groups[intervals.position(interval)].used(budget).spent();
                (weekday, spent.known)
            };
            let past: Vec<_> = past_days(budget, now).into_iter().map(spent_on).collect();
            let spent = groups[intervals.position((period.from, period.to))].used(budget);
            let today = day(budget.zone, now, 0).map(|day| day.date);
            let seed = format!("{} {}", budget.name, today.unwrap_or_default());
            let left = budget.amount.saturating_sub(spent.spent().known);
            let days = remaining_days(budget, period, now);
            if let Some(forecast) = forecast::forecast(&seed, &past, &days, left) {
                facts.forecasts.insert(budget.name.clone(), forecast);
            }
        }
        let names_account = |(budget, _): &(&Budget, Period)| budget.accounts().next().is_some();
        if !current.iter().any(names_account) {
            return facts;
        }
        match self.store.accounts().await {
            Ok(known) => {
                for (budget, _) in current {
                    let is_known = |account: &str| {
                        known.contains(account) || (budget.has_subtree() && tree.knows(account))
                    };
                    let unknown: Vec<String> = budget
                        .accounts()
                        .filter(|account| !is_known(account))
                        .map(str::to_owned)
                        .collect();
                    if !unknown.is_empty() {
                        tracing::warn!(
                            budget = budget.name,
                            accounts = unknown.join(", "),
                            "budget names accounts that never had a job"
                        );
                        facts.unknown_accounts.insert(budget.name.clone(), unknown);
                    }
                }
            }
            Err(error) => tracing::warn!(
                error = mesh_runtime::error_chain(&error),
                "accounts of budgets not checked"
            ),
        }
        facts
    }

    fn status(
        &self,
        budget: &Budget,
        period: &Period,
        used: Amounts,
        book: &PriceBook,
    ) -> BudgetStatus {
        let time = |seconds| DateTime::from_timestamp(seconds, 0);
        let forecast = self.daily.forecasts.get(&budget.name);
        let unknown = self.daily.unknown_accounts.get(&budget.name);
        BudgetStatus {
            forecast: forecast.map(|forecast| ForecastStatus {
                p50_micros: used.spent().known + forecast.rest_p50,
                p90_micros: used.spent().known + forecast.rest_p90,
                exhausted_p50: forecast.exhausted_p50.and_then(time),
                exhausted_p90: forecast.exhausted_p90.and_then(time),
            }),
            unknown_accounts: unknown.cloned().unwrap_or_default(),
            ..BudgetStatus::of(budget, period, used, &book.currency)
        }
    }

    /// Stores and publishes what has changed, by the states that the database has now. Another process may have been faster.
    async fn store_published(
        &self,
        changed: &[&Evaluated<'_>],
        (people, clusters): (&People, &Clusters),
        time: DateTime<Utc>,
    ) -> Result<HashMap<String, PublishedState>, Error> {
        if changed.is_empty() {
            return Ok(HashMap::new());
        }
        let stored = self.try_store(changed, (people, clusters), time);
        let stored = tokio::time::timeout(STORE_TIMEOUT, stored).await;
        let (states, events) = stored.unwrap_or(Err(Error::TooSlow(STORE_TIMEOUT)))?;
        if events > 0 {
            self.outbox.notify();
        }
        Ok(states)
    }

    async fn try_store(
        &self,
        changed: &[&Evaluated<'_>],
        (people, clusters): (&People, &Clusters),
        time: DateTime<Utc>,
    ) -> Result<(HashMap<String, PublishedState>, usize), Error> {
        let mut transaction = self.store.begin().await?;
        let names = changed.iter().map(|one| one.0.name.clone()).collect();
        let known_states = transaction.lock_budgets(names).await?;
        let (mut stored, mut published_events) = (HashMap::new(), Vec::new());
        for one in changed {
            let known = known_states.get(&one.0.name).map_or(&[][..], Vec::as_slice);
            let (states, events) = published(one, known, people, clusters, time);
            for state in &states {
                transaction.store_budget_state(state).await?;
            }
            for event in &events {
                let body = event.encode_to_vec();
                transaction.add_event(&event.id, &body, "").await?;
            }
            if let Some(current) = states.last() {
                stored.insert(one.0.name.clone(), current.published);
            }
            published_events.extend(events);
        }
        transaction.commit().await?;
        for event in &published_events {
            metrics::quota_event(&event.r#type);
            tracing::info!(
                event.r#type = event.r#type,
                budget = event.entity_key(),
                "budget crossed a threshold"
            );
        }
        Ok((stored, published_events.len()))
    }
}

/// Distinct intervals.
#[derive(Default)]
struct Intervals {
    list: Vec<Interval>,
    positions: HashMap<Interval, usize>,
}

impl Intervals {
    fn add(&mut self, interval: Interval) {
        let next = self.list.len();
        if *self.positions.entry(interval).or_insert(next) == next {
            self.list.push(interval);
        }
    }

    fn position(&self, interval: Interval) -> usize {
        self.positions.get(&interval).copied().unwrap_or_default()
    }
}

/// The days before today, oldest first.
fn past_days(budget: &Budget, now: i64) -> Vec<(Weekday, Interval)> {
    let days = (1..=PAST_DAYS as i64).rev();
    days.filter_map(|before| day(budget.zone, now, -before))
        .map(|day| (day.date.weekday(), (day.from, day.to)))
        .collect()
}

/// Today and the days after it until the end of the period.
fn remaining_days(budget: &Budget, period: &Period, now: i64) -> Vec<RemainingDay> {
    let mut days = Vec::new();
    let mut offset = 0;
    while let Some(LocalDay { date, from, to }) = day(budget.zone, now, offset) {
        let (begin, end) = (from.max(now), to.min(period.to));
        if begin >= period.to {
            break;
        }
        let per_mille = (end - begin).max(0) * 1000 / (to - from).max(1);
        days.push(RemainingDay {
            weekday: date.weekday(),
            from: begin,
            per_mille: u16::try_from(per_mille).unwrap_or(1000),
        });
        offset += 1;
    }
    days
}
