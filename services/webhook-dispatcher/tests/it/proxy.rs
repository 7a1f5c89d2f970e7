//! Receivers that are reached through the operator's proxy.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use mesh_events::EventType;
use mesh_testkit::WebhookReceiver;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use webhook_dispatcher::Config;
use webhook_dispatcher::attempt::cause::Cause;
use webhook_dispatcher::delivery::http::Http;

use crate::dns::{Dns, Zone, always};
use crate::harness::{Mesh, endpoint as lines, event};
use crate::ssrf::{endpoint, judge, send};
use crate::tls::{TlsReceiver, authority, params};

/// Behaviour of a proxy.
#[derive(Clone, Copy)]
enum Manner {
    /// Connects every request to this receiver, whatever its target.
    Connect(SocketAddr),
    /// Responds with this status.
    Refuse(u16),
    /// Accepts connections and sends nothing.
    Silent,
}

/// A proxy for one test.
struct Proxy {
    address: SocketAddr,
    /// The head of each request.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            heads: Arc::default(),
        };
        let heads = Arc::clone(&proxy.heads);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, manner, Arc::clone(&heads)));
            }
        });
        proxy
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// Its configuration section, with further keys.
    fn config(&self, more: &Value) -> Config {
        let mut config = json!({"proxy": {"url": format!("http://{}", self.address)}});
        for (key, value) in more.as_object().unwrap() {
            match (key.as_str(), value) {
                ("proxy", Value::Object(settings)) => {
                    for (key, value) in settings {
                        config["proxy"][key] = value.clone();
                    }
                }
                _ => config[key] = value.clone(),
            }
        }
        serde_json::from_value(config).unwrap()
    }
}

async fn serve(stream: TcpStream, manner: Manner, heads: Arc<Mutex<Vec<String>>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    heads.lock().unwrap().push(head.clone());
    match manner {
        Manner::Silent => std::future::pending().await,
        Manner::Refuse(status) => {
            let answer = format!("HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.ok()
        }
        Manner::Connect(receiver) => {
            let mut receiver = TcpStream::connect(receiver).await.ok()?;
            if head.starts_with("CONNECT ") {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()?;
            } else {
                // Not encrypted: forwarded unchanged.
                receiver.write_all(head.as_bytes()).await.ok()?;
            }
            copy_bidirectional(&mut stream, &mut receiver)
                .await
                .ok()
                .map(drop)
        }
    }
}

fn http(config: &Config) -> Http {
    mesh_runtime::install_crypto_provider();
    let nothing = |_: &Path| Err(std::io::Error::other("no files"));
    Http::new(config.network(nothing, nothing).unwrap_or_default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_go_by_the_proxy_with_its_credentials_and_no_password_is_shown() {
    let own = authority("own");
    let encrypted = TlsReceiver::certified(params("receiver.example.org"), &own).await;
    let proxy = Proxy::start(Manner::Connect(encrypted.address)).await;
    let direct = WebhookReceiver::start().await;
    let dns = Dns::start([("receiver.example.org", always(&["127.0.0.2"]))]).await;
    let mut mesh = Mesh::without_dispatcher().await;
    let write =
        |name: &str, text: &str| mesh_testkit::write_private(&mesh.folder.path().join(name), text);
    write("ca.pem", &own.pem());
    write("login", "mesh:s3cret\n");
    mesh.settings = format!("{}\nca_file = \"ca.pem\"", dns.setting());
    let section = format!(
        "[webhook-dispatcher.proxy]\nurl = \"http://{}\"\ncredentials_file = \"login\"\nno_proxy = [\"127.0.0.0/8\"]\n",
        proxy.address
    );
    let secret = format!("secret = \"{}\"", crate::harness::SECRET);
    let endpoints = [
        lines("encrypted", "https://receiver.example.org/", &secret),
        lines("direct", &direct.url("/"), &secret) + &section,
    ];
    mesh.run(&endpoints).await;
    for job in 1..=3 {
        mesh.publish(&event(EventType::JobStarted, job)).await;
        mesh.wait_for_count("encrypted", "delivered", u64::from(job))
            .await;
    }
    mesh.wait_for_count("direct", "delivered", 3).await;
    let heads = proxy.heads();
    for head in &heads {
        assert!(
            head.starts_with("CONNECT receiver.example.org:443 HTTP/1.1\r\n"),
            "{head}"
        );
        // mesh:s3cret
        let login = head.to_lowercase().contains("proxy-authorization: basic ");
        assert!(login && head.contains("bWVzaDpzM2NyZXQ="), "{head}");
    }
    assert!(!heads.is_empty() && direct.received().len() == 3);
    assert!(
        direct
            .received()
            .iter()
            .all(|request| !request.headers.contains_key("proxy-authorization"))
    );

    let config = mesh_runtime::ConfigFile::load(
        &[mesh_runtime::ServiceSection::of::<
            webhook_dispatcher::WebhookDispatcherService,
        >()],
        Some(&mesh.write_config(&[format!("{section}credentials = \"mesh:s3cret\"")])),
    );
    let shown = config.unwrap().print().unwrap();
    assert!(
        !shown.contains("s3cret") && shown.contains("********"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_judges_before_the_proxy_is_asked() {
    let (port, connections) = judge(&["127.0.0.1"]).await;
    let proxy = Proxy::start(Manner::Connect(([127, 0, 0, 1], port).into())).await;
    let dns = Dns::start([
        ("public.example.org", always(&["127.0.0.2"])),
        ("inner.example.org", always(&["127.0.0.1"])),
        // The proxy may choose either address.
        ("both.example.org", always(&["127.0.0.2", "10.0.0.1"])),
        ("meta.example.org", Zone::Alias("inner.example.org")),
    ])
    .await;
    let settings = json!({"dns_servers": [dns.address.to_string()]});
    let http = http(&proxy.config(&settings));
    let allowed = endpoint(&["127.0.0.2/32"]);
    for host in [
        "127.0.0.1",
        "2130706433",
        "169.254.169.254",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "inner.example.org",
        "both.example.org",
        "meta.example.org",
        "localhost",
    ] {
        for scheme in ["http", "https"] {
            let failure = send(&http, &allowed, &format!("{scheme}://{host}:{port}/")).await;
            let failure = failure.expect_err(host);
            assert_eq!(
                Cause::from(failure.kind),
                Cause::Address,
                "{host}: {failure:?}"
            );
        }
    }
    assert!(proxy.heads().is_empty(), "{:?}", proxy.heads());
    assert_eq!(connections.load(Ordering::SeqCst), 0);

    // Permitted names go through the proxy. A name without a local address is left to the proxy.
    for host in ["public.example.org", "unknown.example.org"] {
        let status = send(&http, &allowed, &format!("http://{host}:{port}/")).await;
        assert_eq!(status.unwrap(), 204, "{host}");
    }
    assert_eq!(
        (proxy.heads().len(), connections.load(Ordering::SeqCst)),
        (2, 2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_fails_is_told_from_a_receiver_that_fails() {
    let everywhere = endpoint(&["0.0.0.0/0"]);
    let failure = async |proxy: &Proxy, url: &str| {
        let failure = send(&http(&proxy.config(&json!({}))), &everywhere, url).await;
        let failure = failure.expect_err(url);
        // Its owner need not know the hosts of the site.
        let is_named = failure.error.contains(&proxy.address.ip().to_string());
        assert!(
            failure.error.contains("the site's proxy") && !is_named,
            "{failure:?}"
        );
        failure
    };
    let (plain, encrypted) = ("http://127.0.0.2:9/", "https://127.0.0.2:9/");

    let proxy = Proxy::start(Manner::Refuse(403)).await;
    let refused = failure(&proxy, encrypted).await;
    assert!(
        Cause::from(refused.kind) == Cause::Proxy && refused.error.contains("or cannot reach it"),
        "{refused:?}"
    );

    let proxy = Proxy::start(Manner::Refuse(407)).await;
    for url in [plain, encrypted] {
        let refused = failure(&proxy, url).await;
        assert!(
            Cause::from(refused.kind) == Cause::Proxy
                && refused.error.contains("proxy.credentials_file"),
            "{refused:?}"
        );
    }

    // No test uses this port.
    let down = Proxy {
        address: ([127, 0, 0, 1], 1).into(),
        heads: Arc::default(),
    };
    for url in [plain, encrypted] {
        let refused = failure(&down, url).await;
        assert!(
            Cause::from(refused.kind) == Cause::Proxy
                && refused.error.starts_with("connect to the site's proxy"),
            "{refused:?}"
        );
    }

    let silent = Proxy::start(Manner::Silent).await;
    let mut hasty = everywhere.clone();
    hasty.timeout = std::time::Duration::from_secs(1);
    let http = http(&silent.config(&json!({})));
    let failure = send(&http, &hasty, encrypted).await.unwrap_err();
    assert!(
        Cause::from(failure.kind) == Cause::Timeout
            && failure.error.contains("by the site's proxy"),
        "{failure:?}"
    );

    // A receiver behind the proxy without a certificate is itself at fault.
    let (port, _) = judge(&["127.0.0.1"]).await;
    let proxy = Proxy::start(Manner::Connect(([127, 0, 0, 1], port).into())).await;
    let refused = send(
        &self::http(&proxy.config(&json!({}))),
        &everywhere,
        encrypted,
    )
    .await;
    let refused = refused.unwrap_err();
    assert!(
        Cause::from(refused.kind) == Cause::Tls && refused.error.contains("127.0.0.2:9"),
        "{refused:?}"
    );
}
