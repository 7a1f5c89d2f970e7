//! The price book: at the start, and when it changes.

use mesh_events::EventType;
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::wait_until;

use crate::api::get;
use crate::support::{DEADLINE, EXAMPLE, Outside, Site, amounts, label};

#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_price_book_stops_the_start_with_file_line_and_key() {
    let site = Site::new(&EXAMPLE.replace("\"16.3863\"", "\"sixteen\""));
    let Err(error) = site.start("url = \"nats://127.0.0.1:1\"").await else {
        panic!("started")
    };
    let text = mesh_runtime::error_chain(error.as_ref());
    let line = 1 + EXAMPLE
        .lines()
        .position(|line| line.contains("16.3863"))
        .unwrap();
    assert!(
        text.contains(&format!(
            "{}: line {line}: node_type.price.on_demand",
            site.path("prices.toml").display()
        )),
        "{text}"
    );

    std::fs::remove_file(site.path("prices.toml")).unwrap();
    let Err(error) = site.start("url = \"nats://127.0.0.1:1\"").await else {
        panic!("started")
    };
    let text = mesh_runtime::error_chain(error.as_ref());
    assert!(
        text.contains("read price book") && text.contains("prices.toml"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn prices_changed_under_the_same_version_are_refused_at_the_start() {
    let site = Site::new(EXAMPLE);
    let unreachable = "url = \"nats://127.0.0.1:1\"";
    site.start(unreachable).await.unwrap().stop().await;
    site.write_book(&format!("# checked by finance\n{EXAMPLE}"));
    site.start(unreachable).await.unwrap().stop().await;
    site.write_book(&EXAMPLE.replace("\"0.34\"", "\"1.00\""));
    let Err(error) = site.start(unreachable).await else {
        panic!("started")
    };
    let text = mesh_runtime::error_chain(error.as_ref());
    assert!(
        text.contains("prices.toml changed but has the label \"example 2026-07\"")
            && text.contains("change `version`"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_price_of_zero_is_no_price() {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let site = Site::new(&EXAMPLE.replace("\"0.34\"", "\"0\""));
    let engine = site.start(&nats.toml()).await.unwrap();
    outside
        .publish(&job_event(EventType::JobStarted, job(30)))
        .await;
    let (_, estimated) = &outside.costs(1).await[0];
    assert_eq!(amounts(estimated).0, None, "{estimated:?}");
    assert!(
        format!("{estimated:?}").contains("price_missing: "),
        "{estimated:?}"
    );
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_starts_while_nats_is_unavailable() {
    let site = Site::new(EXAMPLE);
    let engine = site.start("url = \"nats://127.0.0.1:1\"").await.unwrap();
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_book_counts_from_the_next_cost_on() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let next = EXAMPLE
        .replace("2026-07\"", "2026-08\"")
        .replace("\"0.34\"", "\"1.00\"");
    site.write_book(&next);
    let used = async || get(&engine.router, "root", "/v1/costs/live").await.1["price_book"].clone();
    wait_until("the new book is used", DEADLINE, async || {
        used().await == label(&next)
    })
    .await;
    outside
        .publish(&job_event(EventType::JobStarted, job(30)))
        .await;
    assert_eq!(amounts(&outside.costs(1).await[0].1).0, Some(1_000_000));

    engine.stop().await;
}
