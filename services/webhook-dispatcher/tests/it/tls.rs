//! Receivers with valid and invalid certificates, and without any.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Version};
use axum::serve::Listener;
use mesh_events::EventType;
use mesh_testkit::WebhookReceiver;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair,
    date_time_ymd,
};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::server::TlsStream;

use crate::harness::{Mesh, event, signed};

const HERE: &str = "127.0.0.1";

pub type Authority = CertifiedIssuer<'static, KeyPair>;

pub fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

pub fn params(host: &str) -> CertificateParams {
    CertificateParams::new(vec![host.to_owned()]).unwrap()
}

/// A TLS receiver: HTTP/2 or HTTP/1.1, as negotiated by ALPN.
pub struct TlsReceiver {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    versions: Arc<Mutex<Vec<Version>>>,
}

struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    connections: Arc<AtomicUsize>,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, peer) = self.tcp.accept().await.unwrap();
            self.connections.fetch_add(1, Ordering::SeqCst);
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

impl TlsReceiver {
    /// With a certificate issued by an authority.
    pub async fn certified(params: CertificateParams, authority: &Authority) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        Self::start(&certificate, &key, &["h2", "http/1.1"]).await
    }

    /// With a self-signed certificate.
    async fn self_signed(params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self::start(&certificate, &key, &["h2", "http/1.1"]).await
    }

    async fn start(certificate: &Certificate, key: &KeyPair, protocols: &[&str]) -> Self {
        mesh_runtime::install_crypto_provider();
        let chain = vec![certificate.der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key);
        let mut config = config.unwrap();
        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let tcp = TcpListener::bind((HERE, 0)).await.unwrap();
        let receiver = Self {
            address: tcp.local_addr().unwrap(),
            connections: Arc::default(),
            versions: Arc::default(),
        };
        let listener = TlsListener {
            tcp,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            connections: Arc::clone(&receiver.connections),
        };
        let versions = Arc::clone(&receiver.versions);
        let app = Router::new().fallback(async move |request: Request| {
            versions.lock().unwrap().push(request.version());
            StatusCode::NO_CONTENT
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        receiver
    }

    fn url(&self) -> String {
        format!("https://{}/", self.address)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// A dispatcher that trusts an authority.
async fn trusting(authority: &Authority, endpoints: &[String]) -> Mesh {
    let mut mesh = Mesh::without_dispatcher().await;
    std::fs::write(mesh.folder.path().join("ca.pem"), authority.pem()).unwrap();
    mesh.settings = "ca_file = \"ca.pem\"".to_owned();
    mesh.run(endpoints).await;
    mesh
}

/// The only delivery of an endpoint, with its attempts.
async fn delivery(mesh: &Mesh, endpoint: &str) -> Value {
    let path = format!("/v1/webhooks/{endpoint}/deliveries");
    let (_, list) = mesh.call(Method::GET, &path).await;
    let id = list["deliveries"][0]["event_id"].as_str().unwrap();
    mesh.call(Method::GET, &format!("{path}/{id}")).await.1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_of_ones_own_is_trusted_and_one_connection_serves_many() {
    let own = authority("own");
    let two = TlsReceiver::certified(params(HERE), &own).await;
    let key = KeyPair::generate().unwrap();
    let certificate = params(HERE).signed_by(&key, &own).unwrap();
    let one = TlsReceiver::start(&certificate, &key, &["http/1.1"]).await;
    let endpoints = [
        signed("two", &two.url(), ""),
        signed("one", &one.url(), "concurrency = 1"),
    ];
    let mesh = trusting(&own, &endpoints).await;
    for job in 1..=30 {
        mesh.publish(&event(EventType::JobStarted, job)).await;
        if job == 1 {
            // A request opens a connection if none is idle. Concurrent requests may open several.
            mesh.wait_for_count("two", "delivered", 1).await;
        }
    }
    for name in ["one", "two"] {
        mesh.wait_for_count(name, "delivered", 30).await;
    }
    assert_eq!(*two.versions.lock().unwrap(), [Version::HTTP_2; 30]);
    assert_eq!(two.connections(), 1, "HTTP/2 has all requests on one");
    assert_eq!(*one.versions.lock().unwrap(), [Version::HTTP_11; 30]);
    // A request opens a new connection if the previous one is not known to be finished.
    assert!(one.connections() <= 10, "{} are kept", one.connections());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_cannot_be_trusted_gets_nothing_and_the_attempt_says_why() {
    let (own, other) = (authority("own"), authority("other"));
    let mut expired = params(HERE);
    expired.not_before = date_time_ymd(2020, 1, 1);
    expired.not_after = date_time_ymd(2021, 1, 1);
    let mut early = params(HERE);
    early.not_before = date_time_ymd(2120, 1, 1);
    early.not_after = date_time_ymd(2121, 1, 1);
    // As created by `openssl req -x509`: a CA certificate of its own.
    let mut openssl = params(HERE);
    openssl.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let distrusted = [
        (
            "expired",
            TlsReceiver::certified(expired, &own).await,
            "its certificate has expired; the receiver has to renew it",
        ),
        (
            "early",
            TlsReceiver::certified(early, &own).await,
            "not valid yet; compare the clocks",
        ),
        (
            "name",
            TlsReceiver::certified(params("other.example.org"), &own).await,
            "is for other.example.org",
        ),
        (
            "unknown",
            TlsReceiver::certified(params(HERE), &other).await,
            "of an untrusted authority",
        ),
        (
            "self",
            TlsReceiver::self_signed(params(HERE)).await,
            "of an untrusted authority; the operator adds authorities in webhook-dispatcher.ca_file",
        ),
        (
            "openssl",
            TlsReceiver::self_signed(openssl).await,
            "is self-signed; it needs one of a certificate authority",
        ),
    ];
    let plain = WebhookReceiver::start().await;
    let plain_host = plain.url("").replace("http://", "");
    // Accepts connections and sends nothing.
    let silent = TcpListener::bind((HERE, 0)).await.unwrap();
    let silent_host = silent.local_addr().unwrap().to_string();
    let mut endpoints: Vec<String> = distrusted
        .iter()
        .map(|(name, receiver, _)| signed(name, &receiver.url(), "max_attempts = 2"))
        .collect();
    endpoints.push(signed(
        "plain",
        &format!("https://{plain_host}/"),
        "max_attempts = 2",
    ));
    let silent_url = format!("https://{silent_host}/");
    endpoints.push(
        signed("silent", &silent_url, "max_attempts = 2")
            .replace("timeout = \"30s\"", "timeout = \"1s\""),
    );
    let mesh = trusting(&own, &endpoints).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;

    let mut expected: Vec<(&str, &str, String, &str)> = distrusted
        .iter()
        .map(|(name, receiver, error)| (*name, "tls", receiver.address.to_string(), *error))
        .collect();
    expected.push(("plain", "tls", plain_host, "no TLS on this port"));
    expected.push(("silent", "timeout", silent_host, "no answer within 1s"));
    for (name, cause, host, error) in expected {
        mesh.wait_for_count(name, "dead", 1).await;
        let delivery = delivery(&mesh, name).await;
        let attempts = delivery["tried"].as_array().unwrap();
        assert_eq!(attempts.len(), 2, "{name} is tried again: {delivery}");
        for attempt in attempts {
            assert_eq!(
                (&attempt["cause"], &attempt["status"]),
                (&cause.into(), &0.into())
            );
            let sent = attempt["error"].as_str().unwrap();
            assert!(
                sent.contains(&host) && sent.contains(error),
                "{name}: {sent}"
            );
        }
        let latency = attempts[0]["latency_ms"].as_u64().unwrap();
        assert!(
            name != "silent" || (1_000..15_000).contains(&latency),
            "{latency} ms"
        );
    }
    for (name, receiver, _) in &distrusted {
        assert!(
            receiver.versions.lock().unwrap().is_empty(),
            "{name} was told something"
        );
    }
    assert!(plain.received().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_certificates_is_a_fault_of_the_configuration() {
    let nothing = |_: &Path| Ok("no certificate".to_owned());
    let config: webhook_dispatcher::Config =
        serde_json::from_value(serde_json::json!({"ca_file": "ca.pem"})).unwrap();
    let faults = config.network(nothing, nothing).err().unwrap();
    let sent = faults[0].to_string();
    assert!(
        sent.starts_with("webhook-dispatcher.ca_file: ca.pem has no certificates"),
        "{sent}"
    );
}
