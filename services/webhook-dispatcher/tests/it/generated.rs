//! Generates jobs, nodes and arrays with hostile names.

use chrono::{DateTime, TimeDelta, Utc};
use event_filter::sample;
use event_message::digest::{DigestReason, Summary};
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};
use mesh_events::proto::mesh::job::v1::{ExitCode, Job};
use mesh_events::{Event, EventType, timestamp};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

/// Pieces of names, paths and reasons.
pub const PIECES: &[&str] = &[
    "train",
    "resnet-50",
    " ",
    "_",
    "é",
    "数据",
    "😀",
    "👩‍🔬",
    "𝕏",
    "<!channel>",
    "<@U012>",
    "@everyone",
    "@here",
    "<@&1>",
    "](https://evil.example/)",
    "[x](",
    "```",
    "`",
    "**",
    "~~",
    "||",
    "# ",
    "> ",
    "&amp;",
    "&",
    "<",
    ">",
    "\"",
    "'",
    "\\",
    "\n",
    "\r",
    "\t",
    "\u{0}",
    "\u{7f}",
    "\u{202e}",
    "\u{2028}",
    "\u{feff}",
    "{{DATE(2020-01-01T00:00:00Z)}}",
    "${x}",
    "{{ 7*7 }}",
    "{% if %}",
    "https://evil.example/a?b=c",
    ":x:",
    "<t:0:R>",
    "%00",
    "n[1-4096]",
    "/scratch/",
];

/// A random text.
pub fn words(rng: &mut StdRng) -> String {
    // Most names are short, some have 10,000 characters and more.
    let (pieces, times) = match rng.random_range(0..60) {
        0..3 => (0, 1),
        3 => (8, rng.random_range(100..500)),
        4..8 => (12, rng.random_range(2..20)),
        _ => (rng.random_range(1..5), 1),
    };
    let block: String = (0..pieces).map(|_| *PIECES.choose(rng).unwrap()).collect();
    block.repeat(times)
}

fn hosts(rng: &mut StdRng) -> String {
    match rng.random_range(0..10) {
        0 => words(rng),
        1 => (0..rng.random_range(1_000..5_000))
            .map(|n| format!("rack{}-n{n},", n % 40))
            .collect(),
        _ => format!("n[1-{}]", rng.random_range(2..64)),
    }
}

fn job(rng: &mut StdRng) -> Job {
    let at = |seconds: i64| {
        Some(timestamp(
            DateTime::<Utc>::UNIX_EPOCH + TimeDelta::seconds(1_763_760_000 + seconds),
        ))
    };
    let link = [
        "",
        "https://ci.example.org/runs/7?a=b&c=(d)|e",
        "see http://a.example/<x>",
    ]
    .choose(rng)
    .unwrap();
    Job {
        name: words(rng),
        partition: words(rng),
        nodes: hosts(rng),
        node_count: rng.random_range(0..5_000),
        failed_node: words(rng),
        reason: words(rng),
        req_tres: format!("cpu=4,mem={}", words(rng)),
        alloc_tres: words(rng),
        work_dir: words(rng),
        std_out: words(rng),
        std_err: words(rng),
        comment: format!("{link} {}", words(rng)),
        display_id: if rng.random_bool(0.1) {
            words(rng)
        } else {
            "1230_4".into()
        },
        submit_time: at(0),
        start_time: rng.random_bool(0.8).then(|| at(60).unwrap()),
        end_time: rng
            .random_bool(0.8)
            .then(|| at(rng.random_range(60..10_000_000)).unwrap()),
        time_limit_minutes: rng.random_bool(0.5).then(|| rng.random_range(1..1_000_000)),
        exit_code: rng.random_bool(0.8).then(|| ExitCode {
            code: rng.random_range(0..256),
            signal: rng.random_range(0..65),
        }),
        ..sample::job()
    }
}

/// An event, and its cost if it has one.
pub fn generated(rng: &mut StdRng) -> (Event, Option<CostEvent>) {
    let kind = *EventType::ALL.choose(rng).unwrap();
    let mut event = sample::event(kind);
    event.cluster = if rng.random_bool(0.05) {
        words(rng)
    } else {
        "hpc1".into()
    };
    if let Some(owner) = &mut event.owner {
        owner.user = words(rng);
        owner.account = words(rng);
        owner.identity.as_mut().unwrap().name = words(rng);
    }
    event.actor = Some(Actor {
        kind: ActorKind::Admin.into(),
        user: words(rng),
        ..Actor::default()
    });
    match event.payload.as_mut().unwrap() {
        Payload::Job(payload) => payload.job = Some(job(rng)),
        Payload::Cost(payload) => payload.job = Some(job(rng)),
        Payload::Queue(payload) => {
            payload.job = Some(job(rng));
            let explanation = payload.explanation.as_mut().unwrap();
            explanation.summary = words(rng);
            explanation.advice = words(rng);
            explanation.actor = words(rng);
        }
        Payload::Node(payload) => {
            payload.cause = words(rng);
            let node = payload.node.as_mut().unwrap();
            node.name = words(rng);
            node.reason = words(rng);
            node.partitions = (0..rng.random_range(0..50)).map(|_| words(rng)).collect();
        }
        Payload::User(payload) => {
            payload.user = words(rng);
            payload.account = words(rng);
            payload.before = words(rng);
            payload.after = words(rng);
        }
        Payload::Capture(payload) => {
            payload.source = words(rng);
            payload.message = words(rng);
            payload.not_recoverable = words(rng);
        }
    }
    let money = |micros| {
        Some(Money {
            micros,
            currency: if micros % 7 == 0 {
                "<!channel>".into()
            } else {
                "EUR".into()
            },
        })
    };
    let cost = rng.random_bool(0.5).then(|| CostEvent {
        burn_rate: money(rng.random_range(0..i64::MAX)),
        total: money(rng.random_range(0..1_000_000_000)),
        problem: words(rng),
        ..CostEvent::default()
    });
    (event, cost)
}

/// More than Slurm permits.
const MAX_TASKS: u64 = 1_000_000_000;

/// A random array summary.
pub fn summary(rng: &mut StdRng) -> Summary {
    let moments = [
        DigestReason::First,
        DigestReason::Failing,
        DigestReason::Progress,
        DigestReason::Done,
    ];
    Summary {
        moment: *moments.choose(rng).unwrap(),
        number: rng.random(),
        replay: None,
        array: rng.random(),
        cluster: words(rng),
        name: words(rng),
        user: words(rng),
        partition: words(rng),
        email: None,
        person: rng.random_bool(0.5).then(|| words(rng)),
        known: rng.random_range(0..MAX_TASKS),
        whole: rng.random(),
        ended: rng.random_range(0..MAX_TASKS),
        running: rng.random_range(0..MAX_TASKS),
        causes: (0..rng.random_range(0..30))
            .map(|_| (words(rng), rng.random_range(0..MAX_TASKS)))
            .collect(),
        failed: rng.random_range(0..3),
        failed_tasks: hosts(rng),
        requeued: rng.random_range(0..3),
        first_failure: rng.random_bool(0.5).then(|| words(rng)),
        micros: (0..rng.random_range(0..5))
            .map(|_| (words(rng), rng.random_range(0..i64::MAX)))
            .collect(),
    }
}
