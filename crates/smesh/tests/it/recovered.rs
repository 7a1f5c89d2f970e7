//! What a service has after the recovery of its damaged file: costs as they were, also of jobs that the bus no longer has, and
//! deliveries that are neither lost nor repeated.

use std::collections::BTreeMap;
use std::fs;

use chrono::TimeDelta;
use mesh_events::{Event, EventType, timestamp};
use mesh_testkit::fixtures::{job, job_event, submit_time};
use mesh_testkit::{CannedResponse, WebhookReceiver, write_private};
use serde_json::Value;

use crate::mesh::{Mesh, stdout};
use crate::others::publish;

const BILLING: &str = "name = \"b\"\nversion = \"1\"\ncurrency = \"USD\"\nmode = \"billing\"\n[[billing]]\nprice = \"0.04\"\n";

/// Overwrites the whole file of a service.
fn damage(mesh: &Mesh, file: &str) {
    for side in ["", "-wal"] {
        let path = mesh.path(&format!("data/{file}{side}"));
        if path.exists() {
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, vec![0xAA; bytes.len()]).unwrap();
        }
    }
}

fn recover(mesh: &mut Mesh, service: &str) -> String {
    let recovered = mesh.run(&["recover", service]);
    assert!(recovered.status.success(), "{recovered:?}");
    mesh.start();
    stdout(&recovered)
}

fn started(number: u32) -> Event {
    job_event(EventType::JobStarted, job(number))
}

/// An event of a job, this many seconds after its submission.
fn later(kind: EventType, number: u32, state: &str, seconds: i64) -> Event {
    let at = Some(timestamp(submit_time() + TimeDelta::seconds(seconds)));
    let mut job = job(number);
    state.clone_into(&mut job.state);
    if kind.is_end() || kind == EventType::JobCorrected {
        job.end_time = at;
    }
    Event {
        occurred_at: at,
        ..job_event(kind, job)
    }
}

/// What jobs have cost, by job, and the jobs that run.
fn costs(mesh: &Mesh) -> (BTreeMap<String, Value>, Vec<String>) {
    let output = mesh.run(&["--json", "cost", "--by", "job"]);
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let rows = answer["rows"].as_array().unwrap().iter();
    let (open, ended): (Vec<&Value>, Vec<&Value>) = rows.partition(|row| row["open_runs"] == 1);
    let key = |row: &Value| row["key"].as_str().unwrap().to_owned();
    (
        ended
            .into_iter()
            .map(|row| (key(row), row.clone()))
            .collect(),
        open.into_iter().map(key).collect(),
    )
}

/// The number of recorded entries of these types about a job.
fn recorded(mesh: &Mesh, number: u32, types: &str) -> usize {
    let job = number.to_string();
    let output = mesh.run(&["--json", "events", "--job", &job, "--type", types]);
    stdout(&output).lines().count()
}

async fn run_job(mesh: &Mesh, number: u32, seconds: i64) {
    publish(mesh, &started(number)).await;
    let end = later(EventType::JobCompleted, number, "COMPLETED", seconds);
    publish(mesh, &end).await;
    mesh.wait_until("the cost is recorded", || {
        recorded(mesh, number, "cost.finalized") == 1
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn costs_are_as_before_also_of_jobs_that_the_bus_no_longer_has() {
    let mut mesh = Mesh::init();
    let config = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    write_private(
        &mesh.path("mesh.toml"),
        config.replace("# price_book =", "price_book ="),
    );
    fs::write(mesh.path("price-book.toml"), BILLING).unwrap();
    mesh.start();
    run_job(&mesh, 1, 3_610).await;
    // Late facts: the first job was suspended for ten minutes, and ended earlier than was known.
    publish(
        &mesh,
        &later(EventType::JobCorrected, 1, "COMPLETED", 3_010),
    )
    .await;
    mesh.wait_until("the adjustment is recorded", || {
        recorded(&mesh, 1, "cost.adjusted") == 1
    });
    run_job(&mesh, 2, 610).await;
    publish(&mesh, &started(3)).await;
    mesh.wait_until("the estimate is recorded", || {
        recorded(&mesh, 3, "cost.estimated") == 1
    });
    mesh.jetstream("STREAM.PURGE.SLURM_EVENTS");
    run_job(&mesh, 4, 1_210).await;
    let before = costs(&mesh);
    assert_eq!(before.0.len(), 3, "{before:?}");
    assert_eq!(before.0["1"]["adjustments_micros"], "-26667");
    assert_eq!(before.1, ["3"]);

    mesh.end("-TERM");
    damage(&mesh, "cost-engine.db");
    // Prices have changed since: what was published stays.
    let dearer = BILLING.replace("0.04", "0.40").replace("\"1\"", "\"2\"");
    fs::write(mesh.path("price-book.toml"), dearer).unwrap();
    let printed = recover(&mut mesh, "cost-engine");
    assert!(printed.contains("restored from the ledger"), "{printed}");
    assert_eq!(costs(&mesh), before);
    mesh.wait_until("the bus was read again", || {
        !mesh.path("data/cost-engine.db.recovered").exists()
    });
    // The engine reads the bus in order: with the end of this job it has read all.
    run_job(&mesh, 5, 20).await;
    let mut after = costs(&mesh);
    after.0.remove("5");
    assert_eq!(after, before);
    // The end of the run whose start only the ledger has.
    let end = later(EventType::JobCompleted, 3, "COMPLETED", 3_610);
    publish(&mesh, &end).await;
    mesh.wait_until("its cost is recorded", || {
        recorded(&mesh, 3, "cost.finalized") == 1
    });
    assert_eq!(costs(&mesh).1, [""; 0]);
}

fn endpoint(name: &str, url: &str) -> String {
    format!(
        "\n[[webhook-dispatcher.endpoints]]\nname = \"{name}\"\nurl = \"{url}\"\nallow_http = true\nallow_private = [\"127.0.0.0/8\"]\n\
         secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\ntypes = [\"job.started\"]\nconcurrency = 1\n\
         retry = {{ initial_interval = \"20h\", multiplier = 1, max_interval = \"20h\" }}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_are_neither_lost_nor_repeated() {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::init();
    let mut config = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    for name in ["one", "two"] {
        config += &endpoint(name, &receiver.url(&format!("/{name}")));
    }
    write_private(&mesh.path("mesh.toml"), config);
    mesh.start();
    let state = |mesh: &Mesh, name: &str, state: &str| {
        let output = mesh.run(&["--json", "webhooks", "deliveries", name, "--state", state]);
        let answer: Value = serde_json::from_str(&stdout(&output)).unwrap_or_default();
        answer["deliveries"].as_array().map_or(0, Vec::len)
    };
    publish(&mesh, &started(1)).await;
    for name in ["one", "two"] {
        mesh.wait_until("delivered", || state(&mesh, name, "delivered") == 1);
    }
    // This one waits for a retry that is far away, behind it one is delivered.
    receiver.answer_always(CannedResponse::status(503));
    publish(&mesh, &started(2)).await;
    for name in ["one", "two"] {
        mesh.wait_until("waiting", || state(&mesh, name, "waiting") == 1);
    }
    receiver.answer_always(CannedResponse::status(204));
    publish(&mesh, &started(3)).await;
    for name in ["one", "two"] {
        mesh.wait_until("delivered", || state(&mesh, name, "delivered") == 2);
    }
    mesh.wait_until("the outcomes are audited", || {
        let output = mesh.run(&["--json", "events", "--type", "audit.delivery"]);
        stdout(&output).lines().count() == 4
    });
    mesh.end("-TERM");
    damage(&mesh, "webhook-dispatcher.db");
    let since = receiver.received().len();
    recover(&mut mesh, "webhook-dispatcher");
    publish(&mesh, &started(4)).await;
    let again = || {
        let mut by_path: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for request in receiver.received().split_off(since) {
            let id = request.headers["webhook-id"].to_str().unwrap().to_owned();
            by_path.entry(request.path).or_default().push(id);
        }
        by_path
    };
    let last = started(4).id;
    let expected = vec![started(2).id, last.clone()];
    mesh.wait_until("all is delivered", || {
        let again = again();
        let is_done = |ids: &Vec<String>| ids.contains(&last);
        again.len() == 2 && again.values().all(is_done)
    });
    for (path, ids) in again() {
        assert_eq!(ids, expected, "{path}");
    }
    for name in ["one", "two"] {
        mesh.wait_until("all outcomes", || state(&mesh, name, "delivered") == 4);
    }
}

fn json(mesh: &Mesh, args: &[&str]) -> Value {
    let output = mesh.run(&[&["--json"], args].concat());
    serde_json::from_str(&stdout(&output)).unwrap_or_default()
}

/// Budgets as they are listed, without what changes with time.
fn budget(mesh: &Mesh, name: &str) -> Value {
    let answer = json(mesh, &["budget", "show", name]);
    let keys = ["name", "amount_micros", "settled_micros", "threshold"];
    keys.map(|key| answer[key].clone()).into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_and_closed_periods_are_back_though_the_file_is_deleted() {
    let mut mesh = Mesh::init();
    let config = fs::read_to_string(mesh.path("mesh.toml")).unwrap();
    write_private(
        &mesh.path("mesh.toml"),
        config.replace(
            "[cost-engine]\n",
            "[cost-engine]\nbudgets = \"budgets.d\"\n",
        ),
    );
    fs::write(mesh.path("price-book.toml"), BILLING).unwrap();
    fs::create_dir(mesh.path("budgets.d")).unwrap();
    mesh.start();
    // 16 cents, of two budgets.
    run_job(&mesh, 1, 3_610).await;
    let set = |name: &str, amount: &str| {
        let text = format!(
            "[[budget]]\nname = \"{name}\"\nscope = {{ account = \"physics\" }}\nfrom = 2025-11-01\nto = 2090-01-01\namount = \"{amount}\"\n"
        );
        let file = mesh.path("budget.toml");
        fs::write(&file, text).unwrap();
        let output = mesh.run(&["budget", "set", file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
    };
    set("used", "0.15");
    set("left", "1.00");
    set("left", "1.50");
    set("gone", "1.00");
    assert!(mesh.run(&["budget", "delete", "gone"]).status.success());
    let closed = mesh.run(&["cost", "close", "2025-11"]);
    assert!(closed.status.success(), "{closed:?}");
    let entries = |mesh: &Mesh, types: &str| {
        let output = mesh.run(&["--json", "events", "--type", types]);
        stdout(&output).lines().count()
    };
    mesh.wait_until("everything is recorded", || {
        entries(&mesh, "user.quota_exceeded") == 1 && entries(&mesh, "audit.cost") == 6
    });
    // A change takes effect with the next evaluation.
    mesh.wait_until("the changed budget is evaluated", || {
        budget(&mesh, "left")[1] == "1500000"
    });
    let period = |mesh: &Mesh| mesh.get("/v1/costs/periods/2025-11");
    let before = (budget(&mesh, "used"), budget(&mesh, "left"), period(&mesh));
    assert_eq!(
        before.0,
        serde_json::json!(["used", "150000", "160000", 100])
    );
    let report = before.2["report"].as_str().unwrap();
    assert!(report.contains("160000"), "{report}");

    mesh.end("-TERM");
    for side in ["", "-wal", "-shm"] {
        let file = mesh.path(&format!("data/cost-engine.db{side}"));
        if file.exists() {
            fs::remove_file(file).unwrap();
        }
    }
    let printed = recover(&mut mesh, "cost-engine");
    assert!(
        printed.contains("2 budgets of the API and 1 closed periods"),
        "{printed}"
    );
    mesh.wait_until("the budgets are evaluated", || {
        budget(&mesh, "used")[0] == "used" && budget(&mesh, "left")[0] == "left"
    });
    let after = (budget(&mesh, "used"), budget(&mesh, "left"), period(&mesh));
    assert_eq!(after, before);
    assert!(!mesh.run(&["budget", "show", "gone"]).status.success());
    // A crossing after the start is published. That of before is not published again, although the bus would not notice.
    run_job(&mesh, 2, 20_010).await;
    mesh.wait_until("the other budget is passed", || {
        budget(&mesh, "left")[3] == 50
    });
    let log = fs::read_to_string(mesh.path("up.log")).unwrap();
    let of = |name: &str| {
        let crossed =
            |line: &&str| line.contains("budget crossed a threshold") && line.contains(name);
        log.lines().filter(crossed).count()
    };
    assert_eq!((of("budget/used"), of("budget/left")), (1, 1), "{log}");
}
