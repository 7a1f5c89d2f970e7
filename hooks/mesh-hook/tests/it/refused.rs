//! NATS is available but refuses some doorbells. A refused doorbell does not block the others.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use mesh_events::catalogue::MESH_HOOKS;
use mesh_hook::nats::Connection;
use mesh_hook::spool::Spool;
use mesh_testkit::wait_until;
use serde_json::{Value, json};

use crate::site::{Site, TIMEOUT, call, hook};

/// Changes the stream of doorbells, as an operator may. Retries until the server has the stream again.
async fn change_stream(site: &Site, changes: Value) {
    let ask = |subject: String, body: &[u8]| -> Option<Value> {
        let address = site.nats.url().trim_start_matches("nats://").parse().ok()?;
        let deadline = Instant::now() + Duration::from_secs(10);
        let login = Some(("admin", "admin-password"));
        let mut connection = Connection::open(address, login, None, deadline).ok()?;
        let answer = connection.request(&subject, body).ok()?;
        serde_json::from_slice(&answer).ok()
    };
    wait_until("the stream is changed", TIMEOUT, async || {
        let Some(info) = ask(format!("$JS.API.STREAM.INFO.{MESH_HOOKS}"), b"") else {
            return false;
        };
        let mut config = info["config"].clone();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        let body = config.to_string();
        let answer = ask(
            format!("$JS.API.STREAM.UPDATE.{MESH_HOOKS}"),
            body.as_bytes(),
        );
        answer.is_some_and(|answer| answer["config"].is_object())
    })
    .await;
}

fn refused(site: &Site) -> usize {
    let entries = fs::read_dir(site.spool()).unwrap();
    entries
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().ends_with(".refused")
        })
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_nats_refuses_holds_up_no_other_and_goes_once_it_may() {
    let mut site = Site::start().await;
    site.nats.kill();
    // For a cluster that hook.toml named before; the oldest of all.
    Spool::new(site.spool(), 1 << 20)
        .store(
            SystemTime::UNIX_EPOCH,
            "old",
            "mesh.other.hook.Prolog",
            b"x",
        )
        .unwrap();
    site.call(1);
    let mut large = hook(&site.config());
    large.arg("--send").env("SLURM_JOB_ID", "2");
    for n in 0..8 {
        large.env(format!("SLURM_JOB_Z{n}"), "y".repeat(3000));
    }
    call(&mut large);
    site.call(3);
    assert_eq!(site.spooled().len(), 4);
    site.nats.restart().await;
    change_stream(&site, json!({ "max_msg_size": 8192 })).await;
    wait_until("a call flushes", TIMEOUT, async || {
        site.call(4);
        site.spooled().is_empty()
    })
    .await;
    let jobs = || -> Vec<u32> {
        site.received()
            .iter()
            .map(|doorbell| doorbell.job_id)
            .collect()
    };
    wait_until("the others have arrived", TIMEOUT, async || {
        [1, 3, 4].iter().all(|job| jobs().contains(job))
    })
    .await;
    assert!(!jobs().contains(&2), "{:?}", jobs());
    assert_eq!(refused(&site), 2);

    // The operator gets a report, and both are retried.
    let flushed = call(hook(&site.config()).arg("--flush"));
    let printed = String::from_utf8_lossy(&flushed.output.stdout).into_owned();
    assert_eq!(flushed.output.status.code(), Some(1));
    assert!(
        printed.contains("2 refused: NATS refused a doorbell of"),
        "{printed}"
    );
    change_stream(&site, json!({ "max_msg_size": -1 })).await;
    let flushed = call(hook(&site.config()).arg("--flush"));
    let printed = String::from_utf8_lossy(&flushed.output.stdout).into_owned();
    assert!(
        printed.starts_with("1 delivered, 0 left in the spool, 1 refused: ")
            && printed.contains("mesh.other.hook.Prolog"),
        "{printed}"
    );
    wait_until("the large one has arrived", TIMEOUT, async || {
        jobs().contains(&2)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_leaves_all_where_they_are_in_their_order() {
    let mut site = Site::start().await;
    site.nats.kill();
    for job in 1..=3 {
        site.call(job);
    }
    site.nats.restart().await;
    change_stream(&site, json!({ "max_bytes": 1 })).await;
    site.call(4);
    let failed = call(hook(&site.config()).arg("--flush"));
    assert_eq!(failed.output.status.code(), Some(1));
    assert!(
        failed.stderr().contains("maximum bytes exceeded"),
        "{failed:?}"
    );
    assert_eq!((site.spooled().len(), refused(&site)), (4, 0));
    change_stream(&site, json!({ "max_bytes": 1 << 20 })).await;
    site.flush().await;
    site.wait_for(4).await;
    let jobs: Vec<_> = site
        .received()
        .iter()
        .map(|doorbell| doorbell.job_id)
        .collect();
    assert_eq!(jobs, [1, 2, 3, 4]);
}
