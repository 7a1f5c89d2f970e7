//! Cost of many endpoints: memory of the dispatcher and of nats-server, idle CPU time, and duration of a start.

use std::time::{Duration, Instant};

use mesh_events::Event;
use tokio_util::sync::CancellationToken;

use super::world::{Kind, World};
use crate::Arguments;
use crate::load::event;
use crate::process::{Memory, cpu_time};
use crate::report::{Line, Section};
use crate::stats::Sorted;

/// Events to every endpoint.
const EVENTS: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause after the start, in which every endpoint looks once for what is due.
const SETTLE: Duration = Duration::from_secs(15);
/// Duration of the idle measurement.
const IDLE: Duration = Duration::from_secs(15);

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let count = arguments.endpoints;
    let servers = arguments.servers;
    let one = World::start_on(servers, &[Kind::Healthy], |_| "").await?;
    let nats_of_one = one.nats_memory()?;
    let of_one = Memory::of(one.dispatcher.pid())?;
    drop(one);

    let start = Instant::now();
    let mut world = World::start_on(
        servers,
        &vec![Kind::Healthy; count],
        |_| "types = [\"job.*\"]",
    )
    .await?;
    let first_start = start.elapsed();
    tokio::time::sleep(SETTLE).await;
    let before = (world.nats_cpu()?, cpu_time(world.dispatcher.pid())?);
    tokio::time::sleep(IDLE).await;
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / IDLE.as_secs_f64();
    let nats_cpu = percent(world.nats_cpu()? - before.0);
    let cpu = percent(cpu_time(world.dispatcher.pid())? - before.1);
    let (nats_idle, idle) = (world.nats_memory()?, Memory::of(world.dispatcher.pid())?);

    let mut took = Vec::new();
    for n in 1..=EVENTS {
        let start = Instant::now();
        publish(&world, &event(n)).await?;
        world.receivers.wait_for(count, PATIENCE).await?;
        took.push(start.elapsed());
        world.receivers.take()?;
    }
    let took = Sorted::milliseconds(took);
    world
        .wait_outcomes(u64::from(EVENTS) * count as u64)
        .await?;
    let (nats_loaded, loaded) = (world.nats_memory()?, Memory::of(world.dispatcher.pid())?);

    world.stop().await?;
    let event = event(EVENTS + 1);
    publish(&world, &event).await?;
    let start = Instant::now();
    world.restart()?;
    world.receivers.wait_for(count, PATIENCE).await?;
    let next_start = start.elapsed();
    world.receivers.take()?;
    world.stop().await?;

    let mib = |description: &str, memory: f64| Line::value(description, "MiB", memory);
    Ok(Section {
        title: "many endpoints",
        lines: vec![
            mib("webhook-dispatcher, one endpoint", of_one.resident),
            mib("webhook-dispatcher, all", idle.resident).against(of_one.resident, "one"),
            mib("webhook-dispatcher, after events to all", loaded.resident),
            mib("nats-server, one endpoint", nats_of_one),
            mib("nats-server, all", nats_idle).against(nats_of_one, "one"),
            mib("nats-server, after events to all", nats_loaded),
            Line::value("webhook-dispatcher's CPU, idle", "%", cpu),
            Line::value("nats-server's CPU, idle", "%", nats_cpu),
            Line::value(
                "first start: until every endpoint has its cursor",
                "s",
                first_start.as_secs_f64(),
            ),
            Line::value(
                "next start: until every endpoint has the events of the stop",
                "s",
                next_start.as_secs_f64(),
            ),
            Line::times("an event → received by all", &took),
        ],
        notes: vec![format!(
            "{count} endpoints; {servers} nats-server, each with every stream; {EVENTS} events to each; none lost, none twice"
        )],
    })
}

async fn publish(world: &World, event: &Event) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    world.bus.publish_until_done(event, &shutdown).await?;
    Ok(())
}
