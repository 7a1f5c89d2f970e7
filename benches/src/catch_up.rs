//! Ingest as a separate process, reconciling a day that only accounting knows: its speed and memory. The output of `sacct` is
//! generated, everything else is real.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use async_nats::jetstream;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use futures_util::TryStreamExt as _;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_testkit::fixtures;
use mesh_testkit::long_queue::{LongQueue, Phase};

use crate::Arguments;
use crate::load::server;
use crate::process::{Memory, Running, cpu_time, program};
use crate::report::{Line, Section};

/// Live jobs, so that the queue is not empty.
const LIVING: u32 = 10;
/// Time since the end of the day, so that none of its jobs is still active.
const AGO: TimeDelta = TimeDelta::minutes(30);
/// Poll interval for published events.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Without a new event for this long, none is expected any more.
const PATIENCE: Duration = Duration::from_secs(120);
/// Events published for each run.
const EACH: [&str; 4] = ["submitted", "started", "completed", "updated"];

/// `sacct` for a day: job n of `jobs` ended at `base` + n × 86,400 / `jobs`, after waiting a minute and running for two. Queried by
/// time, it prints the jobs alive then. Queried by job ids, it prints those, with a step if usage is requested. It prints the
/// requested columns.
const SACCT: &str = r#"first=100000
while [ $# -gt 0 ]; do
  case "$1" in
  --delimiter=*) delimiter=${1#*=} ;;
  --format=*) format=${1#*=} ;;
  -S) start=$(date -u -d "$2" +%s); shift ;;
  -E) end=$(date -u -d "$2" +%s); shift ;;
  -j) list=$2; shift ;;
  esac
  shift
done
exec awk -v jobs="$jobs" -v base="$base" -v first="$first" -v d="$delimiter" -v format="$format" -v start="$start" -v end="$end" -v list="$list" '
function row(n, step,   i, out) {
  v["JobIDRaw"] = (first + n) step; v["JobID"] = v["JobIDRaw"]; v["DBIndex"] = n
  v["End"] = base + int(n * 86400 / jobs); v["Start"] = v["End"] - 120; v["Submit"] = v["Eligible"] = v["Start"] - 60
  v["JobName"] = step == "" ? "train-" n : "batch"; v["NTasks"] = step == "" ? "" : 1; v["MaxRSS"] = step == "" ? "" : 71139328
  out = v[name[1]]
  for (i = 2; i <= columns; i++) out = out d v[name[i]]
  print out
}
BEGIN {
  columns = split(format, name, ",")
  v["Cluster"] = "bench"; v["User"] = "alice"; v["UID"] = 20001; v["Group"] = "alice"; v["Account"] = "physics"; v["Partition"] = "cpu"
  v["QOS"] = "normal"; v["State"] = "COMPLETED"; v["ExitCode"] = v["DerivedExitCode"] = "0:0"; v["Reason"] = "None"
  v["ElapsedRaw"] = 120; v["Suspended"] = "00:00:00"; v["TimelimitRaw"] = 10; v["Timelimit"] = "00:10:00"; v["NNodes"] = 1; v["NodeList"] = "n1"
  v["ReqTRES"] = v["AllocTRES"] = "billing=1,cpu=1,mem=100M,node=1"; v["Priority"] = 1010; v["Flags"] = "SchedMain"
  v["WorkDir"] = "/home/alice/experiments/llm"; v["TotalCPU"] = v["UserCPU"] = "01:57.250"; v["SystemCPU"] = "00:00:00"
  v["TRESUsageInMax"] = v["TRESUsageInTot"] = "cpu=00:01:57,mem=71139328"; v["MaxRSSNode"] = "n1"; v["MaxRSSTask"] = 0
  if (list != "") {
    for (i = split(list, id, ","); i > 0; i--)
      if (id[i] > first && id[i] <= first + jobs) { row(id[i] - first, ""); if (format ~ /MaxRSS/) row(id[i] - first, ".batch") }
  } else {
    n = int((start - base) * jobs / 86400); last = int((end + 180 - base) * jobs / 86400)
    for (n = n < 1 ? 1 : n; n <= last && n <= jobs; n++) row(n, "")
  }
}'
"#;

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let jobs = arguments.ended;
    let (nats, _) = server().await?;
    let jetstream = jetstream::new(async_nats::connect(nats.url()).await?);
    let folder = tempfile::tempdir()?;
    let slurm = LongQueue::new(folder.path());
    slurm.show("living", LIVING, |_| Phase::Running);
    let began = Utc::now() - AGO - TimeDelta::days(1);
    print_accounting(slurm.bin_dir(), jobs, began)?;
    let path = folder.path().join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"{}\"\ndata_dir = {:?}\n[mesh.nats]\nurl = \"{}\"\n[slurm]\nconf = \"/dev/null\"\nbin_dir = {:?}\n\
         [ingest]\nhistory_since = \"{}\"\n",
        fixtures::CLUSTER,
        folder.path(),
        nats.url(),
        slurm.bin_dir(),
        began.to_rfc3339_opts(SecondsFormat::Secs, true),
    );
    std::fs::write(&path, text)?;
    let start = Instant::now();
    let mut ingest = Running::start(
        Command::new(program("ingest")?).arg("--config").arg(&path),
        &folder.path().join("log"),
    )?;
    let pid = ingest.pid();

    let (mut published, mut news) = ([0; EACH.len()], Instant::now());
    // Peak memory when half of the events are published, and at the end. The difference shows growth with the length of the day.
    let mut half = None;
    while published.iter().any(|published| *published < jobs) {
        ensure!(
            news.elapsed() < PATIENCE,
            "nothing new in {PATIENCE:?}, {published:?} of {jobs} published: {}",
            std::fs::read_to_string(folder.path().join("log"))?
        );
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        ingest.check()?;
        let now = count(&jetstream).await?;
        if now != published {
            (published, news) = (now, Instant::now());
        }
        if half.is_none() && published.iter().all(|published| *published >= jobs / 2) {
            half = Some(Memory::of(pid)?.peak);
        }
    }
    let took = start.elapsed();
    let (memory, cpu) = (Memory::of(pid)?, cpu_time(pid)?);
    // Duplicates would appear within this time.
    let retry_after = PROGRESS_INTERVAL * 5;
    tokio::time::sleep(retry_after).await;
    let published = count(&jetstream).await?;
    ensure!(
        published == [jobs; EACH.len()],
        "{published:?} of {jobs} published"
    );
    ingest.stop()?;
    let per_second = |time: Duration| f64::from(jobs) / time.as_secs_f64();
    Ok(Section {
        title: "ingest catches up with a day",
        lines: vec![
            Line::value(
                format!("{jobs} ended runs, published with their usage"),
                "runs/s",
                per_second(took),
            ),
            Line::value("the same", "runs/s of CPU", per_second(cpu)),
            Line::value(
                "ingest held at most, in the first half",
                "MiB",
                half.unwrap_or(memory.peak),
            ),
            Line::value("ingest held at most", "MiB", memory.peak),
        ],
        notes: vec![format!(
            "accounting's answers are printed; {} events per run, each there once; what runs used is asked about 500 at once",
            EACH.len(),
        )],
    })
}

/// Adds an accounting with this day to the folder of commands.
fn print_accounting(folder: &Path, jobs: u32, began: DateTime<Utc>) -> anyhow::Result<()> {
    let day = format!(
        "#!/bin/sh\njobs={jobs}\nbase={}\n{SACCT}",
        began.timestamp()
    );
    let no_users = "#!/bin/sh\necho 'sacctmgr: error: not in this bench' >&2\nexit 1\n";
    for (name, script) in [("sacct", day.as_str()), ("sacctmgr", no_users)] {
        let path = folder.join(name);
        std::fs::write(&path, script)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Number of published events of each type.
async fn count(jetstream: &jetstream::Context) -> anyhow::Result<[u32; EACH.len()]> {
    let stream = jetstream.get_stream(SLURM_EVENTS).await?;
    let mut counts = [0; EACH.len()];
    for (count, event) in counts.iter_mut().zip(EACH) {
        let subjects: Vec<(String, usize)> = stream
            .info_with_subjects(format!("slurm.*.job.{event}.>"))
            .await?
            .try_collect()
            .await?;
        *count = u32::try_from(
            subjects
                .iter()
                .map(|(_, published)| published)
                .sum::<usize>(),
        )?;
    }
    Ok(counts)
}
