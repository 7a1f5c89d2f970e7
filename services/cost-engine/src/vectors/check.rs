//! Computes the scenario of a vector and compares the results.

use std::collections::BTreeMap;

use super::schema::{
    BillingVector, BurnVector, Decimal, ExpectError, ExpectJob, ExpectRun, Flag, JobVector,
    PeriodVector, RunFacts, Vector,
};
use super::world::{self, VectorPath};
use super::{Difference, Error};
use crate::domain::billing::{self, WeightRule};
use crate::domain::money::{fraction, integer};
use crate::domain::period::node_period;
use crate::domain::{Class, Micros, PriceError, RunCost, burn, price};

/// The differences of one vector.
pub(super) fn check(vector: &Vector) -> Result<Vec<Difference>, Error> {
    let mut differences = Differences {
        vector,
        found: Vec::new(),
    };
    let path = VectorPath(vector.id());
    match vector {
        Vector::Job(job) => check_job(path, job, &mut differences)?,
        Vector::JobError(job) => check_error(path, job, &mut differences)?,
        Vector::Burn(burn) => check_burn(path, burn, &mut differences)?,
        Vector::Billing(billing) => check_billing(path, billing, &mut differences)?,
        Vector::NodePeriod(period) => check_period(path, period, &mut differences)?,
    }
    Ok(differences.found)
}

struct Differences<'a> {
    vector: &'a Vector,
    found: Vec<Difference>,
}

impl Differences<'_> {
    /// Compares a value, if the vector expects one.
    fn compare<E: ToString>(&mut self, field: &str, expected: Option<E>, found: impl ToString) {
        let Some(expected) = expected.map(|expected| expected.to_string()) else {
            return;
        };
        let found = found.to_string();
        if expected != found {
            let (vector, title) = (self.vector.id().to_owned(), self.vector.title().to_owned());
            self.found.push(Difference {
                vector,
                title,
                field: field.to_owned(),
                expected,
                found,
            });
        }
    }

    fn no_price(&mut self, field: &str, error: &PriceError) {
        self.compare(field, Some("a price"), error.problem());
    }
}

/// The runs of a vector by id, in the order of their first report. Several sources may report the same run; the last report is the
/// best one.
fn once_per_run(runs: &[RunFacts]) -> Vec<(usize, &RunFacts)> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut unique: Vec<(usize, &RunFacts)> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        if let Some(&path) = places.get(run.run_id.as_str()) {
            unique[path] = (at, run);
        } else {
            places.insert(&run.run_id, unique.len());
            unique.push((at, run));
        }
    }
    unique
}

struct PricedRun<'a> {
    id: &'a str,
    class: Class,
    price: Result<RunCost, PriceError>,
}

fn price_runs<'a, E>(
    path: VectorPath<'_>,
    job: &'a JobVector<E>,
) -> Result<Vec<PricedRun<'a>>, Error> {
    let nodes = world::nodes(path, &job.prices, &job.nodes, &job.weights)?;
    once_per_run(&job.runs)
        .into_iter()
        .map(|(at, facts)| {
            let run = world::run(path, &format!("runs[{at}]"), facts, job.now)?;
            let price = price(world::mode(job.mode), &nodes, &run);
            Ok(PricedRun {
                id: &facts.run_id,
                class: Class::of_state(&facts.state),
                price,
            })
        })
        .collect()
}

fn check_job(
    path: VectorPath<'_>,
    job: &JobVector<ExpectJob>,
    differences: &mut Differences<'_>,
) -> Result<(), Error> {
    let runs = price_runs(path, job)?;
    let expect = &job.expect;
    if let Some(expected) = &expect.runs {
        compare_ids(expected, runs.iter().map(|run| run.id), differences);
    }
    let mut sums: BTreeMap<Class, Micros> = BTreeMap::new();
    for run in &runs {
        let priced = match &run.price {
            Ok(priced) => priced,
            Err(error) => {
                differences.no_price(&format!("run {}", run.id), error);
                continue;
            }
        };
        let sum = sums.entry(run.class).or_default();
        *sum = *sum + priced.cost;
        if let Some(expected) = expect
            .runs
            .iter()
            .flatten()
            .find(|expected| expected.run_id == run.id)
        {
            let field = |name: &str| format!("run {}: {name}", run.id);
            differences.compare(
                &field("exact_micro"),
                expected.exact_micro.as_ref(),
                fraction(&priced.exact),
            );
            differences.compare(&field("cost_micro"), expected.cost_micro, priced.cost);
            differences.compare(&field("class"), expected.class.as_ref(), run.class);
        }
    }
    let sum = |class| sums.get(&class).copied().unwrap_or_default();
    differences.compare(
        "job_cost_micro",
        expect.job_cost_micro,
        sums.values().copied().sum::<Micros>(),
    );
    differences.compare(
        "completed_micro",
        expect.completed_micro,
        sum(Class::Completed),
    );
    differences.compare(
        "not_completed_micro",
        expect.not_completed_micro,
        sum(Class::NotCompleted),
    );
    differences.compare("open_micro", expect.open_micro, sum(Class::Open));
    Ok(())
}

fn compare_ids<'a>(
    expected: &[ExpectRun],
    found: impl Iterator<Item = &'a str>,
    differences: &mut Differences<'_>,
) {
    let expected: Vec<&str> = expected.iter().map(|run| run.run_id.as_str()).collect();
    differences.compare(
        "runs",
        Some(expected.join(" ")),
        found.collect::<Vec<_>>().join(" "),
    );
}

fn check_error(
    path: VectorPath<'_>,
    job: &JobVector<ExpectError>,
    differences: &mut Differences<'_>,
) -> Result<(), Error> {
    let runs = price_runs(path, job)?;
    let found = runs
        .iter()
        .find_map(|run| run.price.as_ref().err())
        .map_or("a price", PriceError::code);
    differences.compare("error", Some(&job.expect.error), found);
    Ok(())
}

fn check_burn(
    path: VectorPath<'_>,
    vector: &BurnVector,
    differences: &mut Differences<'_>,
) -> Result<(), Error> {
    let nodes = world::nodes(path, &vector.prices, &vector.nodes, &vector.weights)?;
    let (run, expect) = (&vector.run, &vector.expect);
    let allocation = world::allocation(path, "run.alloc", &run.alloc)?;
    let estimated = burn(
        world::mode(vector.mode),
        &nodes,
        &allocation,
        run.exclusive,
        run.start,
    )
    .and_then(|burn| {
        Ok((
            run.time_limit_s
                .map(|limit| burn.estimate(limit))
                .transpose()?,
            burn,
        ))
    });
    match estimated {
        Ok((estimate, burn)) => {
            differences.compare(
                "burn_micro_per_hour",
                expect.burn_micro_per_hour,
                burn.per_hour,
            );
            differences.compare(
                "exact_burn",
                expect.exact_burn.as_ref(),
                fraction(&burn.exact),
            );
            let estimate = estimate.map_or_else(
                || "none: no time limit".to_owned(),
                |estimate| estimate.to_string(),
            );
            differences.compare(
                "estimate_at_time_limit_micro",
                expect.estimate_at_time_limit_micro,
                estimate,
            );
        }
        Err(error) => differences.no_price("run", &error),
    }
    Ok(())
}

fn check_billing(
    path: VectorPath<'_>,
    vector: &BillingVector,
    differences: &mut Differences<'_>,
) -> Result<(), Error> {
    let combine = match vector.flag {
        Flag::Sum => WeightRule::Sum,
        Flag::MaxTres => WeightRule::MaxTres,
        Flag::MaxTresGres => WeightRule::MaxTresGres,
    };
    let mut weights = BTreeMap::new();
    for (tres, weight) in &vector.weights {
        let text = match &weight.weight {
            Decimal::Text(text) => text.clone(),
            Decimal::Number(number) => number.to_string(),
        };
        weights.insert(
            tres.clone(),
            world::tres_weight(path, tres, &text, weight.per)?,
        );
    }
    let amounts = vector
        .alloc
        .iter()
        .map(|(tres, amount)| (tres.clone(), integer(*amount)))
        .collect();
    let exact = billing::weigh(combine, &weights, &amounts);
    let held = vector.elapsed_s.saturating_add(vector.suspended_s);
    let expect = &vector.expect;
    differences.compare(
        "billing_exact",
        expect.billing_exact.as_ref(),
        fraction(&exact),
    );
    differences.compare("held_s", expect.held_s, held);
    let priced = billing::truncate(&exact).and_then(|units| {
        Ok((
            units,
            billing::price_held(units, Micros(vector.rate_micro_per_billing_hour), held)?,
        ))
    });
    match priced {
        Ok((units, (_, cost))) => {
            differences.compare("billing", expect.billing, units);
            differences.compare("cost_micro", expect.cost_micro, cost);
        }
        Err(error) => differences.no_price("billing", &error),
    }
    Ok(())
}

fn check_period(
    path: VectorPath<'_>,
    vector: &PeriodVector,
    differences: &mut Differences<'_>,
) -> Result<(), Error> {
    let nodes = world::nodes(path, &vector.prices, &vector.nodes, &vector.weights)?;
    let facts = once_per_run(&vector.runs);
    let runs = facts
        .iter()
        .map(|(at, facts)| world::run(path, &format!("runs[{at}]"), facts, vector.now))
        .collect::<Result<Vec<_>, _>>()?;
    let expect = &vector.expect;
    let period = match node_period(world::mode(vector.mode), &nodes, vector.period, &runs) {
        Ok(period) => period,
        Err(error) => {
            differences.no_price("period", &error);
            return Ok(());
        }
    };
    differences.compare("node_cost_micro", expect.node_cost_micro, period.node_cost);
    differences.compare("allocated_micro", expect.allocated_micro, period.allocated);
    differences.compare("idle_micro", expect.idle_micro, period.idle);
    differences.compare(
        "over_recovery_micro",
        expect.over_recovery_micro,
        period.over_recovery,
    );
    if let Some(expected) = &expect.jobs {
        compare_ids(
            expected,
            facts.iter().map(|(_, facts)| facts.run_id.as_str()),
            differences,
        );
        for ((_, facts), cost) in facts.iter().zip(period.runs) {
            if let Some(expected) = expected
                .iter()
                .find(|expected| expected.run_id == facts.run_id)
            {
                differences.compare(
                    &format!("run {}: cost_micro", facts.run_id),
                    expected.cost_micro,
                    cost,
                );
            }
        }
    }
    Ok(())
}
