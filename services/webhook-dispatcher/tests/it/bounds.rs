//! Receivers that hang, send slowly or without end, redirect, or have forbidden addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::Method;
use mesh_events::EventType;
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{DEADLINE, Mesh, event, signed};

/// What a bad server does after it received a request.
#[derive(Clone, Copy)]
enum Badness {
    /// Sends nothing.
    Hang,
    /// Sends one byte of the headers at a time.
    DripHeaders,
    /// Sends the headers of a failure, then slowly a body without end.
    DripBody,
    /// Sends the headers of a failure and the beginning of a body, then resets.
    Reset,
    /// Sends the headers of a success, then a body without end at full speed.
    Flood,
}

/// A bad server. Counts the bytes it could send and its connections.
async fn bad_server(badness: Badness) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(misbehave(stream, badness, Arc::clone(&counter)));
        }
    });
    (url, sent)
}

async fn misbehave(mut stream: TcpStream, badness: Badness, sent: Arc<AtomicUsize>) {
    let mut request = vec![0; 64 * 1024];
    if stream.read(&mut request).await.unwrap_or(0) == 0 {
        return;
    }
    let (start, piece, pause): (&[u8], &[u8], u64) = match badness {
        Badness::Hang => (b"", b"", 60_000),
        Badness::DripHeaders => (b"HTTP/1.1 200 OK\r\nx-slow: ", b"a", 50),
        Badness::DripBody => (
            b"HTTP/1.1 500 No\r\ncontent-length: 1000000\r\n\r\n",
            b"a",
            50,
        ),
        Badness::Reset => (
            b"HTTP/1.1 503 No\r\ncontent-length: 1000000\r\n\r\nlater",
            b"",
            100,
        ),
        Badness::Flood => (
            b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n",
            &[b'a'; 16 * 1024],
            0,
        ),
    };
    let mut result = stream.write_all(start).await;
    while result.is_ok() {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if matches!(badness, Badness::Reset) {
            // A socket that is closed with unsent data discarded sends a reset.
            stream.set_zero_linger().unwrap();
            return;
        }
        result = stream.write_all(piece).await;
        sent.fetch_add(piece.len(), Ordering::Relaxed);
    }
}

/// A single attempt with a long timeout, so that a busy machine cannot end it before the good receiver was served.
fn patient(name: &str, url: &str) -> String {
    signed(name, url, "max_attempts = 1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_hang_use_up_what_all_have_together_and_keep_nobody_out() {
    let (hang, good) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    hang.answer_always(CannedResponse {
        delay: Duration::from_secs(60 * 60),
        ..CannedResponse::status(204)
    });
    let mut mesh = Mesh::without_dispatcher().await;
    mesh.settings = "max_in_flight = 5".to_owned();
    let hanging = ["one", "two", "three"]
        .map(|name| signed(name, &hang.url("/"), "types = [\"job.started\"]"));
    let healthy = signed("good", &good.url("/"), "types = [\"job.submitted\"]");
    mesh.run(&[hanging.as_slice(), &[healthy]].concat()).await;
    for job in 1..=20 {
        mesh.publish(&event(EventType::JobStarted, job)).await;
    }
    wait_until("no more can be under way", DEADLINE, async || {
        hang.received().len() >= 5 + 3
    })
    .await;
    for job in 1..=20 {
        mesh.publish(&event(EventType::JobSubmitted, job)).await;
    }
    mesh.wait_for_count("good", "delivered", 20).await;
    // The first requests end after thirty seconds, and others take their places.
    let hung = hang.received();
    let at_first = hung
        .iter()
        .filter(|request| request.at - hung[0].at < Duration::from_secs(25));
    assert_eq!(at_first.count(), 5 + 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_and_dripping_receivers_are_given_up_at_the_deadline_and_others_do_not_notice() {
    let (hang, _) = bad_server(Badness::Hang).await;
    let (headers, _) = bad_server(Badness::DripHeaders).await;
    let (body, _) = bad_server(Badness::DripBody).await;
    let good = WebhookReceiver::start().await;
    let mesh = Mesh::start(&[
        patient("hang", &hang),
        patient("headers", &headers),
        patient("body", &body),
        signed("good", &good.url("/"), ""),
    ])
    .await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("good", "delivered", 1).await;
    let bad = ["hang", "headers", "body"];
    for name in bad {
        assert_eq!(
            mesh.count(name, "dead").await,
            0,
            "{name} is still waited for"
        );
    }
    for name in bad {
        mesh.wait_for_count(name, "dead", 1).await;
    }
    let error = async |name: &str| {
        mesh.call(Method::GET, &format!("/v1/webhooks/{name}"))
            .await
            .1["counts"]["last_error"]
            .to_string()
    };
    assert!(
        error("hang").await.contains("no answer within 30s"),
        "{}",
        error("hang").await
    );
    assert!(error("headers").await.contains("no answer within 30s"));
    assert!(
        error("body").await.contains("status 500"),
        "its status had arrived: {}",
        error("body").await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_endless_answer_only_the_beginning_is_read() {
    let (url, sent) = bad_server(Badness::Flood).await;
    let mesh = Mesh::start(&[signed("flood", &url, "")]).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("flood", "delivered", 1).await;
    // The data sent is in the sockets' buffers (a few MiB on loopback), then the connection was closed.
    let mut before = usize::MAX;
    wait_until("the flood ends", DEADLINE, async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = sent.load(Ordering::Relaxed);
        std::mem::replace(&mut before, now) == now
    })
    .await;
    assert!(before < 32 << 20, "{before} bytes were taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_breaks_off_counts_by_its_status() {
    let (url, _) = bad_server(Badness::Reset).await;
    let mesh = Mesh::start(&[patient("reset", &url)]).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("reset", "dead", 1).await;
    let (_, answer) = mesh
        .call(Method::GET, "/v1/webhooks/reset/deliveries")
        .await;
    let delivery = &answer["deliveries"][0];
    assert_eq!(
        (&delivery["status"], &delivery["cause"]),
        (&503.into(), &"failing".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_are_not_followed() {
    let (target, redirecting) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    for status in [301, 302, 303, 307, 308] {
        let headers = vec![("location".into(), target.url("/secret"))];
        redirecting.answer_next([CannedResponse {
            headers,
            ..CannedResponse::status(status)
        }]);
    }
    redirecting.answer_next([CannedResponse {
        headers: vec![(
            "location".into(),
            "http://169.254.169.254/latest/meta-data/".into(),
        )],
        ..CannedResponse::status(301)
    }]);
    let mesh = Mesh::start(&[signed("redirected", &redirecting.url("/"), "")]).await;
    for job in 1..=6 {
        mesh.publish(&event(EventType::JobStarted, job)).await;
    }
    mesh.wait_for_count("redirected", "dead", 6).await;
    assert_eq!(
        (redirecting.received().len(), target.received().len()),
        (6, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_leads_to_a_private_address_is_not_dialled() {
    let judge = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = judge.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    tokio::spawn(async move {
        while judge.accept().await.is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let closed = |name: &str| {
        let text = signed(
            name,
            &format!("http://localhost:{port}/"),
            "max_attempts = 2",
        );
        text.replace("allow_private = [\"127.0.0.0/8\"]\n", "")
    };
    let open = signed(
        "open",
        &format!("http://localhost:{port}/"),
        "max_attempts = 1",
    );
    let mesh = Mesh::start(&[closed("closed"), open]).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("closed", "dead", 1).await;
    let (_, shown) = mesh.call(Method::GET, "/v1/webhooks/closed").await;
    let error = shown["counts"]["last_error"].as_str().unwrap();
    assert!(error.contains("may not be reached (loopback)"), "{error}");
    // Control: with the subnet allowed the same name does connect. It made one connection, the forbidden one none.
    mesh.wait_for_count("open", "dead", 1).await;
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}
