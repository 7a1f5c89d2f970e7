//! `make soak SEED=n JOBS=n`: the differential test with faults, see [`soak`].
//!
//! The output ends with the number of compared facts per type and the line `missing=0 extra=0 duplicates=0 wrong=0`. The exit status
//! is 1 if a number differs, a type was not compared at all, or accounting lacks the end of a run. With `SOAK_SOURCE=rest` the mesh
//! queries slurmrestd. The cluster's folder with all compared data stays after a difference, and with `SOAK_KEEP=1`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use integration::{Error, interrupted};
use soak::{Form, Options, Outcome, Phase, Plan, Source, run};

/// Runs a random workload with random faults on a real Slurm cluster, and compares every fact with accounting.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Args {
    /// Seed of the random plan. The same seed gives the same plan.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Minimum number of jobs and array tasks.
    #[arg(long, default_value_t = 300)]
    jobs: u32,
    /// Inject only a few faults, as in `make test`.
    #[arg(long)]
    short: bool,
    /// Print the plan and exit.
    #[arg(long)]
    plan: bool,
    /// Print a JSON summary to standard output, and everything else to standard error.
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let form = if args.short { Form::Short } else { Form::Long };
    let source = match std::env::var("SOAK_SOURCE").as_deref() {
        Err(_) | Ok("" | "cli") => Source::Commands,
        Ok("rest") => Source::Rest,
        Ok(other) => {
            anstream::eprintln!("SOAK_SOURCE={other}: expected cli or rest");
            return ExitCode::FAILURE;
        }
    };
    let plan = Plan::draw(args.seed, args.jobs, form, source);
    if args.plan {
        anstream::print!("{plan}");
        return ExitCode::SUCCESS;
    }
    // Everything that was started ends with the future, whichever of the two is first.
    tokio::select! {
        outcome = soak(&args, &plan) => outcome.unwrap_or_else(|error| {
            anstream::eprintln!("{}", error.chain());
            ExitCode::FAILURE
        }),
        () = interrupted() => {
            anstream::eprintln!("\nstopping everything …");
            ExitCode::from(130)
        }
    }
}

async fn soak(args: &Args, plan: &Plan) -> Result<ExitCode, Error> {
    let started = Instant::now();
    anstream::eprintln!(
        "{} jobs; the same again: {}",
        plan.jobs,
        rerun_command(args, plan)
    );
    anstream::eprint!("{}", plan.schedule());
    let options = Options {
        keep: std::env::var("SOAK_KEEP").is_ok_and(|keep| keep == "1"),
    };
    let bar = bar();
    let outcome = run(plan, &options, |phase| show(&bar, phase)).await;
    bar.finish_and_clear();
    let outcome = outcome?;
    report(args, plan, &outcome, started.elapsed());
    if args.json {
        let summary = serde_json::json!({
            "seed": plan.seed,
            "jobs": plan.jobs,
            "seconds": started.elapsed().as_secs(),
            "slurm": outcome.slurm,
            "faults": plan.faults(),
            "given_up": outcome.given_up,
            "peak_mib": outcome.peaks,
            "not_compared": outcome.none_of,
            "verdict": outcome.verdict,
        });
        anstream::println!("{summary:#}");
    }
    Ok(if outcome.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The command that runs the same plan again.
fn rerun_command(args: &Args, plan: &Plan) -> String {
    let source = match plan.source {
        Source::Commands => "",
        Source::Rest => "SOAK_SOURCE=rest ",
    };
    let form = match plan.form {
        Form::Short => " SOAK=--short",
        Form::Long => "",
    };
    format!(
        "{source}make soak SEED={} JOBS={}{form}",
        args.seed, args.jobs
    )
}

/// Shown on a terminal only.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{elapsed} {bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

fn show(bar: &ProgressBar, phase: Phase) {
    match phase {
        Phase::Starting => bar.set_message("a cluster and the services start"),
        Phase::Playing { done, of } => {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
            bar.set_message("things to do");
        }
        Phase::Ending => bar.set_message("jobs end"),
        Phase::Comparing { left } => bar.set_message(format!("{left} differences left")),
    }
}

fn report(args: &Args, plan: &Plan, outcome: &Outcome, took: Duration) {
    let verdict = &outcome.verdict;
    for (kind, count) in plan.faults() {
        anstream::eprintln!("{count:7}  fault: {kind}");
    }
    for (kind, count) in &verdict.compared {
        anstream::eprintln!("{count:7}  {kind}");
    }
    for kind in &outcome.none_of {
        anstream::eprintln!("{:7}  {kind}: none was compared", 0);
    }
    for kind in &outcome.left_out {
        anstream::eprintln!(
            "{:7}  {kind}: only polls show it, and over slurmrestd they are too far apart to predict it",
            "-"
        );
    }
    for line in &verdict.unjudged {
        anstream::eprintln!("not judged: {line}");
    }
    for line in verdict.differences() {
        anstream::eprintln!("{line}");
    }
    if outcome.given_up > 0 {
        let given_up = outcome.given_up;
        anstream::eprintln!(
            "{given_up} things could not be done as planned; what they led to was compared"
        );
    }
    if let Some(folder) = &outcome.stored_folder {
        anstream::eprintln!("what was compared is in {}", folder.display());
    }
    anstream::eprintln!("Slurm {}, {:.0} s", outcome.slurm, took.as_secs_f64());
    for line in &verdict.lost {
        anstream::eprintln!("accounting lost {line}");
    }
    if !verdict.lost.is_empty() {
        let lost = verdict.lost.len();
        anstream::eprintln!(
            "Slurm's accounting lost {lost} ends for good: compared with what slurmctld showed, but for exit codes and use"
        );
    }
    if !verdict.open.is_empty() {
        let open = verdict.open.len();
        anstream::eprintln!("of {open} runs accounting has no end: nothing is proven about them");
    }
    if !outcome.is_clean() {
        anstream::eprintln!("again: {}", rerun_command(args, plan));
    }
    anstream::eprintln!("{}", verdict.closing_line());
}
