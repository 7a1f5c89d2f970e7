//! One trace per fact across processes: from ingest's read through the services to the first delivery, recorded by an OTLP receiver.

use std::collections::BTreeSet;
use std::path::Path;

use integration::{Cluster, ClusterOptions, Delivery, Receiver, Slurm as _, wait_for};
use mesh_testkit::NatsServer;
use mock_collector::{MockCollector, MockServer, Protocol, ServerHandle, TestSpan};

use crate::processes::{PATIENCE, configure, start, terminate};

/// The services that a fact passes through.
const PATH: [&str; 4] = ["ingest", "cost-engine", "ledger", "webhook-dispatcher"];

async fn collector() -> ServerHandle {
    let server = MockServer::builder().protocol(Protocol::Grpc).port(0);
    server.start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_spans_ingest_cost_engine_ledger_and_the_delivery() {
    let collector = collector().await;
    let receiver = Receiver::start().await.unwrap();
    let nats = NatsServer::start().await;
    let cluster = Cluster::start(&ClusterOptions::small("trace"))
        .await
        .unwrap();
    // Only a doorbell can trigger ingest, because the next poll is an hour away.
    let more = format!(
        "[mesh.telemetry]\notlp_endpoint = \"http://{}\"\n[ingest]\npoll_interval = \"1h\"\n{}",
        collector.addr(),
        receiver.endpoint("pipeline", "types = [\"job.*\", \"cost.*\"]")
    );
    let mesh = configure(&cluster, &nats, &more).await;
    ring(&cluster, &nats);
    // If NATS was too slow, the doorbell is spooled, and no later doorbell would deliver it.
    let _watch = mesh
        .command()
        .args(["hooks", "flush", "--watch", "--interval", "200ms"])
        .arg("--hook-config")
        .arg(cluster.path("ring.toml"))
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut processes = Vec::new();
    for name in PATH {
        let mut process = start(&mesh, name).await;
        process.wait_ready(200).await.unwrap();
        processes.push(process);
    }

    let job = cluster.submit("alice", &[], "true").await.unwrap();
    let completed = delivered(&receiver, "job.completed", job).await;
    let finalized = delivered(&receiver, "cost.finalized", job).await;
    let started = delivered(&receiver, "job.started", job).await;
    // Remaining spans are exported at the end of the processes.
    for process in processes {
        terminate(process).await;
    }

    collector
        .with_collector(|collector| {
            let fact = only(collector, "ingest", "ingest.fact", &completed);
            let trace = Trace {
                id: fact.span().trace_id.clone(),
                spans: collector.spans(),
            };
            assert!(
                fact.span().parent_span_id.is_empty(),
                "the trace begins with the fact"
            );
            for (service, name) in [
                ("ledger", "ledger consume"),
                ("cost-engine", "cost-engine consume"),
                ("webhook-dispatcher", "webhook-dispatcher consume"),
                ("webhook-dispatcher", "webhook.deliver"),
            ] {
                trace.assert_has(&only(collector, service, name, &completed));
            }
            // Events derived from the fact are in its trace, too.
            for (service, name) in [
                ("cost-engine", "cost-engine publish"),
                ("ledger", "ledger consume"),
                ("webhook-dispatcher", "webhook.deliver"),
            ] {
                trace.assert_has(&only(collector, service, name, &finalized));
            }
            trace.assert_is_a_tree();
            trace.assert_links_a_doorbell(collector, &fact);
            // Another fact of the same run has its own trace.
            assert_ne!(
                only(collector, "ingest", "ingest.fact", &started)
                    .span()
                    .trace_id,
                trace.id
            );
        })
        .await;
    collector.shutdown().await.unwrap();
}

/// Connects the cluster's hooks to this server.
fn ring(cluster: &Cluster, nats: &NatsServer) {
    let (config, spool) = (cluster.path("ring.toml"), cluster.path("spool"));
    std::fs::create_dir(&spool).unwrap();
    open(&spool, 0o777);
    std::fs::write(
        &config,
        format!(
            "cluster = \"trace\"\nspool = {spool:?}\n[nats]\nurl = \"{}\"\n",
            nats.url()
        ),
    )
    .unwrap();
    open(&config, 0o644);
    cluster.ring(&config).unwrap();
}

/// SlurmUser runs the hooks.
fn open(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Waits for the delivery of an event of a job. Returns the event's id.
async fn delivered(receiver: &Receiver, kind: &str, job: u32) -> String {
    let about = |delivery: &Delivery| {
        let event = delivery.event()?;
        (event.r#type == kind && event.job()?.job_id == job).then_some(event.id)
    };
    let description = format!("{kind} of job {job} is delivered");
    wait_for(&description, PATIENCE, async || {
        Ok(receiver.deliveries("pipeline").iter().find_map(about))
    })
    .await
    .unwrap()
}

/// The only span of a service for an event.
fn only(collector: &MockCollector, service: &str, name: &str, event: &str) -> TestSpan {
    let matching = collector
        .expect_span_with_name(name)
        .with_resource_attributes([("service.name", service)])
        .with_attributes([("event.id", event)]);
    let found = matching.get_all();
    assert_eq!(
        found.len(),
        1,
        "{name} of {service} about {event}; exported: {:?}",
        names(collector)
    );
    found[0].clone()
}

fn names(collector: &MockCollector) -> BTreeSet<&str> {
    collector
        .spans()
        .iter()
        .map(|span| span.span().name.as_str())
        .collect()
}

struct Trace<'a> {
    id: Vec<u8>,
    spans: &'a [TestSpan],
}

impl Trace<'_> {
    fn assert_has(&self, span: &TestSpan) {
        assert_eq!(
            span.span().trace_id,
            self.id,
            "{} is in the fact's trace",
            span.span().name
        );
    }

    /// Checks that there is one root, and that every other span has an exported parent.
    fn assert_is_a_tree(&self) {
        let members: Vec<_> = self
            .spans
            .iter()
            .map(TestSpan::span)
            .filter(|span| span.trace_id == self.id)
            .collect();
        let known: BTreeSet<_> = members.iter().map(|span| &span.span_id).collect();
        let roots: Vec<_> = members
            .iter()
            .filter(|span| !known.contains(&span.parent_span_id))
            .map(|span| &span.name)
            .collect();
        assert_eq!(roots, ["ingest.fact"]);
    }

    /// Checks that the fact links to the doorbell that caused it, which has its own trace.
    fn assert_links_a_doorbell(&self, collector: &MockCollector, fact: &TestSpan) {
        let consumed = collector.expect_span_with_name("ingest consume");
        let doorbells = consumed.get_all();
        let linked = fact.span().links.iter().any(|link| {
            doorbells.iter().any(|doorbell| {
                doorbell.span().span_id == link.span_id && doorbell.span().trace_id == link.trace_id
            })
        });
        assert!(linked, "a doorbell is linked: {:?}", fact.span().links);
        assert!(
            doorbells
                .iter()
                .all(|doorbell| doorbell.span().trace_id != self.id)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_logs_are_sent_and_a_collector_that_does_not_answer_delays_nothing() {
    let collector = collector().await;
    let nats = NatsServer::start().await;
    let cluster = Cluster::start(&ClusterOptions::small("otlp"))
        .await
        .unwrap();
    let telemetry = |signals: &str, address: std::net::SocketAddr| {
        format!(
            "[mesh.telemetry]\notlp_endpoint = \"http://{address}\"\notlp_signals = {signals}\notlp_metrics_interval = \"1s\"\n"
        )
    };
    let more = telemetry("[\"metrics\", \"logs\"]", collector.addr());
    let mesh = configure(&cluster, &nats, &more).await;
    let mut ledger = start(&mesh, "ledger").await;
    ledger.wait_ready(200).await.unwrap();
    // Every metric that the process shows is sent, with its name.
    let mut missing = BTreeSet::new();
    wait_for("every metric arrives", PATIENCE, async || {
        let page = ledger.get("/metrics").await.body;
        // A histogram without a value is not sent.
        let has_value = |name: &str| {
            let count = format!("{name}_count");
            page.lines()
                .any(|line| line.starts_with(&count) && !line.ends_with(" 0"))
        };
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let shown = types.filter_map(|line| {
            let (name, kind) = line.split_once(' ')?;
            (kind != "histogram" || has_value(name)).then(|| name.to_owned())
        });
        let sent: BTreeSet<String> = collector
            .with_collector(|collector| {
                let names = collector
                    .metrics()
                    .iter()
                    .map(|sent| sent.metric().name.clone());
                names.collect()
            })
            .await;
        missing = shown.filter(|name| !sent.contains(name)).collect();
        Ok((!sent.is_empty() && missing.is_empty()).then_some(()))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {missing:?}"));
    terminate(ledger).await;
    collector
        .with_collector(|collector| {
            collector
                .expect_metric_with_name("mesh_build_info")
                .with_resource_attribute("service.name", "ledger")
                .assert_at_least(1);
            collector
                .expect_log_with_body("ledger started")
                .with_resource_attribute("service.name", "ledger")
                .assert_exists();
            assert_eq!(collector.span_count(), 0, "traces are not named");
        })
        .await;
    collector.shutdown().await.unwrap();

    // Takes connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let all = "[\"traces\", \"metrics\", \"logs\"]";
    let more = telemetry(all, silent.local_addr().unwrap());
    mesh.change(&format!("[mesh.nats]\nurl = \"{}\"\n{more}", nats.url()))
        .unwrap();
    let mut ledger = start(&mesh, "ledger").await;
    ledger.wait_ready(200).await.unwrap();
    assert_eq!(ledger.get("/metrics").await.status, 200);
    terminate(ledger).await;
}
