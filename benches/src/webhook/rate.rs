//! Maximum rate of signed deliveries to a hundred receivers, compared with the same HTTP client posting the same bodies to the same
//! receivers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mesh_events::cloudevents;
use tokio::task::JoinSet;

use super::world::{Kind, Receivers, World};
use crate::Arguments;
use crate::load::event;
use crate::process::cpu_time;
use crate::report::{Line, Section};
use crate::stats::Sorted;

const ENDPOINTS: usize = 100;
/// Concurrent requests of the bare client.
const UNDER_WAY: usize = 256;
const PATIENCE: Duration = Duration::from_secs(300);

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let mut world = World::start(&[Kind::Healthy; ENDPOINTS], |_| "types = [\"job.*\"]").await?;
    let deliveries = ENDPOINTS * arguments.fanned as usize;
    let (mut raw, mut ours, mut settled) = (vec![], vec![], vec![]);
    let (mut cpu, mut nats_cpu) = (vec![], vec![]);
    // The first round opens connections and is not counted.
    for round in 0..=arguments.rounds {
        let first = 1 + round * arguments.fanned;
        let events: Vec<_> = (first..first + arguments.fanned).map(event).collect();
        let bodies = events
            .iter()
            .map(|event| Ok((event.id.clone(), cloudevents::to_json(event)?.to_string())))
            .collect::<anyhow::Result<_>>()?;
        let took = post(&world.receivers, bodies).await?;
        raw.push(deliveries as f64 / took.as_secs_f64());

        let before = (cpu_time(world.dispatcher.pid())?, world.nats_cpu()?);
        let start = Instant::now();
        world.bus.publish_all(events, &Default::default()).await?;
        world.receivers.wait_for(deliveries, PATIENCE).await?;
        let arrivals = world.receivers.take()?;
        let last = arrivals.values().map(|(at, _)| *at).max().unwrap_or(start);
        ours.push(deliveries as f64 / (last - start).as_secs_f64());
        world
            .wait_outcomes(u64::from(round + 1) * deliveries as u64)
            .await?;
        settled.push(deliveries as f64 / start.elapsed().as_secs_f64());
        let of_second = |spent: Duration| deliveries as f64 / spent.as_secs_f64();
        cpu.push(of_second(cpu_time(world.dispatcher.pid())? - before.0));
        nats_cpu.push(of_second(world.nats_cpu()? - before.1));
    }
    world.stop().await?;
    let median = |samples: Vec<f64>| Sorted::new(samples.into_iter().skip(1)).median();
    let raw = median(raw);
    let rate = median(ours);
    Ok(Section {
        title: "deliveries to 100 endpoints",
        lines: vec![
            Line::value("POST by the same client, unsigned", "1/s", raw),
            Line::value("events on the bus → signed POSTs received", "1/s", rate)
                .against(raw, "direct POST")
                .budget("≥ 0.40", rate >= 0.4 * raw),
            Line::value("the same until all are audited", "1/s", median(settled)),
            Line::value("of a second of the dispatcher's CPU", "1/s", median(cpu)),
            Line::value("of a second of nats-server's CPU", "1/s", median(nats_cpu)),
        ],
        notes: vec![format!(
            "{} rounds of {} events to each, by turns; none lost, none twice; each delivery and its attempt on disk before its event is acknowledged",
            arguments.rounds, arguments.fanned
        )],
    })
}

/// Posts each body to each receiver. Returns the elapsed time.
async fn post(receivers: &Receivers, bodies: Vec<(String, String)>) -> anyhow::Result<Duration> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let urls = receivers.urls();
    let work = Arc::new((AtomicUsize::new(0), bodies, urls));
    let start = Instant::now();
    let mut posting: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for _ in 0..UNDER_WAY {
        let (client, work) = (client.clone(), Arc::clone(&work));
        posting.spawn(async move {
            let (next, bodies, urls) = &*work;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some((id, body)) = bodies.get(n / urls.len()) else {
                    return Ok(());
                };
                client
                    .post(&urls[n % urls.len()])
                    .header("content-type", cloudevents::CONTENT_TYPE_JSON)
                    .header("webhook-id", id)
                    .body(body.clone())
                    .send()
                    .await?
                    .error_for_status()?;
            }
        });
    }
    while let Some(done) = posting.join_next().await {
        done??;
    }
    let took = start.elapsed();
    receivers.take()?;
    Ok(took)
}
