//! The benchmarks: cost of each part, as a ratio to the raw limit measured in the same run on the same machine.
//!
//! - [`hook`]: a call of `mesh-hook`, compared with `/bin/true` and with bash and curl.
//! - [`webhook`]: from the bus to a receiver through the real dispatcher, compared with the same client posting directly.
//! - [`webhook::rate`]: maximum rate of deliveries to a hundred receivers, compared with the same client posting the same bodies.
//! - [`webhook::trouble`]: effect on healthy receivers of others that hang, drip and refuse, and of a backlog of 100,000 deliveries.
//! - [`webhook::endpoints`]: cost of 1,000 endpoints.
//! - [`memory`]: memory of `smesh up` and its nats-server.
//! - [`publish`]: `publish_all`, compared with a raw pipelined publish of the same messages.
//! - [`queue`]: ingest with a queue of 10,000 and 100,000 jobs.
//! - [`catch_up`]: ingest with a day that only accounting knows.
//! - [`controller`]: load on slurmctld with and without `smesh up`.
//! - [`pollers`]: pollers of `squeue` against one slurmctld, with and without `smesh squeue`.
//! - [`triggers`]: events against 1,000 rules, compared with decoding and with a bare reader of the same events.
//! - [`submissions`]: events to jobs on a real Slurm, compared with sbatch.
//! - [`ledger`]: durable appends, compared with a raw insert of the same rows, and a single fact, compared with a commit of one row.
//! - [`ledger::past`]: a ledger with a million events: verifying, compared with a bare read of its rows; queries by every filter; an export.
//!
//! `make bench` builds the programs and runs this. `benches/README.md` explains the results. Nothing here asserts a time, because
//! results of a shared machine need interpretation. A lost or duplicated event is an error with exit status 1.

#![allow(clippy::print_stdout, reason = "the report is the program's output")]

mod catch_up;
mod controller;
mod hook;
mod ledger;
mod load;
mod memory;
mod pollers;
mod process;
mod publish;
mod queue;
mod report;
mod stats;
mod submissions;
mod triggers;
mod webhook;

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};

use report::{Report, Section};

#[derive(Parser)]
#[command(about = "Runs the benchmarks, and prints ratios to the raw limits of the same run")]
pub(crate) struct Arguments {
    /// Also write the results as JSON [default file: benches/results/<today>.json].
    #[arg(long, value_name = "FILE")]
    json: Option<Option<PathBuf>>,
    /// Run only this benchmark; repeatable.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Duration of the webhook load in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Rate of the webhook load in events per second.
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// Number of events per round of deliveries to a hundred endpoints.
    #[arg(long, default_value_t = 300)]
    fanned: u32,
    /// Number of waiting deliveries while others are delivered.
    #[arg(long, default_value_t = 100_000)]
    waiting: u32,
    /// Number of endpoints whose cost is measured.
    #[arg(long, default_value_t = 1_000)]
    endpoints: usize,
    /// Number of NATS servers for these endpoints, and of replicas of the streams: 1, 3 or 5.
    #[arg(long, default_value_t = 1)]
    servers: usize,
    /// Number of calls of each hook program.
    #[arg(long, default_value_t = 200)]
    calls: u32,
    /// Number of events per round of publishing, of appending and of evaluating rules.
    #[arg(long, default_value_t = 10_000)]
    events: u32,
    /// Number of jobs in the long queue. A queue with a tenth of them is measured, too.
    #[arg(long, default_value_t = 100_000)]
    jobs: u32,
    /// Number of ended runs to catch up with.
    #[arg(long, default_value_t = 40_000)]
    ended: u32,
    /// Number of pollers of squeue.
    #[arg(long, default_value_t = 1_000)]
    pollers: u32,
    /// Number of facts appended one by one.
    #[arg(long, default_value_t = 1_000)]
    commits: u32,
    /// Number of events in the ledger that is verified, queried and exported.
    #[arg(long, default_value_t = 1_000_000)]
    history: u32,
    /// Store that ledger only in this database [default: measure both].
    #[arg(long, value_enum)]
    database: Option<ledger::database::Kind>,
    /// Use this ledger (like `ledger.db.url`) and leave it there. It is filled if it has no entries.
    #[arg(long, requires = "database")]
    ledger: Option<String>,
    /// Do only this with `--ledger`, and print what it took: the benchmark starts itself with it, to choose the cores.
    #[arg(long, hide = true, value_enum, requires = "ledger")]
    alone: Option<ledger::verify::Work>,
    /// Number of rounds of publishing, appending and verifying. The median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Hook,
    Webhook,
    WebhookRate,
    WebhookTrouble,
    WebhookEndpoints,
    Memory,
    Publish,
    Ledger,
    /// Only the first step of `history`.
    Verify,
    History,
    Queue,
    CatchUp,
    Controller,
    Pollers,
    Triggers,
    Submissions,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    mesh_runtime::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if let (Some(work), Some(url)) = (arguments.alone, &arguments.ledger) {
        return runtime.block_on(ledger::verify::alone(work, url));
    }
    let mut report = Report::new()?;
    let failed = runtime.block_on(measure(&arguments, &mut report));
    println!("{}", report.table());
    if let Some(file) = &arguments.json {
        let file = file.clone().unwrap_or_else(|| report.default_file());
        report
            .write(&file)
            .with_context(|| format!("write {}", file.display()))?;
        println!("written: {}", file.display());
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Adds the sections to the report and returns the names of the benchmarks that failed: the others are still measured.
async fn measure(arguments: &Arguments, report: &mut Report) -> Vec<String> {
    let mut failed = Vec::new();
    for part in Part::value_variants() {
        if !arguments.selects(*part) {
            continue;
        }
        match part.measure(arguments).await {
            Ok(sections) => {
                for section in sections {
                    eprintln_progress(&format!("measured: {}", section.title));
                    report.sections.push(section);
                }
            }
            Err(error) => {
                let name = part
                    .to_possible_value()
                    .map(|value| value.get_name().to_owned());
                let name = name.unwrap_or_default();
                eprintln_progress(&format!("{name} failed: {error:?}"));
                failed.push(name);
            }
        }
    }
    failed
}

impl Arguments {
    /// `verify` is the first step of `history`, so it is measured alone only if it is asked for alone.
    fn selects(&self, part: Part) -> bool {
        match part {
            Part::Verify => {
                self.only.contains(&Part::Verify) && !self.only.contains(&Part::History)
            }
            _ => self.only.is_empty() || self.only.contains(&part),
        }
    }
}

impl Part {
    async fn measure(self, arguments: &Arguments) -> anyhow::Result<Vec<Section>> {
        let section = match self {
            Self::Hook => hook::measure(arguments).await?,
            Self::Webhook => webhook::measure(arguments).await?,
            Self::WebhookRate => webhook::rate::measure(arguments).await?,
            Self::WebhookTrouble => webhook::trouble::measure(arguments).await?,
            Self::WebhookEndpoints => webhook::endpoints::measure(arguments).await?,
            Self::Memory => memory::measure(arguments).await?,
            Self::Publish => publish::measure(arguments).await?,
            Self::Ledger => return ledger::measure(arguments).await,
            Self::Verify => return ledger::past::measure(arguments, false).await,
            Self::History => return ledger::past::measure(arguments, true).await,
            Self::Queue => queue::measure(arguments).await?,
            Self::CatchUp => catch_up::measure(arguments).await?,
            Self::Controller => controller::measure(arguments).await?,
            Self::Pollers => pollers::measure(arguments).await?,
            Self::Triggers => triggers::measure(arguments).await?,
            Self::Submissions => submissions::measure(arguments).await?,
        };
        Ok(vec![section])
    }
}

#[allow(
    clippy::print_stderr,
    reason = "progress, besides the report on standard output"
)]
fn eprintln_progress(text: &str) {
    eprintln!("{text}");
}
