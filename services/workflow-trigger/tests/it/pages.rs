//! Lists are read in pages: runs, and the tasks of an array that a run retries.

use axum::http::StatusCode;
use mesh_db::Location;
use mesh_db::sql::Sql;
use mesh_testkit::NatsServer;
use serde_json::{Value, json};
use workflow_trigger::adapters::store::Store;

use crate::support::{Site, Trigger, admin, bus, on_both};

on_both!(runs_and_tasks_are_listed_in_pages);

async fn get(trigger: &Trigger, path: &str) -> Value {
    let (status, answer) = trigger.ask(admin(), "GET", path, None).await;
    assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    answer
}

fn keys(answer: &Value) -> Vec<String> {
    let runs = answer["runs"].as_array().unwrap().iter();
    runs.map(|run| run["key"].as_str().unwrap().to_owned())
        .collect()
}

async fn runs_and_tasks_are_listed_in_pages(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let rule = "[[workflow-trigger.rules]]\nname = \"records\"\nowner = \"alice\"\ndry_run = true\non = { manual = true }\naction = { submit = \"true.sh\" }\n";
    let trigger = site.start(&nats, "", rule).await;
    for id in ["1", "2", "3", "4", "5"] {
        trigger.fire("records", id, json!({})).await;
    }
    let all = keys(&get(&trigger, "/v1/trigger-runs").await);
    assert_eq!(all.len(), 5);
    let (mut listed, mut cursor) = (Vec::new(), String::new());
    let pages = loop {
        let answer = get(&trigger, &format!("/v1/trigger-runs?limit=2{cursor}")).await;
        listed.push(keys(&answer));
        match answer["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break listed.len(),
        }
    };
    assert_eq!((pages, listed.concat()), (3, all.clone()));
    // The last page is full.
    let answer = get(&trigger, "/v1/trigger-runs?limit=5").await;
    assert_eq!(
        (keys(&answer), &answer["next_cursor"]),
        (all.clone(), &Value::Null)
    );
    for cursor in ["1", "x/k", "1/"] {
        let path = format!("/v1/trigger-runs?cursor={cursor}");
        let (status, answer) = trigger.ask(admin(), "GET", &path, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{cursor}: {answer}");
    }

    // A run for 2,500 tasks: 0, 2, 4, …
    let location = Location::parse(&site.database(), &site.path("")).unwrap();
    let store = Store::connect(&location).unwrap();
    let key = &all[1];
    let run =
        Sql::new("UPDATE intents SET job_id = 7, array_attempt = 1, tasks = 2500 WHERE key = ")
            .bind(key);
    let tasks = Sql::new("INSERT INTO array_tasks (event_key, run_key, task, job_id, failed) WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 2499) SELECT 'e' || n, ")
        .bind(key)
        .push(", 2 * n, 100 + n, '{}' FROM numbers");
    let changed = store.database.change("add tasks", run, vec![tasks]).await;
    assert!(changed.unwrap());
    let answer = get(&trigger, "/v1/trigger-runs").await;
    let runs = answer["runs"].as_array().unwrap();
    let listed = runs.iter().find(|run| run["key"] == **key).unwrap();
    let tasks = |run: &Value| -> Vec<u32> {
        let text = run["tasks"].as_str().unwrap_or_default();
        text.split(',').map(|task| task.parse().unwrap()).collect()
    };
    let even = |numbers: std::ops::Range<u32>| numbers.map(|n| 2 * n).collect::<Vec<_>>();
    assert_eq!(tasks(listed), even(0..100));
    assert_eq!(
        (&listed["task_count"], &listed["next_tasks_after"]),
        (&json!(2500), &json!(198))
    );
    let (mut read, mut after) = (Vec::new(), String::new());
    let pages = loop {
        let run = get(&trigger, &format!("/v1/trigger-runs/{key}{after}")).await;
        read.push(tasks(&run));
        match run["next_tasks_after"].as_u64() {
            Some(next) => after = format!("?tasks_after={next}"),
            None => break read.len(),
        }
    };
    assert_eq!((pages, read.concat()), (3, even(0..2500)));
    trigger.stop().await;
}
