//! Schedules: each instant fires once, whatever stops and starts.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_db::Location;
use mesh_testkit::{NatsServer, wait_until};
use rand::RngExt as _;
use serde_json::Value;
use workflow_trigger::adapters::schedules::ScheduleState;
use workflow_trigger::adapters::store::Store;
use workflow_trigger::domain::rule::RuleId;

use crate::killed::Process;
use crate::support::{DEADLINE, Site, Trigger, alice, bus, on_both};

on_both!(
    instants_that_were_missed_follow_the_policy,
    two_replicas_fire_an_instant_once
);

fn rule(cron: &str, missed: &str, more: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = {missed:?}\nowner = \"alice\"\non = {{ cron = {cron:?}, zone = \"Europe/Berlin\", missed = {missed:?} }}\naction = {{ submit = \"true.sh\", args = [\"{{{{ data.date }}}}\"] }}\n{more}\n"
    )
}

const NO_SLURM: &str = "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";
const SELDOM: &str = "retry_initial_interval = \"1m\"";

fn id(name: &str) -> RuleId {
    RuleId {
        owner: "alice".to_owned(),
        name: name.to_owned(),
    }
}

/// Says that the last instant of a rule was handled some time ago, as if nothing had run since.
pub async fn stopped_for(site: &Site, name: &str, cron: &str, stop: TimeDelta) {
    let location = Location::parse(&site.database(), &site.path("")).unwrap();
    let store = Store::connect(&location).unwrap();
    let state = ScheduleState {
        schedule: format!("{cron} Europe/Berlin"),
        last: Utc::now() - stop,
    };
    store.store_schedule(&id(name), &state).await.unwrap();
    store.database.close().await;
}

async fn instants(trigger: &Trigger, rule: &str) -> Vec<DateTime<Utc>> {
    let runs = trigger.runs(&format!("rule=alice/{rule}")).await;
    let at = |run: &Value| {
        let id = run["event_id"].as_str().unwrap();
        id.strip_prefix("cron:").unwrap().parse().unwrap()
    };
    let mut instants: Vec<_> = runs.iter().map(at).collect();
    instants.sort();
    instants
}

async fn instants_that_were_missed_follow_the_policy(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    // Half an hour from any instant, so that none comes during the test.
    let minute = (Utc::now() + TimeDelta::minutes(30)).format("%M");
    let cron = format!("{minute} * * * *");
    let rules = ["skip", "once", "all"].map(|missed| rule(&cron, missed, ""));
    let tables = rules.concat() + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    let (_, shown) = trigger
        .ask(alice(), "GET", "/v1/triggers/alice/once", None)
        .await;
    let next = shown["schedule"]["next"].as_array().unwrap();
    assert_eq!(next.len(), 5, "{shown}");
    let (status, tested) = trigger
        .ask(
            alice(),
            "POST",
            "/v1/triggers/alice/once/test",
            Some(serde_json::json!({})),
        )
        .await;
    assert_eq!(status, 200, "{tested}");
    assert_eq!(&tested["schedule"]["next"], &shown["schedule"]["next"]);
    let date = next[0].as_str().unwrap().get(..10).unwrap();
    assert_eq!(tested["action"]["job"]["args"][0], date);
    // A new rule has missed nothing.
    assert!(trigger.runs("").await.is_empty());
    trigger.stop().await;
    for name in ["skip", "once", "all"] {
        stopped_for(&site, name, &cron, TimeDelta::hours(26)).await;
    }
    let trigger = site.start(&nats, SELDOM, &tables).await;
    wait_until("the missed instants have fired", DEADLINE, async || {
        instants(&trigger, "all").await.len() == 24 && instants(&trigger, "once").await.len() == 1
    })
    .await;
    assert!(instants(&trigger, "skip").await.is_empty());
    let all = instants(&trigger, "all").await;
    assert_eq!(instants(&trigger, "once").await.last(), all.last());
    assert!(
        all.windows(2)
            .all(|pair| pair[1] - pair[0] == TimeDelta::hours(1))
    );
    trigger.stop().await;
}

async fn two_replicas_fire_an_instant_once(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let tables = rule("* * * * *", "all", "limits = { per_hour = 1000 }") + NO_SLURM;
    site.start(&nats, SELDOM, &tables).await.stop().await;
    stopped_for(&site, "all", "* * * * *", TimeDelta::minutes(20)).await;
    // SQLite has one process: there the second one begins when the first has ended.
    let replicas = match site.database().starts_with("postgres") {
        true => 2,
        false => 1,
    };
    let mut running = Vec::new();
    for _ in 0..replicas {
        running.push(site.start(&nats, SELDOM, &tables).await);
    }
    wait_until("the instants have fired", DEADLINE, async || {
        instants(&running[0], "all").await.len() >= 20
    })
    .await;
    for trigger in running {
        trigger.stop().await;
    }
    let trigger = site.start(&nats, SELDOM, &tables).await;
    let found = instants(&trigger, "all").await;
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len());
    assert!(
        found
            .windows(2)
            .all(|pair| pair[1] - pair[0] == TimeDelta::minutes(1))
    );
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instant_fires_once_however_often_the_service_is_killed() {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let tables = rule("* * * * *", "all", "limits = { per_hour = 1000 }") + NO_SLURM;
    site.start(&nats, SELDOM, &tables).await.stop().await;
    // Killed again and again while there is something to make up for, and across an instant of the clock.
    stopped_for(&site, "all", "* * * * *", TimeDelta::minutes(20)).await;
    let config = site.configure(&nats, SELDOM, &tables);
    let mut process = Process::start(config);
    let mut kills = 0;
    // Late enough for some kills before it.
    let instant = next_minute(Utc::now() + TimeDelta::seconds(20));
    while Utc::now() < instant + TimeDelta::seconds(2) || kills <= 5 {
        let millis = rand::rng().random_range(50..1_500);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        process.kill();
        kills += 1;
        process.keep_alive();
    }
    process.kill();
    drop(process);
    let trigger = site.start(&nats, SELDOM, &tables).await;
    wait_until("the instant has fired", DEADLINE, async || {
        instants(&trigger, "all").await.contains(&instant)
    })
    .await;
    let found = instants(&trigger, "all").await;
    assert!(found.len() >= 20, "{found:?}");
    assert!(
        found
            .windows(2)
            .all(|pair| pair[1] - pair[0] == TimeDelta::minutes(1)),
        "{found:?}"
    );
    assert!(kills > 5, "{kills}");
    trigger.stop().await;
}

/// The next full minute.
fn next_minute(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp((at.timestamp() / 60 + 1) * 60, 0).unwrap()
}
