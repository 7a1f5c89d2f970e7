//! Costs of running jobs. Pure: the time is an argument.

use chrono::{DateTime, Utc};

use super::{LiveCosts, LiveJob};
use crate::adapters::OpenRun;
use crate::costing;
use crate::domain::suspension;
use crate::domain::{Micros, PriceError, RunsCost};
use crate::price_book::PriceBook;

pub(in crate::api) fn live(
    book: Option<&PriceBook>,
    runs: Vec<OpenRun>,
    now: DateTime<Utc>,
) -> LiveCosts {
    let jobs: Vec<LiveJob> = runs
        .into_iter()
        .map(|run| live_job(book, run, now))
        .collect();
    let sum = |amount: fn(&LiveJob) -> Option<Micros>| -> RunsCost {
        jobs.iter().map(|job| RunsCost::of(amount(job))).sum()
    };
    let accrued = sum(|job| job.accrued_micros);
    LiveCosts {
        price_book: book.map(PriceBook::label),
        currency: book.map(|book| book.currency.clone()),
        as_of: now,
        burn_rate_micros: sum(|job| job.burn_rate_micros),
        accrued_micros: accrued,
        // The cost so far of a job with a problem may be known, e.g. if only what it costs until its time limit is not.
        unpriced_runs: accrued.unpriced,
        jobs,
    }
}

fn live_job(book: Option<&PriceBook>, open: OpenRun, now: DateTime<Utc>) -> LiveJob {
    let now = now.timestamp();
    let rate = book.map(|book| costing::rate(book, &open.job, &open.keys.account));
    let spent = book.map(|book| accrued(book, &open, now).map(|(cost, _)| cost));
    let problem = [
        rate.as_ref().and_then(|rate| rate.as_ref().err()),
        spent.as_ref().and_then(|spent| spent.as_ref().err()),
    ]
    .into_iter()
    .flatten()
    .next()
    .map_or_else(
        || {
            if book.is_none() {
                "price_missing: there is no price book".to_owned()
            } else {
                String::new()
            }
        },
        PriceError::problem,
    );
    let suspended = suspension::intervals(&open.history.marks, i64::MAX)
        .last()
        .is_some_and(|(_, to)| *to == i64::MAX);
    let rate = rate.and_then(Result::ok);
    LiveJob {
        cluster: open.keys.cluster,
        job: open.job.display_id,
        run: open.job.run,
        name: open.job.name,
        user: open.keys.user,
        account: open.keys.account,
        partition: open.job.partition,
        nodes: open
            .history
            .resizes
            .last()
            .map_or(open.job.nodes, |(_, job)| job.nodes.clone()),
        started: open
            .job
            .start_time
            .map(|time| time.seconds)
            .unwrap_or_default(),
        suspended,
        burn_rate_micros: rate.map(|rate| rate.burn),
        accrued_micros: spent.and_then(Result::ok),
        estimated_micros: rate.and_then(|rate| rate.estimate),
        problem,
    }
}

/// Cost so far, and its seconds.
pub(super) fn accrued(
    book: &PriceBook,
    open: &OpenRun,
    now: i64,
) -> Result<(Micros, u64), PriceError> {
    let until = costing::accrued_until(&open.history, &open.job, now);
    costing::spent(book, &open.history, &open.job, until).map(|spent| (spent.cost, spent.seconds))
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::job::v1::Job;
    use pbjson_types::Timestamp;

    use super::*;
    use crate::adapters::RunKeys;
    use crate::usage::RunHistory;

    const BOOK: &str = "name = \"b\"\nversion = \"1\"\ncurrency = \"EUR\"\nmode = \"billing\"\n\
        [[billing]]\nprice = \"100000\"\n";

    #[test]
    fn a_job_whose_cost_so_far_is_known_is_in_the_sum_and_not_unpriced() {
        let open = |tres: &str, time_limit| OpenRun {
            keys: RunKeys::default(),
            job: Job {
                start_time: Some(Timestamp::default()),
                alloc_tres: tres.into(),
                time_limit_minutes: Some(time_limit),
                ..Job::default()
            },
            history: RunHistory::default(),
        };
        // The cost of the first until its time limit has too many digits.
        let runs = vec![open("billing=5", u32::MAX), open("cpu=1", 60)];
        let book = PriceBook::parse(BOOK, "book").unwrap();
        let live = live(
            Some(&book),
            runs,
            DateTime::from_timestamp(3600, 0).unwrap(),
        );
        let problems = live.jobs.iter().filter(|job| !job.problem.is_empty());
        assert_eq!(problems.count(), 2, "{live:?}");
        assert_eq!(
            live.accrued_micros.amount(),
            Some(Micros(500_000_000_000)),
            "{live:?}"
        );
        assert_eq!(live.unpriced_runs, 1, "{live:?}");
        assert_eq!(live.burn_rate_micros.amount(), None, "{live:?}");
    }
}
