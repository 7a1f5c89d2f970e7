//! Names whose addresses change between lookups, or that are aliases of internal addresses. A test DNS server gives
//! the answers, and a listener counts connections.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use axum::http::Method;
use axum::response::{AppendHeaders, IntoResponse as _};
use axum::{Router, http::StatusCode};
use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::rdata::CNAME;
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use mesh_events::EventType;
use tokio::net::{TcpListener, UdpSocket};

use crate::harness::{Mesh, event, signed};
use crate::ssrf::judge;

/// Records of a name.
pub enum Zone {
    /// Returns these answers in turn, then starts over. No answer may be reused.
    InTurn(Vec<Vec<IpAddr>>),
    /// An alias (CNAME) of another name.
    Alias(&'static str),
    /// No answer.
    Silent,
}

/// A DNS server for one test, with the number of lookups of IPv4 addresses per name.
pub struct Dns {
    pub address: SocketAddr,
    asked: Arc<Mutex<HashMap<String, usize>>>,
}

impl Dns {
    pub async fn start(zones: impl IntoIterator<Item = (&'static str, Zone)>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let dns = Self {
            address: socket.local_addr().unwrap(),
            asked: Arc::default(),
        };
        let asked = Arc::clone(&dns.asked);
        let zones: HashMap<&str, Zone> = zones.into_iter().collect();
        tokio::spawn(async move {
            let mut packet = [0; 2048];
            while let Ok((length, peer)) = socket.recv_from(&mut packet).await {
                let question = Message::from_vec(&packet[..length]).unwrap();
                if let Some(answer) = answer(&zones, &asked, &question) {
                    drop(socket.send_to(&answer.to_vec().unwrap(), peer).await);
                }
            }
        });
        dns
    }

    /// The configuration key that selects this server.
    pub fn setting(&self) -> String {
        format!("dns_servers = [\"{}\"]", self.address)
    }

    pub fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

fn answer(
    zones: &HashMap<&str, Zone>,
    asked: &Mutex<HashMap<String, usize>>,
    question: &Message,
) -> Option<Message> {
    let query = question.queries[0].clone();
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    answer.add_query(query.clone());
    let mut name = query.name.to_ascii().trim_end_matches('.').to_owned();
    let v4 = query.query_type == RecordType::A;
    if v4 {
        *asked.lock().unwrap().entry(name.clone()).or_default() += 1;
    }
    let mut owner = query.name.clone();
    // A time to live of zero: no caching.
    let record = |owner, data| Record::from_rdata(owner, 0, data);
    loop {
        match zones.get(name.as_str()) {
            None => answer.metadata.response_code = ResponseCode::NXDomain,
            Some(Zone::Silent) => return None,
            Some(Zone::Alias(other)) => {
                let target: hickory_resolver::proto::rr::Name =
                    format!("{other}.").parse().unwrap();
                answer.add_answer(record(owner, RData::CNAME(CNAME(target.clone()))));
                (owner, name) = (target, (*other).to_owned());
                continue;
            }
            Some(Zone::InTurn(turns)) => {
                let turn = asked
                    .lock()
                    .unwrap()
                    .get(&name)
                    .map_or(0, |times| times - 1);
                let turn = &turns[turn % turns.len()];
                for address in turn.iter().filter(|address| address.is_ipv4() == v4) {
                    answer.add_answer(record(owner.clone(), RData::from(*address)));
                }
            }
        }
        return Some(answer);
    }
}

pub fn always(addresses: &[&str]) -> Zone {
    Zone::InTurn(vec![
        addresses.iter().map(|text| text.parse().unwrap()).collect(),
    ])
}

/// A receiver at 127.0.0.2, on a port where a listener counts connections at 127.0.0.1. Every request opens a new
/// connection, and thus makes a lookup.
async fn neighbour(port: u16) {
    let listener = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    let app = Router::new().fallback(async || {
        let close = AppendHeaders([("connection", "close")]);
        (StatusCode::NO_CONTENT, close).into_response()
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
}

/// An endpoint that may be at 127.0.0.2, but not at 127.0.0.1.
fn named(endpoint: &str, host: &str, port: u16, more: &str) -> String {
    signed(endpoint, &format!("http://{host}:{port}/"), more).replace("127.0.0.0/8", "127.0.0.2/32")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_that_is_checked_is_the_one_that_is_dialled() {
    let turn = |text: &str| vec![text.parse().unwrap()];
    let dns = Dns::start([
        (
            "rebind.example.org",
            Zone::InTurn(vec![
                turn("127.0.0.2"),
                turn("127.0.0.1"),
                turn("169.254.169.254"),
            ]),
        ),
        (
            "both.example.org",
            always(&["127.0.0.1", "127.0.0.2", "::1"]),
        ),
        ("inner.example.org", always(&["127.0.0.1"])),
        ("meta.example.org", always(&["169.254.169.254"])),
        ("mapped.example.org", always(&["::ffff:127.0.0.1"])),
        ("nat64.example.org", always(&["64:ff9b::7f00:1"])),
        ("sixtofour.example.org", always(&["2002:7f00:1::1"])),
        ("alias.example.org", Zone::Alias("inner.example.org")),
        ("silent.example.org", Zone::Silent),
    ])
    .await;
    let (port, connections) = judge(&["127.0.0.1"]).await;
    neighbour(port).await;
    let refused = ["inner", "meta", "mapped", "nat64", "sixtofour", "alias"];
    let mut endpoints: Vec<String> = refused
        .into_iter()
        .chain(["missing", "silent"])
        .map(|name| {
            named(
                name,
                &format!("{name}.example.org"),
                port,
                "max_attempts = 2",
            )
        })
        .collect();
    for endpoint in &mut endpoints {
        if endpoint.contains("silent") {
            *endpoint = endpoint.replace("timeout = \"30s\"", "timeout = \"1s\"");
        }
    }
    let patient = "max_attempts = 60\nconcurrency = 1";
    endpoints.push(named("rebind", "rebind.example.org", port, patient));
    endpoints.push(named("both", "both.example.org", port, "concurrency = 1"));
    let mut mesh = Mesh::without_dispatcher().await;
    mesh.settings = dns.setting();
    mesh.run(&endpoints).await;
    for job in 1..=4 {
        mesh.publish(&event(EventType::JobStarted, job)).await;
    }

    mesh.wait_for_count("rebind", "delivered", 4).await;
    assert!(dns.asked("rebind.example.org") >= 6, "each lie was told");
    mesh.wait_for_count("both", "delivered", 4).await;
    assert!(dns.asked("both.example.org") >= 4);
    let sent = async |name: &str| {
        mesh.wait_for_count(name, "dead", 4).await;
        let path = format!("/v1/webhooks/{name}/deliveries");
        let (_, answer) = mesh.call(Method::GET, &path).await;
        let delivery = &answer["deliveries"][0];
        assert_eq!(delivery["attempts"], 2, "{delivery}");
        let text = |key: &str| delivery[key].as_str().unwrap().to_owned();
        (text("cause"), text("error"))
    };
    for name in refused {
        let (cause, error) = sent(name).await;
        assert_eq!(cause, "address", "{name}: {error}");
        assert!(
            error.contains(&format!(
                "{name}.example.org is at an address that may not be reached"
            )) && !["127.0.0.1", "169.254", "7f00"]
                .iter()
                .any(|inner| error.contains(inner)),
            "{error}"
        );
    }
    let (cause, error) = sent("missing").await;
    assert!(
        cause == "address" && error.contains("is the address of the webhook right?"),
        "{cause}: {error}"
    );
    let (cause, error) = sent("silent").await;
    assert!(
        cause == "timeout"
            && error.contains("look up silent.example.org")
            && error.contains("no answer from webhook-dispatcher.dns_servers within 1s"),
        "{cause}: {error}"
    );
    assert_eq!(connections.load(Ordering::SeqCst), 0, "nobody came");
}
