//! Ingest as a separate process with a long queue: cost of a poll, publish rate, memory, and the events published for jobs whose
//! reasons change continually. Slurm's answers are simulated ([`LongQueue`]), everything else is real.

use std::process::Command;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, consumer};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_testkit::fixtures;
use mesh_testkit::long_queue::{LongQueue, Phase};

use crate::Arguments;
use crate::load::server;
use crate::process::{Memory, Running, cpu_time, program, wait_until};
use crate::report::{Line, Section};

/// Maximum number of unacknowledged messages, as in ingest.
const WINDOW: usize = 256;
/// Messages published once more by the bare client.
const RAW: usize = 10_000;
/// Measured polls of an unchanged queue.
const POLLS: usize = 5;
/// How long the reasons change.
const FLAPPING: Duration = Duration::from_secs(60);
/// Memory limit of ingest, in MiB, when every job of the longest queue changes at once.
const MAX_MEMORY_MIB: f64 = 150.0;
/// Deadline for slow operations on a small machine.
const PATIENCE: Duration = Duration::from_secs(600);

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let mut section = Section {
        title: "ingest on a long queue",
        lines: Vec::new(),
        notes: vec![format!(
            "Slurm's answers come from files; per second of CPU of ingest alone; reasons flap between two classes at every poll for {} s",
            FLAPPING.as_secs()
        )],
    };
    for jobs in [arguments.jobs / 10, arguments.jobs] {
        one_queue(&mut section, jobs.max(100)).await?;
    }
    Ok(section)
}

/// Measures one length of the queue.
async fn one_queue(section: &mut Section, jobs: u32) -> anyhow::Result<()> {
    let (nats, _) = server().await?;
    let jetstream = jetstream::new(async_nats::connect(nats.url()).await?);
    let folder = tempfile::tempdir()?;
    let slurm = LongQueue::new(folder.path());
    slurm.show("waiting", jobs, |_| Phase::Pending("Resources"));
    let path = folder.path().join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"{}\"\ndata_dir = {:?}\n[mesh.nats]\nurl = \"{}\"\n[slurm]\nconf = \"/dev/null\"\nbin_dir = {:?}\n\
         command_timeout = \"60s\"\n[ingest]\naccounting = false\npoll_interval = \"1s\"\nmax_poll_interval = \"1s\"\n",
        fixtures::CLUSTER,
        folder.path(),
        nats.url(),
        slurm.bin_dir(),
    );
    std::fs::write(&path, text)?;
    let mut ingest = Running::start(
        Command::new(program("ingest")?).arg("--config").arg(&path),
        &folder.path().join("log"),
    )?;
    let pid = ingest.pid();
    let published = async || {
        anyhow::Ok(
            jetstream
                .get_stream(SLURM_EVENTS)
                .await?
                .info()
                .await?
                .state
                .messages,
        )
    };
    let mut wait_published = async |description: &str, events: u64| {
        wait_until(description, PATIENCE, async || {
            ingest.check()?;
            Ok(published().await? >= events)
        })
        .await
    };
    let of = |description: &str| format!("{jobs} jobs: {description}");
    let per_cpu = |cpu: Duration, polls: usize| {
        f64::from(jobs) * f64::from(u32::try_from(polls).unwrap_or(u32::MAX)) / cpu.as_secs_f64()
    };

    // The first poll publishes the live jobs: one event per job.
    wait_published("the first poll is published", u64::from(jobs)).await?;
    wait_polls(&slurm, 2).await?;

    // No change.
    let (polls, cpu) = (slurm.polls(), cpu_time(pid)?);
    wait_polls(&slurm, POLLS).await?;
    let cpu = cpu_time(pid)?.saturating_sub(cpu);
    let polls = slurm.polls() - polls;
    section.lines.push(Line::value(
        of("rows compared, nothing new"),
        "jobs/s of CPU",
        per_cpu(cpu, polls),
    ));
    section.lines.push(Line::value(
        of("ingest holds"),
        "MiB",
        Memory::of(pid)?.resident,
    ));

    // All jobs start.
    let (before, cpu) = (published().await?, cpu_time(pid)?);
    slurm.show("running", jobs, |_| Phase::Running);
    wait_published("every start is published", before + u64::from(jobs)).await?;
    let cpu = cpu_time(pid)?.saturating_sub(cpu);
    section.lines.push(Line::value(
        of("changed, read, decided, published"),
        "jobs/s of CPU",
        per_cpu(cpu, 1),
    ));
    let rate = stored_rate(&jetstream, before + 1, before + u64::from(jobs)).await?;
    let raw = raw(&jetstream, before).await?;
    section.lines.push(
        Line::value(
            of("published, first to last event on disk"),
            "events/s",
            rate,
        )
        .against(raw, "raw publish of the same, timed alike")
        .budget("≥ 0.5", rate / raw >= 0.5),
    );
    let peak = Memory::of(pid)?.peak;
    section.lines.push(
        Line::value(of("ingest held at most"), "MiB", peak)
            .budget("≤ 150 MiB", peak <= MAX_MEMORY_MIB),
    );

    // Half of them become pending again, with a reason that changes with every poll.
    let flapping = jobs / 2;
    let phase = |reason: &'static str| {
        move |id: u32| {
            if id <= flapping {
                Phase::Pending(reason)
            } else {
                Phase::Running
            }
        }
    };
    slurm.show("calm", jobs, phase("Resources"));
    wait_polls(&slurm, 4).await?;
    slurm.flap("flapping", jobs, phase("QOSMaxJobsPerUserLimit"));
    let (before, polls) = (published().await?, slurm.polls());
    tokio::time::sleep(FLAPPING).await;
    ingest.check()?;
    let events = published().await? - before;
    let polls = slurm.polls() - polls;
    section.lines.push(
        Line::value(
            format!("{flapping} pending jobs flap, {polls} polls: events published"),
            "events/min",
            f64::from(u32::try_from(events)?),
        )
        .budget("0: no two polls agree", events == 0),
    );
    ingest.stop()
}

async fn wait_polls(slurm: &LongQueue, more: usize) -> anyhow::Result<()> {
    let target = slurm.polls() + more;
    wait_until("polls", PATIENCE, async || Ok(slurm.polls() >= target)).await
}

/// Events per second between two sequence numbers, by the times at which nats-server stored them. This is comparable for all
/// publishers.
async fn stored_rate(jetstream: &jetstream::Context, first: u64, last: u64) -> anyhow::Result<f64> {
    let stream = jetstream.get_stream(SLURM_EVENTS).await?;
    let took = stream.get_raw_message(last).await?.time - stream.get_raw_message(first).await?.time;
    Ok(f64::from(u32::try_from(last - first)?) / took.as_seconds_f64())
}

/// The same rate for the same messages, republished by the bare client with new ids.
async fn raw(jetstream: &jetstream::Context, after: u64) -> anyhow::Result<f64> {
    let stream = jetstream.get_stream(SLURM_EVENTS).await?;
    let config = consumer::pull::OrderedConfig {
        deliver_policy: consumer::DeliverPolicy::ByStartSequence {
            start_sequence: after + 1,
        },
        ..consumer::pull::OrderedConfig::default()
    };
    let messages = stream.create_consumer(config).await?.messages().await?;
    let info = jetstream
        .get_stream(SLURM_EVENTS)
        .await?
        .info()
        .await?
        .state
        .messages;
    let count = usize::try_from(info - after)?.min(RAW);
    let messages: Vec<_> = messages.take(count).try_collect().await?;
    let messages: Vec<(String, HeaderMap, _)> = messages
        .into_iter()
        .enumerate()
        .map(|(n, message)| {
            let mut headers = message.headers.clone().unwrap_or_default();
            headers.insert(async_nats::header::NATS_MESSAGE_ID, format!("raw-{n}"));
            (
                message.subject.to_string(),
                headers,
                message.payload.clone(),
            )
        })
        .collect();
    let first = info + 1;
    let last = info + u64::try_from(messages.len())?;
    stream::iter(messages)
        .map(|(subject, headers, body)| async move {
            jetstream
                .publish_with_headers(subject, headers, body)
                .await?
                .await?;
            anyhow::Ok(())
        })
        .buffer_unordered(WINDOW)
        .try_collect::<()>()
        .await?;
    stored_rate(jetstream, first, last).await
}
