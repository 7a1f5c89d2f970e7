//! TLS, client certificates and NKeys of a real nats-server. Replaced files take effect without a restart of ours.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use mesh_bus::{Bus, Config};
use mesh_events::EventType::JobStarted;
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{NatsServer, write_private};
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa};
use tokio_util::sync::CancellationToken;

use crate::PATIENCE;

/// A folder with certificates of an authority, a server and a client.
struct Pki {
    folder: tempfile::TempDir,
}

impl Pki {
    fn new() -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let pki = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        pki.issue("127.0.0.1");
        pki
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates a new authority, and certificates signed by it: the server's for a host.
    fn issue(&self, host: &str) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        write_private(&self.path("ca.pem"), ca.pem());
        for (name, host) in [("server", host), ("client", "ingest")] {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &ca).unwrap();
            write_private(&self.path(&format!("{name}.pem")), certificate.pem());
            write_private(&self.path(&format!("{name}.key")), key.serialize_pem());
        }
    }

    fn server(&self, more: &str) -> String {
        format!(
            "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, timeout: 10 {more} }}\n",
            self.path("server.pem"),
            self.path("server.key"),
            self.path("ca.pem"),
        )
    }
}

async fn connect(config: &Config) -> Bus {
    Bus::connect(config, "ingest").await.unwrap()
}

async fn stores(bus: &Bus, id: u32) {
    let shutdown = CancellationToken::new();
    tokio::time::timeout(PATIENCE, async {
        bus.ready(&shutdown).await.unwrap();
        while bus.publish(&job_event(JobStarted, job(id))).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("nothing is stored: {:?}", bus.problem()));
}

/// Waits until the bus reports why it has no connection.
async fn assert_problem(bus: &Bus, text: &str) {
    let start = tokio::time::Instant::now();
    loop {
        let problem = bus.problem().unwrap_or_default();
        if problem.contains(text) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{text:?} is not in {problem:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_believed_if_its_authority_is_and_a_new_one_counts_without_a_restart() {
    let pki = Pki::new();
    let mut nats = NatsServer::start_with(&pki.server("")).await;
    let config = Config {
        url: nats.url(),
        ca_file: Some(pki.path("ca.pem")),
        ..Config::default()
    };
    let foreign = Config {
        ca_file: None,
        ..config.clone()
    };
    let bus = connect(&config).await;
    stores(&bus, 1).await;
    assert!(bus.problem().is_none());
    let foreign = connect(&foreign).await;
    assert_problem(&foreign, "invalid peer certificate: UnknownIssuer").await;
    pki.issue("127.0.0.1");
    nats.restart().await;
    stores(&bus, 2).await;
    pki.issue("nats.example.org");
    nats.restart().await;
    assert_problem(&bus, "not valid for name").await;
    pki.issue("127.0.0.1");
    nats.restart().await;
    stores(&bus, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_required_where_an_authority_is_named() {
    let pki = Pki::new();
    let nats = NatsServer::start().await;
    let bus = connect(&Config {
        url: nats.url(),
        ca_file: Some(pki.path("ca.pem")),
        ..Config::default()
    })
    .await;
    // The server has no TLS: nothing may go to it in clear.
    assert_problem(&bus, "NATS does not answer (").await;
    assert!(!bus.connected());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_for_a_certificate_gets_ours() {
    let pki = Pki::new();
    let nats = NatsServer::start_with(&pki.server(", verify: true")).await;
    let without = Config {
        url: nats.url(),
        ca_file: Some(pki.path("ca.pem")),
        ..Config::default()
    };
    let config = Config {
        cert_file: Some(pki.path("client.pem")),
        key_file: Some(pki.path("client.key")),
        ..without.clone()
    };
    stores(&connect(&config).await, 1).await;
    assert_problem(&connect(&without).await, "NATS does not answer (").await;
    // A private key that others may read is refused.
    std::fs::set_permissions(pki.path("client.key"), PermissionsExt::from_mode(0o644)).unwrap();
    let error = Bus::connect(&config, "ingest").await.err().unwrap();
    assert!(error.to_string().contains("mesh.nats.key_file"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_nkey_is_rotated_without_a_restart_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let seed = folder.path().join("nats.seed");
    let users = |keys: &[&KeyPair]| {
        let users: Vec<String> = keys
            .iter()
            .map(|key| format!("{{ nkey: {} }}", key.public_key()))
            .collect();
        format!("authorization {{ users: [{}] }}", users.join(", "))
    };
    let [old, new] = [KeyPair::new_user(), KeyPair::new_user()];
    write_private(&seed, format!("{}\n", old.seed().unwrap()));
    let mut nats = NatsServer::start_with(&users(&[&old])).await;
    let config = Config {
        url: nats.url(),
        nkey_file: Some(seed.clone()),
        ..Config::default()
    };
    let bus = connect(&config).await;
    stores(&bus, 1).await;
    write_private(&seed, new.seed().unwrap());
    nats.configure(&users(&[&new]));
    nats.restart().await;
    stores(&bus, 2).await;
    write_private(&seed, old.seed().unwrap());
    nats.restart().await;
    assert_problem(&bus, "authorization violation").await;
}
