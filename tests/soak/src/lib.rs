//! The differential test: a random workload on a real cluster with simultaneous random faults. Afterwards every fact is compared with
//! Slurm's accounting and the driver's own log.
//!
//! | part | |
//! | --- | --- |
//! | `plan` | the plan of a seed: actions of users and faults, with their times |
//! | `testbed`, `workload`, `faults` | a cluster, six services and second replicas of two as processes; the actions; the faults |
//! | `sacct`, `log` | the two oracles, which share no code with ingest |
//! | `published` | events on the bus and in the ledger |
//! | `judge` | the comparison |
//!
//! The same seed gives the same plan. The exact times depend on the machine, so a failing seed is likely to fail again, but not
//! certain to.

mod faults;
mod judge;
mod log;
mod plan;
mod published;
mod random;
mod sacct;
mod testbed;
mod verdict;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::{join, try_join};
use tokio::time::{Instant, sleep};

pub use plan::{Form, Plan, Source};
pub use verdict::Verdict;

use self::published::Published;
use self::testbed::Testbed;
use self::workload::WorkloadRunner;
use integration::{Error, run_of};

/// Job, task, submit time.
type Run = (u32, Option<u32>, i64);

/// How long jobs may take to end by themselves after the last action. A time limit is found within 30 s, and a requeued job waits 6 s.
const ENDING: Duration = Duration::from_secs(75);
/// How long the mesh may take to publish everything in accounting, and slurmdbd to receive everything from slurmctld. The end of a run
/// without a record is published after 30 s (`missing_record_timeout`), and polls of slurmrestd are 30 s apart. Counted from the last
/// change, because a shared machine is slower.
const SETTLING: Duration = Duration::from_secs(300);
/// Total limit.
const MAX_SETTLING: Duration = Duration::from_secs(1_200);

/// How long nothing new may arrive after everything is published: several polls.
const fn quiet(source: Source) -> Duration {
    Duration::from_secs(match source {
        Source::Commands => 4,
        Source::Rest => 40,
    })
}

/// Options of a soak.
#[derive(Clone, Debug)]
pub struct Options {
    /// First of the cluster's hundred ports.
    /// True to keep the cluster's folder, with all compared data, also if there is no difference.
    pub keep: bool,
}

/// Progress of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The cluster and the services start.
    Starting,
    /// The actions are performed.
    Playing {
        /// Number of finished works.
        done: usize,
        /// Total number of works.
        of: usize,
    },
    /// Waits for the jobs to end.
    Ending,
    /// Compares until no difference is left.
    Comparing {
        /// Number of differences.
        left: usize,
    },
}

/// Result of a soak.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Result of the comparison.
    pub verdict: Verdict,
    /// Types that must be compared, but did not occur.
    pub none_of: Vec<&'static str>,
    /// Types that need not be compared with this source, and were not.
    pub left_out: Vec<&'static str>,
    /// Peak memory of each service, in MiB.
    pub peaks: BTreeMap<&'static str, u64>,
    /// Number of works that could not be done as planned.
    pub given_up: usize,
    /// Slurm version.
    pub slurm: String,
    /// The folder, if it was kept.
    pub stored_folder: Option<PathBuf>,
}

impl Outcome {
    /// True if there is no difference.
    pub fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.none_of.is_empty()
    }
}

/// Plays a plan and compares the results.
///
/// # Errors
/// If the cluster or a service cannot be started, or something outside the test breaks.
pub async fn run(
    plan: &Plan,
    options: &Options,
    progress: impl Fn(Phase),
) -> Result<Outcome, Error> {
    progress(Phase::Starting);
    let mut testbed = Testbed::start(plan.form, plan.source).await?;
    let runner = WorkloadRunner::new(&testbed);
    let began = Instant::now();
    let acts = async {
        let faults = try_join(
            faults::inject(&testbed, began, &plan.faults[0]),
            faults::inject(&testbed, began, &plan.faults[1]),
        );
        let works = async {
            runner.run(began, &plan.works).await;
            testbed.note("all actions are done");
            Ok(())
        };
        let show = async {
            loop {
                testbed.sample_memory();
                let (done, of) = (runner.done().0, plan.works.len());
                progress(Phase::Playing { done, of });
                if done == of {
                    return Ok::<_, Error>(());
                }
                sleep(Duration::from_millis(500)).await;
            }
        };
        try_join(faults, try_join(works, show)).await?;
        progress(Phase::Ending);
        testbed.clear(ENDING).await?;
        testbed.stop_polling();
        Ok::<_, Error>(())
    };
    let (performed, ()) = join(acts, testbed.poll()).await;
    performed?;
    let mut published = Published::default();
    let mut verdict = compare(&testbed, plan.source, &mut published, &progress).await?;
    verdict.wrong.extend(testbed.too_large());
    let peaks = testbed.peaks.borrow().clone();
    let given_up = runner.done().1;
    let keep = options.keep || !verdict.is_clean();
    let stored_folder = keep.then(|| testbed.cluster.keep().to_owned());
    if let Some(folder) = &stored_folder {
        write(folder, plan, &testbed, &published, &verdict).await?;
    }
    let (left_out, needed): (Vec<_>, Vec<_>) = judge::TYPES
        .into_iter()
        .partition(|kind| judge::left_out(plan.source).contains(kind));
    Ok(Outcome {
        none_of: verdict.none_of(needed),
        left_out: verdict.none_of(left_out),
        verdict,
        slurm: testbed.cluster.fact("slurm_version").unwrap_or_default(),
        peaks,
        given_up,
        stored_folder,
    })
}

/// Compares until there is no difference and nothing new arrives, or the time limit is reached.
async fn compare(
    testbed: &Testbed,
    source: Source,
    published: &mut Published,
    progress: impl Fn(Phase),
) -> Result<Verdict, Error> {
    let began = Instant::now();
    let mut agreed: Option<(Instant, usize)> = None;
    let mut changed = (began, (0, 0));
    loop {
        testbed.sample_memory();
        let whole = published.read_on(testbed).await;
        let rows = sacct::rows(testbed, &jobs(testbed, published)).await?;
        testbed.read_unresponsive()?;
        let is_final = changed.0.elapsed() > SETTLING || began.elapsed() > MAX_SETTLING;
        let verdict = judge::judge(&rows, &testbed.log.borrow(), published, source, is_final);
        let count = published.bus.len();
        if changed.1 != (count, verdict.count()) {
            changed = (Instant::now(), (count, verdict.count()));
        }
        progress(Phase::Comparing {
            left: verdict.count(),
        });
        agreed = match agreed {
            _ if !whole || !verdict.is_clean() => None,
            Some((since, before)) if before == count => Some((since, before)),
            _ => Some((Instant::now(), count)),
        };
        let is_quiet = agreed.is_some_and(|(since, _)| since.elapsed() >= quiet(source));
        if is_quiet || is_final {
            return Ok(verdict);
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Every job known to any source.
fn jobs(testbed: &Testbed, published: &Published) -> BTreeSet<u32> {
    let published = published.bus.values();
    let published = published.filter_map(|event| Some(run_of(event)?.0));
    published
        .chain(testbed.log.borrow().jobs.iter().copied())
        .collect()
}

/// Writes all compared data to files.
async fn write(
    folder: &Path,
    plan: &Plan,
    testbed: &Testbed,
    published: &Published,
    verdict: &Verdict,
) -> Result<(), Error> {
    let rows = sacct::rows(testbed, &jobs(testbed, published)).await?;
    let rows: Vec<&str> = rows.iter().map(|row| row.line.as_str()).collect();
    let mut events: Vec<_> = published.bus.values().collect();
    events.sort_by_key(|event| {
        let observed = event.observed_at.as_ref();
        observed.map(|time| (time.seconds, time.nanos))
    });
    let events: Vec<String> = events
        .into_iter()
        .filter_map(|event| serde_json::to_string(event).ok())
        .collect();
    let unjudged = verdict.unjudged.iter();
    let unjudged = unjudged.map(|text| format!("unjudged: {text}"));
    let lost = verdict.lost.iter();
    let lost = lost.map(|text| format!("accounting lost {text}"));
    let differences = verdict.differences().into_iter();
    let differences: Vec<String> = differences.chain(lost).chain(unjudged).collect();
    let driver = testbed.log.borrow().text();
    for (name, text) in [
        ("plan.txt", plan.to_string()),
        ("driver.txt", driver),
        ("sacct.txt", rows.join("\n")),
        ("bus.jsonl", events.join("\n")),
        ("differences.txt", differences.join("\n")),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    Ok(())
}
