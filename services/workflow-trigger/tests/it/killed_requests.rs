//! The service is killed while it answers senders of events: an accepted request fires once, counted by what the jobs wrote.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::TimeDelta;
use mesh_testkit::{NatsServer, Port, wait_until};
use rand::RngExt as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cluster::shared;
use crate::incoming::{KEY, standard};
use crate::killed::{Process, chmod_all};
use crate::support::{Site, bus};

const REQUESTS: u32 = 60;
/// One in so many is not sent again when its answer is lost.
const IMPATIENT: u32 = 5;
const DEADLINE: Duration = Duration::from_secs(300);

/// Sends a request. `None`: no answer. On a connection of its own: one that is reused may be that of a dead process.
async fn send(address: SocketAddr, number: u32) -> Option<u16> {
    let id = format!("m{number}");
    let body = json!({"number": number}).to_string();
    let (time, signature) = standard(&id, TimeDelta::zero(), &body);
    let request = format!(
        "POST /v1/in/ci HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nwebhook-id: {id}\r\nwebhook-timestamp: {time}\r\nwebhook-signature: {signature}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_request_fires_once_however_often_the_service_is_killed() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let results = cluster.results.join("requests");
    std::fs::create_dir(&results).unwrap();
    chmod_all(&results);
    let count = format!(
        "echo $SLURM_JOB_ID >> {}/$MESH_EVENT_NUMBER",
        results.display()
    );
    site.script("count.sh", &count);
    let port = Port::take();
    let address = port.address();
    let secret = format!("whsec_{}", BASE64_STANDARD.encode(KEY));
    mesh_testkit::write_private(&site.path("ci.secret"), secret);
    // Required with an address; senders of events have none.
    mesh_testkit::write_private(
        &site.path("token"),
        "a token of people, of 32 bytes and more",
    );
    let tables = format!(
        "[[workflow-trigger.sources]]\nname = \"ci\"\nsignature = \"standard\"\nsecret_file = \"ci.secret\"\n[[workflow-trigger.rules]]\nname = \"count\"\nowner = \"alice\"\non = {{ source = \"ci\" }}\n[workflow-trigger.rules.action]\nsubmit = \"count.sh\"\nmemory = \"10M\"\noutput = \"/dev/null\"\nenvironment = {{ MESH_EVENT_NUMBER = \"{{{{ data.number }}}}\" }}\n[workflow-trigger.rules.limits]\nper_hour = 1000\n{}[mesh.api]\nlisten = \"{address}\"\ntoken_file = \"token\"\n",
        cluster.submitter()
    );
    let keys = "confirm_after = \"200ms\"\nretry_initial_interval = \"100ms\"";
    let config = site.configure(&nats, keys, &tables);
    let mut process = Process::start(config);
    let (mut accepted, mut lost) = (Vec::new(), 0);
    for number in 0..REQUESTS {
        // Longer after each try in vain, so that there is progress on a slow machine, too.
        let mut longest = 8_000;
        loop {
            process.keep_alive();
            wait_until("the service listens", DEADLINE, async || {
                process.keep_alive();
                TcpStream::connect(address).await.is_ok()
            })
            .await;
            let pause = rand::rng().random_range(0..longest);
            longest += longest / 2;
            let (answer, ()) = tokio::join!(send(address, number), async {
                tokio::time::sleep(Duration::from_micros(pause)).await;
                if number % 2 == 0 {
                    process.kill();
                }
            });
            match answer {
                Some(202) => accepted.push(number),
                // The bus is not ready yet.
                Some(503) => continue,
                Some(other) => panic!("{other}"),
                None => {
                    lost += 1;
                    if number % IMPATIENT != 0 {
                        continue;
                    }
                }
            }
            break;
        }
    }
    let runs = |number: u32| {
        let text = std::fs::read_to_string(results.join(number.to_string()));
        text.unwrap_or_default().lines().count()
    };
    wait_until("the jobs of accepted requests ran", DEADLINE, async || {
        process.keep_alive();
        accepted.iter().all(|number| runs(*number) > 0)
    })
    .await;
    wait_until("nothing is left but held copies", DEADLINE, async || {
        let queue = cluster
            .run("root", &["squeue", "-h", "-u", "alice", "-o", "%T %r %k"])
            .await;
        let mut ours = queue.lines().filter(|line| line.contains("smesh:1:"));
        ours.all(|line| line.contains("JobHeldUser"))
    })
    .await;
    let counts: Vec<usize> = (0..REQUESTS).map(runs).collect();
    for (number, count) in (0..REQUESTS).zip(&counts) {
        let is_accepted = accepted.contains(&number);
        assert!(
            *count == 1 || (!is_accepted && *count == 0),
            "{number}: {counts:?}"
        );
    }
    assert!(lost > 5, "only {lost} answers were lost");
    println!(
        "{} of {REQUESTS} requests accepted, {lost} answers lost, {} without an answer fired",
        accepted.len(),
        (0..REQUESTS)
            .filter(|number| !accepted.contains(number) && runs(*number) == 1)
            .count()
    );
}
