//! Arguments of `smesh queue`, `why`, `when` and `squeue`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use slurm_types::JobRef;

use super::Requests;

/// `smesh queue`
#[derive(Debug, Subcommand)]
pub enum Queue {
    /// Show how often the estimated starts were right
    Quality,
    /// Replay a trace of jobs through the estimator, and score its estimates
    Replay(QueueReplay),
}

/// `smesh queue replay`
#[derive(Debug, Args)]
#[command(after_help = "\
Feeds the trace through the estimator of pending-explainer in the order of its events, so that no estimate sees what comes later, and
checks this by a second replay of the first half. A job has a first estimate when it has waited for 30 s, and later ones while it waits.

TRACE is a file in the Standard Workload Format, also gzipped (https://www.cs.huji.ac.il/labs/parallel/workload/), or the output of
  sacct -aXP --format=JobID,User,Account,Partition,QOS,Submit,Eligible,Start,End,Timelimit,NNodes,NCPUS,ReqTRES,State,Restarts
or the name of a generated trace: stationary, light, overload, bursts, changing.

Exit status: 0 all goals are met; 1 a goal is missed, or the trace cannot be read; 130 interrupted.

Examples:
  smesh queue replay KTH-SP2-1996-2.1-cln.swf.gz
  smesh queue replay KTH-SP2-1996-2.1-cln.swf.gz --schedule easy --output estimates.csv
  smesh queue replay stationary --seed 7")]
pub struct QueueReplay {
    /// Trace
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Format of the file
    #[arg(long, value_enum, default_value_t = TraceFormat::Swf)]
    pub format: TraceFormat,
    /// CPUs of the machine [default: from the trace's header]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub cpus: Option<i64>,
    /// Take the trace's starts, or schedule its jobs by EASY backfilling with three priority groups
    #[arg(long, value_enum, default_value_t = Schedule::None)]
    pub schedule: Schedule,
    /// Time between two estimates of a job
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    pub every: Duration,
    /// End at this time of the trace, in its seconds
    #[arg(long, value_name = "SECONDS")]
    pub until: Option<i64>,
    /// Seed of a generated trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Jobs of a generated trace
    #[arg(long, value_name = "N", default_value_t = 12_000)]
    pub jobs: usize,
    /// CSV file for the estimates, a row each
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// Standard Workload Format
    Swf,
    /// Output of sacct
    Sacct,
}

/// Where the starts of a replay come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    /// From the trace
    None,
    /// From EASY backfilling
    Easy,
}

/// `smesh why`
#[derive(Debug, Args)]
#[command(after_help = "\
With --if it says when the job may start if its request were different. Both queues are run forward 32 times, by the estimates of
`smesh queue quality`; Slurm is not asked. `probably` means in at least 60 of 100 cases. Refused is what can never start, and a time limit
that would have ended one in ten of your last runs. The job itself is not changed.

Examples:
  smesh why 123        smesh why 123_4        smesh why 123 -M other-cluster
  smesh why 123 --history                             what was said so far, and how good the estimates were
  smesh why 123 --if --time 2h --if --partition cpu2
  smesh why 123 --if --nodes 2 --time 4h --verify     also asks Slurm, by one `sbatch --test-only` with these sizes")]
pub struct Why {
    /// Job id
    #[arg(value_name = "ID")]
    pub job: JobRef,
    /// Variants of its request
    #[command(flatten)]
    pub requests: Requests,
    /// Also ask Slurm what it would plan for the variant, once and as yourself
    #[arg(long)]
    pub verify: bool,
    /// Show what was said about its wait and when, what changed, and what became of the estimates
    #[arg(long, conflicts_with_all = ["if", "verify"])]
    pub history: bool,
}

/// `smesh when`
#[derive(Debug, Args)]
#[command(after_help = "\
Says when such a job would start if it were submitted now, behind all jobs that wait in its partition. Without --cpus, --mem and --gpus it asks for
whole nodes. Slurm is not asked and nothing is submitted. What the times mean: docs/guide/estimates.md

Examples:
  smesh when --nodes 4 --time 6h -p gpu
  smesh when --cpus 16 --mem 64G --time 1-0 -p cpu --if --time 8h --if -p short --time 4h
  smesh when --nodes 4 --time 6h -p gpu --verify      also asks Slurm, by one `sbatch --test-only`")]
pub struct When {
    /// The request, and variants of it
    #[command(flatten)]
    pub requests: Requests,
    /// Also ask Slurm what it would plan for the request, once and as yourself
    #[arg(long)]
    pub verify: bool,
}

/// `smesh squeue`
#[derive(Debug, Args)]
#[command(after_help = "\
For programs that poll squeue: a list of all jobs, which ingest reads every ingest.list_interval (off by default), answers all of them. What is printed is
what squeue prints. Answered are -h -a -o -t -u -j -p -A -n -M --me --noconvert, and all letters of --format.

The real squeue runs in its place, with unchanged arguments, for any other option, for the jobs of others (administrators see all), for a job that is not in
the list, if the list is older than 30 s, if a variable such as SQUEUE_FORMAT or SLURM_TIME_FORMAT is set, and if slurm-mesh does not answer.

A job that was submitted since the last list is missing from answers without --jobs, as in the seconds before squeue knows it.

For programs that find squeue in PATH, put a script named squeue in front of it:
  #!/bin/sh
  exec smesh squeue \"$@\"

Examples:
  smesh squeue --me
  smesh squeue -h -o '%i %t' -t all -u alice")]
pub struct Squeue {
    /// Options of squeue
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub arguments: Vec<OsString>,
}
