//! `smesh queue`: how good estimated starts are, on the cluster and on a trace.

mod quality;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use queue_estimate::quality::Quality;
use queue_estimate::replay::generate::{Kind, generate};
use queue_estimate::replay::report::{Report, prefix_differs};
use queue_estimate::replay::{Row, Trace, replay, sacct, schedule, swf};
use queue_estimate::{Seconds, estimator};

use crate::cli::{self, Global, QueueReplay, Schedule, TraceFormat};
use crate::error::Error;
use crate::show;

/// Exit status after SIGINT, as of a shell.
const INTERRUPTED: u8 = 130;

pub(super) async fn run(global: &Global, args: cli::Queue) -> Result<ExitCode, Error> {
    match args {
        cli::Queue::Quality => quality::run(global).await,
        cli::Queue::Replay(args) => replay_trace(global, args).await,
    }
}

async fn replay_trace(global: &Global, args: QueueReplay) -> Result<ExitCode, Error> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&interrupted);
    let args = Arc::new(args);
    let read = Arc::clone(&args);
    let replayed = tokio::task::spawn_blocking(move || replayed(&read, &seen));
    let replayed = tokio::select! {
        replayed = replayed => replayed,
        _ = tokio::signal::ctrl_c() => {
            interrupted.store(true, Ordering::Relaxed);
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    let replayed = replayed.map_err(|error| Error::Failed(error.to_string()))?;
    let Some((trace, rows, prefix)) = replayed? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    if let Some(path) = &args.output {
        let written = std::fs::write(path, csv(&trace, &rows));
        written.map_err(|source| Error::io("write", path, source))?;
    }
    let is_slurm_like = trace.group_age > 0;
    let report = Report::new(&trace, &rows, is_slurm_like, prefix);
    if global.json {
        let json =
            serde_json::to_value(&report).map_err(|error| Error::Failed(error.to_string()))?;
        show::line(json)?;
    } else {
        show::line(table(&report))?;
    }
    Ok(if report.is_met() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

type Replayed = (Trace, Vec<Row>, Option<Option<Seconds>>);

/// Replays the trace twice, the second time its first half. `None` if it was interrupted.
fn replayed(args: &QueueReplay, interrupted: &AtomicBool) -> Result<Option<Replayed>, Error> {
    let trace = load(args)?;
    let every = Seconds::try_from(args.every.as_secs())
        .unwrap_or(Seconds::MAX)
        .max(60);
    let jobs = trace.jobs.len() as u64;
    // Shown on a terminal only, as indicatif does by default.
    let bar = ProgressBar::new(jobs + jobs / 2).with_style(bar_style());
    let progress = |before: usize| {
        let bar = &bar;
        move |submitted: usize| {
            if submitted.is_multiple_of(64) {
                bar.set_position((before + submitted) as u64);
            }
            !interrupted.load(Ordering::Relaxed)
        }
    };
    let rows = replay(&trace, every, progress(0));
    let prefix = prefix_differs(&trace, every, &rows, progress(trace.jobs.len()));
    bar.finish_and_clear();
    if interrupted.load(Ordering::Relaxed) {
        return Ok(None);
    }
    Ok(Some((trace, rows, Some(prefix))))
}

fn load(args: &QueueReplay) -> Result<Trace, Error> {
    let path = &args.trace;
    let kind = path
        .to_str()
        .and_then(Kind::named)
        .filter(|_| !path.exists());
    let mut trace = match kind {
        Some(kind) => generate(kind, args.jobs, args.seed),
        None => {
            let bytes = std::fs::read(path).map_err(|source| Error::io("read", path, source))?;
            let trace = match args.format {
                TraceFormat::Swf => swf::read(&bytes, args.cpus),
                TraceFormat::Sacct => sacct::read(&bytes, args.cpus),
            };
            trace.map_err(|error| {
                Error::Failed(format!(
                    "{}: {}",
                    path.display(),
                    mesh_runtime::error_chain(&error)
                ))
            })?
        }
    };
    if kind.is_some() || args.schedule == Schedule::Easy {
        schedule::easy(&mut trace);
    }
    Ok(match args.until {
        Some(until) => trace.until(until),
        None => trace,
    })
}

fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {percent}% {pos}/{len} jobs, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A row per estimate. Times are those of the trace, in seconds; `started_at` is for scoring only.
fn csv(trace: &Trace, rows: &[Row]) -> String {
    let mut text = String::from(
        "job,asked_at,kind,waited_s,plan_s,p50_s,p90_s,class,method,n_calibration,started_at\n",
    );
    let number = |value: Option<Seconds>| value.map_or(String::new(), |value| value.to_string());
    for row in rows {
        let estimate = &row.estimate;
        // Writing to a string does not fail.
        let _written = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{}",
            trace.jobs[row.job].id,
            estimate.made_at,
            if estimate.is_later() {
                "later"
            } else {
                "first"
            },
            estimate.waited,
            number(estimate.plan()),
            number(estimate.p50),
            number(estimate.p90),
            estimator::CLASS_NAMES[estimate.class()],
            estimate.method.as_str(),
            estimate.calibration,
            number(row.started_at),
        );
    }
    text
}

fn table(report: &Report) -> String {
    let mut rows = vec![quality_header("estimates")];
    rows.push(quality_row("first", &report.first));
    for class in &report.classes {
        rows.push(quality_row(&format!("  {}", class.class), &class.quality));
    }
    rows.push(quality_row("later", &report.later));
    let mut goals = vec![
        ["goal", "", "reached", "wanted", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    for goal in &report.goals {
        let met = match goal.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "–",
        };
        goals.push(
            [goal.id, goal.text, &goal.value, &goal.goal, met]
                .map(str::to_owned)
                .to_vec(),
        );
    }
    format!(
        "{} jobs, {} estimates, {} of them not scored: cancelled, or still waiting at the end\n\n{}\n{}",
        report.jobs,
        report.estimates,
        report.unscored,
        show::table(&rows),
        show::table(&goals).trim_end()
    )
}

fn quality_header(name: &str) -> Vec<String> {
    [
        name,
        "n",
        "P50 covers",
        "P90 covers",
        "median error",
        "plan's",
        "history's",
        "pinball P50",
        "P90",
        "P90/P50",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn quality_row(name: &str, quality: &Quality) -> Vec<String> {
    let percent =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1} %"));
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2}"));
    let seconds =
        |value: Option<Seconds>| value.map_or("–".to_owned(), |value| format!("{value} s"));
    vec![
        name.to_owned(),
        quality.n.to_string(),
        percent(quality.covered_p50),
        percent(quality.covered_p90),
        seconds(quality.median_error),
        seconds(quality.plan_median_error),
        seconds(quality.history_median_error),
        number(quality.pinball_p50),
        number(quality.pinball_p90),
        number(quality.sharpness),
    ]
}
