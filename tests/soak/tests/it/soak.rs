//! The short differential test. `make soak` runs the long one.

use soak::{Form, Options, Plan, Source, run};

/// Enough to include every type of event.
const JOBS: u32 = 220;
const SEED: u64 = 20_261_122;

#[tokio::test(flavor = "multi_thread")]
async fn every_fact_is_published_once_whatever_breaks() {
    let plan = Plan::draw(SEED, JOBS, Form::Short, Source::Commands);
    let options = Options { keep: false };
    let outcome = run(&plan, &options, |_| ()).await.unwrap();
    let verdict = &outcome.verdict;
    assert!(
        outcome.is_clean(),
        "seed {SEED}: {}, none compared of {:?}, {} given up, not judged {:?}\n{}",
        verdict.closing_line(),
        outcome.none_of,
        outcome.given_up,
        verdict.unjudged,
        verdict.differences().join("\n")
    );
}
