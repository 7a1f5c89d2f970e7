//! Bills by run and month (FOCUS), and slices of runs that add up over months.

use crate::api::get;
use crate::support::{DEADLINE, Outside, Site, on_both};
use axum::Router;
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{EventType, timestamp};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::service::{ask, call};
use prost::Message as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

on_both!(
    slices_of_runs_add_up_over_months,
    bills_have_a_row_for_each_run_and_month,
);

async fn bills_have_a_row_for_each_run_and_month(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    let start = chrono::DateTime::parse_from_rfc3339("2025-10-31T23:30:00Z").unwrap();
    let over_midnight = Job {
        start_time: Some(timestamp(start.to_utc())),
        partition: "=cmd".into(),
        ..job(70)
    };
    let end = ended(over_midnight.clone(), "COMPLETED", 5400);
    for event in [
        job_event(EventType::JobStarted, over_midnight),
        job_event(EventType::JobCompleted, end),
    ] {
        outside.publish(&event).await;
    }
    outside.costs(2).await;
    let path = "/v1/costs/focus?since=2025-10-01&until=2025-12-01&billed=effective&site=Site";
    let caller = Caller::peer("root", 0, Role::Admin);
    let text = text(&engine.router, caller, path).await;
    let mut table = csv::Reader::from_reader(text.as_bytes());
    let header = table.headers().unwrap().clone();
    let rows: Vec<_> = table.records().map(Result::unwrap).collect();
    let column = |name: &str| {
        let at = header.iter().position(|column| column == name).unwrap();
        rows.iter()
            .map(|row| row[at].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(column("BilledCost"), ["0.170000", "0.340000"]);
    assert_eq!(column("ListCost"), ["0.170000", "0.340000"]);
    assert_eq!(
        column("PricingQuantity"),
        ["0.500000000000", "1.000000000000"]
    );
    assert_eq!(
        column("BillingPeriodStart"),
        ["2025-10-01T00:00:00Z", "2025-11-01T00:00:00Z"]
    );
    assert_eq!(
        column("ChargePeriodEnd"),
        ["2025-11-01T00:00:00Z", "2025-11-01T01:00:00Z"]
    );
    assert_eq!(column("x_Partition"), ["'=cmd", "'=cmd"]);
    // A closed month is billed. Closing it again changes nothing.
    let periods = "/v1/costs/periods";
    let october = "/v1/costs/periods/2025-10";
    let client = async_nats::connect(nats.url()).await.unwrap();
    let mut audit = client.subscribe("mesh.*.audit.cost").await.unwrap();
    client.flush().await.unwrap();
    let close = async |user: &str, role, path: &str| {
        let caller = Caller::peer(user, 0, role);
        ask(&engine.router, caller, "POST", path, None).await
    };
    let (forbidden, _) = close("eve", Role::Auditor, october).await;
    let (open, _) = close("root", Role::Admin, "/v1/costs/periods/2999-01").await;
    assert_eq!(
        (forbidden, open),
        (StatusCode::FORBIDDEN, StatusCode::BAD_REQUEST)
    );
    let (status, closed) = close("root", Role::Admin, october).await;
    assert_eq!(status, StatusCode::OK, "{closed}");
    assert_eq!(close("admin", Role::Admin, october).await.1, closed);
    let (_, listed) = get(&engine.router, "root", periods).await;
    assert_eq!(listed["periods"], json!([closed]));
    let (_, shown) = get(&engine.router, "root", october).await;
    let report = shown["report"].as_str().unwrap();
    let digest = hex::encode(Sha256::digest(report.as_bytes()));
    assert_eq!(closed["sha256"], digest);
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["rows"][0]["total_micros"], "170000", "{report}");
    let shared = self::text(
        &engine.router,
        Caller::peer("root", 0, Role::Admin),
        "/v1/costs/focus?since=2025-10-01&until=2025-12-01",
    );
    let billed: Vec<_> = shared
        .await
        .lines()
        .skip(1)
        .map(|line| line[..8].to_owned())
        .collect();
    assert_eq!(billed, ["0.170000", "0.000000"]);
    let message = tokio::time::timeout(DEADLINE, audit.next()).await;
    let entry = AuditEntry::decode(message.unwrap().unwrap().payload).unwrap();
    let Some(Act::Cost(act)) = entry.act else {
        panic!("{entry:?}")
    };
    assert_eq!(
        (act.period.as_str(), act.report_sha256, act.made_by.as_str()),
        ("2025-10", digest, "root")
    );
    // Nobody else's.
    let other = Caller::peer("bob", 3, Role::User);
    assert_eq!(
        self::text(&engine.router, other, path)
            .await
            .lines()
            .count(),
        1
    );
    engine.stop().await;
}

/// The body of an answer that is not JSON.
async fn text(router: &Router, caller: Caller, path: &str) -> String {
    let request = axum::http::Request::get(path).body(axum::body::Body::empty());
    let (status, body) = call(router, caller, request.unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    String::from_utf8(body.to_vec()).unwrap()
}

async fn slices_of_runs_add_up_over_months(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    // Half an hour before and an hour after midnight in Berlin, and a run within November.
    let start = |text: &str| chrono::DateTime::parse_from_rfc3339(text).unwrap().to_utc();
    let run = |id, from| Job {
        start_time: Some(timestamp(start(from))),
        ..job(id)
    };
    let over_midnight = run(60, "2025-10-31T22:30:00Z");
    let within = run(61, "2025-11-10T08:00:00Z");
    for job in [&over_midnight, &within] {
        outside
            .publish(&job_event(EventType::JobStarted, job.clone()))
            .await;
        let end = ended(job.clone(), "COMPLETED", 5400);
        outside
            .publish(&job_event(EventType::JobCompleted, end))
            .await;
    }
    outside.costs(4).await;
    let report = async |query: &str| {
        let path = format!("/v1/costs?{query}&until=2026-01-01");
        let (status, report) = get(&engine.router, "root", &path).await;
        assert_eq!(status, StatusCode::OK, "{report}");
        let rows = report["rows"].as_array().unwrap();
        let row = |row: &Value| {
            let field = |name: &str| row[name].as_str().unwrap().to_owned();
            let seconds = row["charged_seconds"].as_u64().unwrap();
            (field("key"), field("total_micros"), seconds)
        };
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let row = |key: &str, micros: &str, seconds| (key.to_owned(), micros.to_owned(), seconds);
    let by_end = report("by=month").await;
    // The first run ended in the first second of November, UTC.
    assert_eq!(by_end, [row("2025-11", "1020000", 10_800)]);
    let cost = |rows: &[(String, String, u64)]| {
        rows.iter()
            .map(|row| row.1.parse::<i64>().unwrap())
            .sum::<i64>()
    };
    let berlin = report("by=month&attribution=slice&timezone=Europe/Berlin").await;
    assert_eq!(
        berlin,
        [
            row("2025-10", "170000", 1800),
            row("2025-11", "850000", 9000)
        ]
    );
    assert_eq!(cost(&berlin), cost(&by_end));
    let utc = report("by=month&attribution=slice").await;
    assert_eq!(
        utc,
        [
            row("2025-10", "510000", 5400),
            row("2025-11", "510000", 5400)
        ]
    );
    // A period that begins within the run.
    let part = report("by=user&attribution=slice&since=2025-10-31T22:45:00Z").await;
    assert_eq!(part, [row("alice", "935000", 9900)]);
    // The month by name, and by day.
    let november =
        report("by=user&attribution=slice&timezone=Europe/Berlin&since=2025-10-31T23:00:00Z").await;
    assert_eq!(november, [row("alice", "850000", 9000)]);
    let days = report("by=day&attribution=slice&timezone=Europe/Berlin").await;
    assert_eq!(days.first(), Some(&row("2025-10-31", "170000", 1800)));
    assert_eq!(cost(&days), cost(&by_end));
    let path = "/v1/costs?period=2025-11&attribution=slice&timezone=Europe/Berlin";
    let (_, named) = get(&engine.router, "root", path).await;
    assert_eq!(named["rows"][0]["total_micros"], "850000", "{named}");
    for wrong in [
        "period=2025-13",
        "period=2025-11&since=2025-11-01",
        "by=day",
    ] {
        let (status, _) = get(&engine.router, "root", &format!("/v1/costs?{wrong}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    let (status, problem) = get(&engine.router, "root", "/v1/costs?timezone=Europe/Berlin").await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    engine.stop().await;
}
