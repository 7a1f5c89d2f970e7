//! Data of events in arguments and variables.

use std::path::Path;

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use slurm_submit::Acted;

use crate::cluster::{Cluster, shared};

const HOSTILE: [&str; 14] = [
    "$(id); rm -rf /",
    "--uid=0",
    "-",
    "",
    "'\"\\",
    "line\nbreak\r\n#SBATCH --uid=0",
    "a,LD_PRELOAD=/tmp/x.so,PATH=/evil",
    "%j %u",
    "é\u{202e}\u{1f4a5}",
    "`reboot`",
    "\t \u{7f}\u{1b}[31m",
    "=",
    "*?[",
    "${HOME}",
];

/// Submits a job that writes its arguments and variables, and compares them.
async fn check(cluster: &Cluster, event: &str, args: Vec<String>, values: Vec<String>) {
    let submitter = cluster.submitter();
    let file = cluster.results.join(event);
    let script = format!(
        "for a in \"$@\"; do printf '%s\\0' \"$a\"; done > {0}.args\nenv -0 > {0}.env\ntouch {0}.done",
        file.display()
    );
    let mut job = cluster.job(event, &script);
    job.args = args;
    job.environment = values
        .into_iter()
        .enumerate()
        .map(|(index, value)| (format!("MESH_EVENT_{index}"), value))
        .collect();
    job.fields.comment = Some("$(id) \"x\" é".to_owned());
    job.fields.job_name = Some("$(id); 'x' %j".to_owned());
    let id = submitter.submit(&job).await.unwrap();
    let released = submitter.release("alice", id, &job.key).await;
    assert_eq!(released, Ok(Acted::Done));
    cluster.ended(id).await;
    let read = |suffix: &str| std::fs::read(format!("{}.{suffix}", file.display())).unwrap();
    let found = read("args");
    let mut found = found.split(|byte| *byte == 0);
    for (index, argument) in job.args.iter().enumerate() {
        let found = found.next().map(String::from_utf8_lossy);
        assert_eq!(
            found.as_deref(),
            Some(argument.as_str()),
            "argument {index} of {event}"
        );
    }
    assert_eq!(found.next(), Some(&b""[..]));
    let env = read("env");
    for (name, value) in &job.environment {
        let variable = format!("{name}={value}");
        let is_there = env
            .split(|byte| *byte == 0)
            .any(|found| found == variable.as_bytes());
        assert!(is_there, "{variable:?} of {event} differs");
    }
    assert!(!Path::new("/tmp/x.so").exists());
}

fn random(rng: &mut SmallRng) -> String {
    let length = match rng.random_range(0..50) {
        0 => 4_000,
        _ => rng.random_range(0..40),
    };
    // A lone colon is refused.
    let length = if length == 1 { 2 } else { length };
    (0..length)
        .map(|_| match rng.random_range(0..4) {
            0 => char::from(rng.random_range(1..0x20_u8)),
            1 => char::from(
                *b"\"'\\$`;&|<>(){}[]*?#~=%,-!@"
                    .get(rng.random_range(0..26))
                    .unwrap(),
            ),
            2 => rng.random_range('\u{80}'..'\u{ffff}'),
            _ => char::from(rng.random_range(0x20..0x7f_u8)),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_values_arrive_byte_for_byte() {
    let (cluster, _guard) = shared().await;
    let hostile: Vec<String> = HOSTILE.map(str::to_owned).into();
    check(cluster, "hostile", hostile.clone(), hostile).await;
    let long = vec!["x".repeat(32 << 10); 2];
    check(cluster, "long", long.clone(), long).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_random_values_arrive_byte_for_byte() {
    let (cluster, _guard) = shared().await;
    let mut rng = SmallRng::seed_from_u64(17);
    for job in 0..10 {
        let mut values = |count: usize| (0..count).map(|_| random(&mut rng)).collect::<Vec<_>>();
        let (args, variables) = (values(900), values(100));
        check(cluster, &format!("random-{job}"), args, variables).await;
    }
}
