//! From the bus to the receiver through the real dispatcher in a separate process, compared with the same HTTP client posting the same
//! bodies directly at the same rate.

pub mod endpoints;
pub mod rate;
pub mod trouble;
mod world;

use std::process::Command;
use std::time::{Duration, Instant};

use mesh_events::cloudevents;
use mesh_testkit::fixtures;
use tokio::task::JoinSet;

use crate::Arguments;
use crate::load::{Receiver, at_rate, deliver, event, server};
use crate::process::{Memory, Running, program, wait_until};
use crate::report::{Line, Section};
use crate::stats::Sorted;

/// Seconds of the same load before the measurement, for opening connections and filling caches.
const WARM_UP: u32 = 2;

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let (rate, seconds) = (arguments.rate, arguments.seconds);
    let receiver = Receiver::start().await?;
    direct(&receiver, rate, WARM_UP).await?;
    let raw = direct(&receiver, rate, seconds).await?;

    let (nats, bus) = server().await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"{}\"\ndata_dir = {:?}\n[mesh.nats]\nurl = \"{}\"\n{}",
        fixtures::CLUSTER,
        folder.path(),
        nats.url(),
        receiver.endpoint()
    );
    mesh_testkit::write_private(&path, text);
    let mut dispatcher = Running::start(
        Command::new(program("webhook-dispatcher")?)
            .arg("--config")
            .arg(&path),
        &folder.path().join("log"),
    )?;
    wait_until(
        "the endpoint's position",
        Duration::from_secs(20),
        async || {
            dispatcher.check()?;
            Ok(world::positions(folder.path()).await == 1)
        },
    )
    .await?;
    let idle = Memory::of(dispatcher.pid())?;
    deliver(&bus, &receiver, 0, rate, WARM_UP).await?.check()?;
    let through = deliver(&bus, &receiver, rate * WARM_UP, rate, seconds).await?;
    let loaded = Memory::of(dispatcher.pid())?;
    dispatcher.stop()?;
    through.check()?;

    let (p50, p99) = (through.received.median(), through.received.p99());
    Ok(Section {
        title: "event on the bus → POST received",
        lines: vec![
            Line::times("POST by the same client, directly", &raw),
            Line::times("publish → on disk in JetStream", &through.stored),
            Line::times("publish → signed POST received", &through.received)
                .against(raw.median(), "direct POST")
                .budget("p50 ≤ 20, p99 ≤ 100 ms", p50 <= 20.0 && p99 <= 100.0),
            Line::value("webhook-dispatcher, idle", "MiB", idle.resident)
                .budget("≤ 30 MiB", idle.resident <= 30.0),
            Line::value(
                "webhook-dispatcher, most during the load",
                "MiB",
                loaded.peak,
            )
            .budget_if(rate >= 5_000, "≤ 100 MiB at 5,000/s", loaded.peak <= 100.0),
        ],
        notes: vec![format!(
            "{} events at {rate}/s, {} lost, {} twice; dispatcher, nats-server, receiver and load share the machine",
            through.events, through.lost, through.twice
        )],
    })
}

/// The receiver's times without the dispatcher.
async fn direct(receiver: &Receiver, rate: u32, seconds: u32) -> anyhow::Result<Sorted> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut posting: JoinSet<anyhow::Result<(String, Instant)>> = JoinSet::new();
    let bodies: Vec<(String, String)> = (0..rate * seconds)
        .map(|n| {
            let event = event(n);
            let body = cloudevents::to_json(&event)?.to_string();
            Ok((event.id, body))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut bodies = bodies.into_iter();
    at_rate(rate, seconds, |_| {
        let Some((id, body)) = bodies.next() else {
            return;
        };
        let (client, url) = (client.clone(), receiver.url());
        posting.spawn(async move {
            let start = Instant::now();
            client
                .post(url)
                .header("content-type", cloudevents::CONTENT_TYPE_JSON)
                .header("webhook-id", &id)
                .body(body)
                .send()
                .await?
                .error_for_status()?;
            Ok((id, start))
        });
    })
    .await;
    let mut starts = Vec::new();
    while let Some(done) = posting.join_next().await {
        starts.push(done??);
    }
    let arrivals = receiver.take();
    let times = starts.iter().filter_map(|(id, start)| {
        Some(arrivals.get(id)?.first()?.saturating_duration_since(*start))
    });
    Ok(Sorted::milliseconds(times))
}
