//! Effect on healthy receivers of others that hang, drip and refuse, and of a backlog of deliveries.

use std::time::{Duration, Instant};

use mesh_events::{Event, EventType, timestamp};
use mesh_testkit::fixtures;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use tokio_util::sync::CancellationToken;

use super::world::{Kind, World};
use crate::Arguments;
use crate::load::{at_rate, event};
use crate::report::{Line, Section};
use crate::stats::Sorted;

const ENDPOINTS: usize = 100;
/// Events per second, each to every endpoint.
const RATE: u32 = 10;
/// Long enough for hanging receivers to reach their limit of concurrent requests.
const WARM_UP: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// Receivers in addition to the 80 that answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherReceivers {
    /// 20 more healthy ones.
    Healthy,
    /// 20 faulty ones.
    Faulty,
    /// 20 faulty ones, and a large backlog of deliveries.
    Backlog,
}

impl OtherReceivers {
    const ALL: [Self; 3] = [Self::Healthy, Self::Faulty, Self::Backlog];

    fn kind(self, n: usize) -> Kind {
        match self {
            Self::Healthy => Kind::Healthy,
            Self::Faulty | Self::Backlog => kind(n),
        }
    }
}

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let (seconds, rounds) = (arguments.seconds, arguments.rounds);
    let mut there = 0;
    let mut times = [const { Vec::<Vec<Duration>>::new() }; 3];
    // The cases alternate, each with a fresh start and in rotating order, so that other load on the machine affects all of them.
    for round in 0..rounds as usize {
        for offset in 0..OtherReceivers::ALL.len() {
            let n = (round + offset) % OtherReceivers::ALL.len();
            let others = OtherReceivers::ALL[n];
            let mut world = started(|n| others.kind(n)).await?;
            if others == OtherReceivers::Backlog {
                there = wait(&mut world, arguments.waiting).await?;
            }
            times[n].push(load(&mut world, seconds).await?);
        }
    }

    let all = times
        .each_ref()
        .map(|rounds| Sorted::milliseconds(rounds.concat()));
    let [all_well, faulty, with_backlog] = &all;
    let base = all_well.p99();
    let line = |description: String, samples: &Sorted| {
        Line::times(description, samples)
            .p99_against(base, "p99, all healthy")
            .budget("p99 ≤ 1.5", samples.p99() <= 1.5 * base)
    };
    let of_rounds = times.map(|rounds| {
        let p99s = rounds
            .into_iter()
            .map(|times| Sorted::milliseconds(times).p99());
        p99s.map(|p99| format!("{p99:.0}"))
            .collect::<Vec<_>>()
            .join(", ")
    });
    Ok(Section {
        title: "publish → POST received by the 80 healthy of 100",
        lines: vec![
            Line::times("all 100 healthy", all_well),
            line("10 hang, 5 drip, 5 refuse".to_owned(), faulty),
            line(
                format!("the same, and {there} deliveries wait"),
                with_backlog,
            ),
        ],
        notes: vec![
            format!(
                "{RATE} events a second to each for {seconds} s, {rounds} times by turns; none lost, none twice; those that wait are due within an hour, some meanwhile"
            ),
            format!("p99 of each time: {}", of_rounds.join("; ")),
        ],
    })
}

fn kind(n: usize) -> Kind {
    match n {
        0..10 => Kind::Hung,
        10..15 => Kind::Dripping,
        15..20 => Kind::Refusing,
        _ => Kind::Healthy,
    }
}

async fn started(kind: impl Fn(usize) -> Kind) -> anyhow::Result<World> {
    let kinds: Vec<Kind> = (0..ENDPOINTS).map(kind).collect();
    World::start(&kinds, |kind| match kind {
        Kind::Healthy => "types = [\"job.started\"]",
        Kind::Hung | Kind::Dripping | Kind::Refusing => {
            "types = [\"job.started\", \"job.submitted\"]"
        }
    })
    .await
}

/// From the publish call to the complete POST, for the receivers that answer in every case.
async fn load(world: &mut World, seconds: u32) -> anyhow::Result<Vec<Duration>> {
    offer(world, 1, WARM_UP).await?;
    offer(world, 1 + RATE * WARM_UP, seconds).await
}

async fn offer(world: &mut World, first: u32, seconds: u32) -> anyhow::Result<Vec<Duration>> {
    let judged = |n: usize| kind(n) == Kind::Healthy;
    let mut published = Vec::new();
    let mut publishing = tokio::task::JoinSet::new();
    at_rate(RATE, seconds, |n| {
        let (bus, event) = (world.bus.clone(), event(first + n));
        published.push((event.id.clone(), Instant::now()));
        publishing.spawn(async move {
            bus.publish_until_done(&event, &CancellationToken::new())
                .await
        });
    })
    .await;
    while let Some(done) = publishing.join_next().await {
        done??;
    }
    let expected = published.len() * (0..ENDPOINTS).filter(|n| judged(*n)).count();
    let until = Instant::now() + PATIENCE;
    let mut arrivals = world.receivers.take()?;
    let came =
        |arrivals: &super::world::Arrivals| arrivals.keys().filter(|(n, _)| judged(*n)).count();
    while came(&arrivals) < expected {
        anyhow::ensure!(
            Instant::now() < until,
            "of {expected} deliveries {} came",
            came(&arrivals)
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
        for (key, value) in world.receivers.take()? {
            let is_duplicate = arrivals.insert(key, value).is_some();
            anyhow::ensure!(!is_duplicate, "a delivery came twice");
        }
    }
    let times = published.iter().flat_map(|(id, start)| {
        let arrivals = &arrivals;
        (0..ENDPOINTS).filter(|n| judged(*n)).filter_map(move |n| {
            let (at, _) = arrivals.get(&(n, id.clone()))?;
            Some(at.saturating_duration_since(*start))
        })
    });
    Ok(times.collect())
}

/// Creates a backlog for the refusing receivers: copies of one pending delivery, made while the dispatcher is stopped.
async fn wait(world: &mut World, count: u32) -> anyhow::Result<u64> {
    let mut event: Event = fixtures::job_event(EventType::JobSubmitted, fixtures::job(1_000_000));
    event.occurred_at = Some(timestamp(chrono::Utc::now()));
    world
        .bus
        .publish_until_done(&event, &CancellationToken::new())
        .await?;
    let mut file = SqliteConnectOptions::new()
        .filename(world.file())
        .connect()
        .await?;
    let refused =
        "SELECT COUNT(*) FROM deliveries WHERE state = 'waiting' AND status = 0 AND attempts > 0";
    crate::process::wait_until("five refused deliveries", PATIENCE, async || {
        let count: i64 = sqlx::query_scalar(refused).fetch_one(&mut file).await?;
        Ok(count >= 5)
    })
    .await?;
    world.stop().await?;
    for sql in [
        "CREATE TEMP TABLE one AS SELECT * FROM deliveries WHERE state = 'waiting' AND status = 0 AND attempts > 0 LIMIT 5",
        "CREATE TEMP TABLE copies AS WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < $1 / 5)
             SELECT one.* FROM one, number",
        // Ids in the form of event ids.
        "UPDATE copies SET next_at = unixepoch() * 1000 + abs(random() % 3600000),
             event_id = lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-8' || substr(hex(randomblob(2)), 2) || '-8'
                 || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))",
        "INSERT INTO deliveries SELECT * FROM copies",
    ] {
        let query = sqlx::query(sql);
        let query = if sql.contains("$1") {
            query.bind(i64::from(count))
        } else {
            query
        };
        query.execute(&mut file).await?;
    }
    let waiting: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM deliveries WHERE state = 'waiting'")
            .fetch_one(&mut file)
            .await?;
    world.restart()?;
    Ok(waiting.unsigned_abs())
}
