//! Events against 1,000 rules: the evaluation alone, on one thread, compared with decoding the same events; and the workflow-trigger as a
//! separate process that reads them from the bus, compared with a bare client that reads and acknowledges them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use async_nats::jetstream::{self, consumer};
use bytes::Bytes;
use chrono::Utc;
use event_filter::DecodedEvent;
use futures_util::{StreamExt as _, TryStreamExt as _};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType, timestamp};
use mesh_runtime::{ConfigFile, Context, Service as _, ServiceSection};
use mesh_testkit::fixtures;
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use workflow_trigger::WorkflowTriggerService;
use workflow_trigger::config::Config;
use workflow_trigger::domain::firing;
use workflow_trigger::domain::index::Rules;

use crate::Arguments;
use crate::load::server;
use crate::process::{Running, cpu_time, program, wait_until};
use crate::report::{Line, Section};
use crate::stats::Sorted;

const RULES: usize = 1_000;
const OWNERS: usize = 50;
const KINDS: [EventType; 10] = [
    EventType::JobSubmitted,
    EventType::JobStarted,
    EventType::JobCompleted,
    EventType::JobFailed,
    EventType::JobTimeout,
    EventType::JobOutOfMemory,
    EventType::JobCancelled,
    EventType::JobNodeFail,
    EventType::JobPreempted,
    EventType::JobRequeued,
];
/// Last digit of the names of jobs on which a rule fires.
const FIRES_ON: u32 = 3;
const GOAL: f64 = 10_000.0;
const GOAL_TEXT: &str = "≥ 10,000/s";
/// CPU time of a round: many ticks of its clock.
const MIN_CPU: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(600);

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let bodies: Vec<Bytes> = events(arguments.events)
        .iter()
        .map(|event| event.encode_to_vec().into())
        .collect();
    let folder = tempfile::tempdir()?;
    let of_owners = rules(folder.path(), &of_owners())?;
    let of_all = rules(folder.path(), &of_all_users())?;
    // The slow case takes as long as the other with a hundredth of the events.
    let few = &bodies[..bodies.len().div_ceil(100)];
    let (mut decoded, mut evaluated, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let expected = (0..arguments.events).filter(|number| number % 10 == FIRES_ON);
    let expected = expected.count();
    // One extra round: the first is a warm-up.
    for round in 0..=arguments.rounds {
        let (nothing, raw) = per_second(&bodies, |_| Ok(0))?;
        let (fired, ours) = per_second(&bodies, |event| evaluate(&of_owners, event))?;
        let (unwanted, slow) = per_second(few, |event| evaluate(&of_all, event))?;
        ensure!((nothing, unwanted) == (0, 0), "a rule fired on nothing");
        ensure!(fired == expected, "{fired} firings, expected {expected}");
        if round > 0 {
            decoded.push(raw);
            evaluated.push(ours);
            all.push(slow);
        }
    }
    let [decoded, evaluated, all] =
        [decoded, evaluated, all].map(|rates| Sorted::new(rates).median());
    let mut lines = vec![
        Line::value("events decoded, nothing else", "events/s of CPU", decoded),
        Line::value(
            "decoded, met with 2 of 1,000 rules, a tenth fires one",
            "events/s of CPU",
            evaluated,
        )
        .against(decoded, "decoding")
        .budget(GOAL_TEXT, evaluated >= GOAL),
        Line::value(
            "decoded, met with all of 1,000 rules, none fires",
            "events/s of CPU",
            all,
        )
        .against(decoded, "decoding"),
    ];
    lines.extend(service(folder.path(), arguments.events).await?);
    Ok(Section {
        title: "events against 1,000 rules",
        lines,
        notes: vec![format!(
            "rules with conditions of {OWNERS} owners on {} types; {} rounds of {} events on one thread; the service has its own process, and nothing fires there",
            KINDS.len(),
            arguments.rounds,
            arguments.events
        )],
    })
}

/// Ends and other events of jobs of all owners.
fn events(count: u32) -> Vec<Event> {
    let now = timestamp(Utc::now());
    (0..count)
        .map(|number| {
            let place = number as usize;
            let kind = KINDS[place / OWNERS % KINDS.len()];
            let mut job = fixtures::job(number + 1);
            job.name = format!("train-{number}");
            job.end_time = Some(now);
            let mut event = fixtures::job_event(kind, job);
            event.occurred_at = Some(now);
            if let Some(owner) = &mut event.owner {
                owner.user = format!("user{}", place % OWNERS);
            }
            event
        })
        .collect()
}

/// Twenty rules of each owner, two for each type, of which one fires on a tenth of the names.
fn of_owners() -> String {
    (0..RULES)
        .map(|place| {
            let number = place / OWNERS;
            let kind = KINDS[number % KINDS.len()];
            let end = match number < KINDS.len() {
                true => FIRES_ON.to_string(),
                false => "x".to_owned(),
            };
            rule(place, &format!("types = [\"{kind}\"]"), &end)
        })
        .collect()
}

/// Rules on every event of jobs, whosever they are. None fires.
fn of_all_users() -> String {
    let on = "types = [\"job.*\"]\nusers = [\"*\"]";
    (0..RULES).map(|place| rule(place, on, "x")).collect()
}

/// A rule for names with an end.
fn rule(place: usize, on: &str, end: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = \"rule{place}\"\nowner = \"user{}\"\n[workflow-trigger.rules.on]\n{on}\nwhen = 'job.partition == \"cpu\" and job.name is endingwith \"{end}\"'\n[workflow-trigger.rules.action]\nsubmit = \"true.sh\"\nargs = [\"{{{{ job.work_dir }}}}\", \"{{{{ job.job_id }}}}\"]\n",
        place % OWNERS
    )
}

/// Writes `mesh.toml` and the script of the rules.
fn configure(folder: &Path, nats: &str, rules: &str) -> anyhow::Result<PathBuf> {
    let scripts = folder.join("triggers.d");
    std::fs::create_dir_all(&scripts)?;
    std::fs::write(scripts.join("true.sh"), "#!/bin/sh\ntrue\n")?;
    let path = folder.join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"{}\"\ndata_dir = {folder:?}\n[mesh.nats]\nurl = {nats:?}\n{rules}[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n",
        fixtures::CLUSTER
    );
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The rules as the service has them.
fn rules(folder: &Path, text: &str) -> anyhow::Result<Rules> {
    let path = configure(folder, "nats://127.0.0.1:1", text)?;
    let sections = [ServiceSection::of::<WorkflowTriggerService>()];
    let file = ConfigFile::load(&sections, Some(&path))?;
    let context = Context::new(file, CancellationToken::new())?;
    let config: Config = context.section(WorkflowTriggerService::NAME)?;
    let rules = config.rules(&context.mesh.cluster, |path| context.relative(path));
    let rules = rules.map_err(|faults| anyhow::anyhow!("{faults:?}"))?;
    let rules = rules.with([]);
    ensure!(rules.all().count() == RULES, "not all rules");
    Ok(rules)
}

/// Decodes events and lets `work` meet them. Returns how often it fired, and events per second of CPU.
fn per_second(
    bodies: &[Bytes],
    work: impl Fn(&DecodedEvent) -> anyhow::Result<usize>,
) -> anyhow::Result<(usize, f64)> {
    let before = cpu_time(std::process::id())?;
    let (mut events, mut fired) = (0, 0);
    loop {
        for body in bodies {
            let event = DecodedEvent::from(Event::from_bytes(body)?);
            fired += work(&event)?;
        }
        events += bodies.len();
        let took = cpu_time(std::process::id())?.saturating_sub(before);
        if took >= MIN_CPU {
            let rounds = events / bodies.len();
            let rate = f64::from(u32::try_from(events)?) / took.as_secs_f64();
            return Ok((fired / rounds, rate));
        }
    }
}

/// What the service does with an event before it stores anything. Returns the number of firings.
fn evaluate(rules: &Rules, event: &DecodedEvent) -> anyhow::Result<usize> {
    let kind = event.kind()?;
    let fired = rules
        .matching(kind, event)
        .filter_map(|rule| firing::of_event(rule, kind, event, String::new()));
    let mut count = 0;
    for firing in fired {
        firing.action.map_err(anyhow::Error::msg)?;
        count += 1;
    }
    Ok(count)
}

/// The service reads events of its rules' owners on which no rule fires, by the ends of their names: nothing is stored.
async fn service(folder: &Path, count: u32) -> anyhow::Result<[Line; 2]> {
    let (nats, bus) = server().await?;
    let jetstream = jetstream::new(async_nats::connect(nats.url()).await?);
    let path = configure(folder, &nats.url(), &of_owners())?;
    let mut process = Running::start(
        Command::new(program("workflow-trigger")?)
            .arg("--config")
            .arg(&path),
        &folder.join("log"),
    )?;
    let pid = process.pid();
    let stream = jetstream.get_stream(SLURM_EVENTS).await?;
    let mut unread = async |description: &str, events: u64| {
        wait_until(description, PATIENCE, async || {
            process.check()?;
            // It declares its consumer when it is ready.
            let info = stream.consumer_info(WorkflowTriggerService::NAME).await;
            Ok(info.is_ok_and(|info| {
                info.num_pending == 0
                    && info.num_ack_pending == 0
                    && info.ack_floor.stream_sequence >= events
            }))
        })
        .await
    };
    // A first event, after which everything is open.
    let mut events = events(count + 1);
    for event in &mut events {
        if let Some(Payload::Job(payload)) = &mut event.payload
            && let Some(job) = &mut payload.job
        {
            job.name.push('-');
        }
    }
    let rest = events.split_off(1);
    let shutdown = CancellationToken::new();
    bus.publish_all(events, &shutdown).await?;
    unread("the first event is read", 1).await?;
    let before = cpu_time(pid)?;
    bus.publish_all(rest, &shutdown).await?;
    unread("all events are read", u64::from(count) + 1).await?;
    let ours = cpu_time(pid)?.saturating_sub(before);
    process.stop()?;
    let raw = raw(&stream, count).await?;
    let rate = |cpu: Duration| f64::from(count) / cpu.as_secs_f64();
    let (ours, raw) = (rate(ours), rate(raw));
    Ok([
        Line::value("events read by a bare client", "events/s of CPU", raw),
        Line::value(
            "workflow-trigger reads and evaluates the same, none fires",
            "events/s of CPU",
            ours,
        )
        .against(raw, "bare client")
        .budget(GOAL_TEXT, ours >= GOAL),
    ])
}

/// CPU time of a client that reads and acknowledges events one by one.
async fn raw(stream: &jetstream::stream::Stream, count: u32) -> anyhow::Result<Duration> {
    let config = consumer::pull::Config {
        ack_policy: consumer::AckPolicy::Explicit,
        ..consumer::pull::Config::default()
    };
    let messages = stream.create_consumer(config).await?.messages().await?;
    let before = cpu_time(std::process::id())?;
    let mut messages = messages.take(usize::try_from(count)?);
    while let Some(message) = messages.try_next().await? {
        Event::from_bytes(&message.payload)?;
        message.ack().await.map_err(anyhow::Error::from_boxed)?;
    }
    Ok(cpu_time(std::process::id())?.saturating_sub(before))
}
