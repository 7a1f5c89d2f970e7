//! The differential test: a random workload on a real cluster, random faults at the same time, and then every fact compared with what
//! Slurm's accounting and the driver's own log say.
//!
//! | part | |
//! | --- | --- |
//! | `plan` | what a seed means: who does what when, and what breaks meanwhile |
//! | `stage`, `play`, `faults` | a cluster, six services and second ones of two as processes; does it; breaks them |
//! | `sacct`, `log` | the two oracles; they share no code with ingest |
//! | `published` | what is on the bus and in the ledger |
//! | `judge` | compares |
//!
//! The same seed gives the same plan. When things happen exactly is up to the machine, so a failing seed is likely to fail again, not
//! certain to.

mod faults;
mod judge;
mod log;
mod plan;
mod play;
mod published;
mod random;
mod sacct;
mod stage;
mod verdict;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::{join, try_join};
use tokio::time::{Instant, sleep};

pub use plan::{Form, Plan, Source};
pub use verdict::Verdict;

use self::play::Player;
use self::published::Published;
use self::stage::Stage;
use crate::{Error, fact};

/// Job, task, submit time.
type Run = (u32, Option<u32>, i64);

/// How long jobs may take to end by themselves once everything is played: a time limit is found within 30 s, a requeued job waits 6 s.
const ENDING: Duration = Duration::from_secs(75);
/// How long the mesh may take to tell what accounting has, and slurmdbd to have what slurmctld told it. An end that no source has is waited
/// for 30 s (`missing_record_timeout`), and over slurmrestd sweeps are 30 s apart. Counted from the last change: on a machine that others use, too,
/// everything takes longer.
const SETTLING: Duration = Duration::from_secs(300);
/// How long at all.
const MAX_SETTLING: Duration = Duration::from_secs(1_200);

/// How long nothing more may come once everything is told: some sweeps.
const fn quiet(source: Source) -> Duration {
    Duration::from_secs(match source {
        Source::Commands => 4,
        Source::Rest => 40,
    })
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// First of the cluster's hundred ports.
    pub base_port: u16,
    /// Whether the cluster's folder is kept, with everything that was compared in it.
    pub keep: bool,
}

/// Where a soak is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The cluster and the services start.
    Starting,
    /// So many works of so many are done.
    Playing {
        /// Done.
        done: usize,
        /// Of these.
        of: usize,
    },
    /// Jobs end.
    Ending,
    /// So many differences are left.
    Comparing {
        /// Differences.
        left: usize,
    },
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The comparison.
    pub verdict: Verdict,
    /// Types that must be compared, and of which there was none.
    pub none_of: Vec<&'static str>,
    /// Types that need not be compared with this source, and were not.
    pub left_out: Vec<&'static str>,
    /// Works that could not be done as planned.
    pub given_up: usize,
    /// Slurm's version.
    pub slurm: String,
    /// The folder, if it was kept.
    pub kept_folder: Option<PathBuf>,
}

impl Outcome {
    /// True if everything is as it should be.
    pub fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.none_of.is_empty()
    }
}

/// Plays a plan and compares.
///
/// # Errors
/// If the cluster or a service cannot be started, or something that is no part of the test breaks.
pub async fn run(
    plan: &Plan,
    options: &Options,
    progress: impl Fn(Phase),
) -> Result<Outcome, Error> {
    progress(Phase::Starting);
    let mut stage = Stage::set(options.base_port, plan.form, plan.source).await?;
    let kept_folder = options.keep.then(|| stage.cluster.keep().to_owned());
    let stage = stage;
    let player = Player::new(&stage);
    let began = Instant::now();
    let acts = async {
        let faults = try_join(
            faults::play(&stage, began, &plan.faults[0]),
            faults::play(&stage, began, &plan.faults[1]),
        );
        let works = async {
            player.play(began, &plan.works).await;
            stage.note("everything is played");
            Ok(())
        };
        let show = async {
            loop {
                let (done, of) = (player.done().0, plan.works.len());
                progress(Phase::Playing { done, of });
                if done == of {
                    return Ok::<_, Error>(());
                }
                sleep(Duration::from_millis(500)).await;
            }
        };
        try_join(faults, try_join(works, show)).await?;
        progress(Phase::Ending);
        stage.clear(ENDING).await?;
        stage.stop_looking();
        Ok::<_, Error>(())
    };
    let (played, ()) = join(acts, stage.poll()).await;
    played?;
    let mut published = Published::default();
    let verdict = compare(&stage, plan.source, &mut published, &progress).await?;
    if let Some(folder) = &kept_folder {
        write(folder, plan, &stage, &published, &verdict).await?;
    }
    let (left_out, needed): (Vec<_>, Vec<_>) = judge::TYPES
        .into_iter()
        .partition(|kind| judge::left_out(plan.source).contains(kind));
    Ok(Outcome {
        none_of: verdict.none_of(needed),
        left_out: verdict.none_of(left_out),
        verdict,
        slurm: stage.cluster.fact("slurm_version").unwrap_or_default(),
        given_up: player.done().1,
        kept_folder,
    })
}

/// Compares until nothing differs and nothing more comes, or for as long as the mesh may take.
async fn compare(
    stage: &Stage,
    source: Source,
    published: &mut Published,
    progress: impl Fn(Phase),
) -> Result<Verdict, Error> {
    let began = Instant::now();
    let mut agreed: Option<(Instant, usize)> = None;
    let mut changed = (began, (0, 0));
    loop {
        let whole = published.read_on(stage).await;
        let rows = sacct::rows(stage, &jobs(stage, published)).await?;
        let is_final = changed.0.elapsed() > SETTLING || began.elapsed() > MAX_SETTLING;
        let verdict = judge::judge(&rows, &stage.log.borrow(), published, source, is_final);
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

/// Every job anybody knows of.
fn jobs(stage: &Stage, published: &Published) -> BTreeSet<u32> {
    let published = published.bus.values();
    let published = published.filter_map(|event| Some(fact::run(event)?.0));
    published
        .chain(stage.log.borrow().jobs.iter().copied())
        .collect()
}

/// Writes everything that was compared.
async fn write(
    folder: &Path,
    plan: &Plan,
    stage: &Stage,
    published: &Published,
    verdict: &Verdict,
) -> Result<(), Error> {
    let rows = sacct::rows(stage, &jobs(stage, published)).await?;
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
    let driver = stage.log.borrow().text();
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
