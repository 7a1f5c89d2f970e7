//! Clients that stall are disconnected, slow ones are not.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{LARGE, Limited, TOKEN};
use crate::support::DEADLINE;

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Opening of an HTTP/2 connection with a flow-control window of this size.
fn preface(window: u32) -> Vec<u8> {
    let settings = [&4_u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
    [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &frame(4, 0, 0, &settings),
    ]
    .concat()
}

/// `GET` of a path, without a token.
fn get_headers(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    [&[0x82, 0x86, 0x01, 1, b'x', 0x04, length], path.as_bytes()].concat()
}

/// Holds a connection open: sends `first`, then `more` every 200 ms, and reads responses or not. Returns after how long the
/// server closed it.
async fn held(
    server: &Limited,
    first: Vec<u8>,
    more: Vec<u8>,
    reads: bool,
) -> Result<Duration, &'static str> {
    let start = Instant::now();
    let (mut read, mut write) = server.connect([127, 0, 0, 1]).await.into_split();
    let mut writer = tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(200));
        drop(write.write_all(&first).await);
        loop {
            every.tick().await;
            if write.write_all(&more).await.is_err() {
                return;
            }
        }
    });
    if !reads {
        // Without a read only a write notices it.
        let ended = tokio::time::timeout(DEADLINE, &mut writer).await;
        writer.abort();
        return ended
            .map(|_| start.elapsed())
            .map_err(|_| "it is still open");
    }
    let mut bytes = vec![0; 65_536];
    let end = async {
        while let Ok(1..) = read.read(&mut bytes).await {}
        start.elapsed()
    };
    let ended = tokio::time::timeout(DEADLINE, end).await;
    writer.abort();
    ended.map_err(|_| "it is still open")
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_requests_and_responses_are_closed() {
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let server = Limited::start("header_timeout = '2s'\nidle_timeout = '4s'\nstall_timeout = '3s'");
    let with_token = |method: &str, path: &str, more: &str| {
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n{more}\r\n"
        );
        text.into_bytes()
    };
    let http2 = |window: u32, flags: u8, path: &str| {
        [preface(window), frame(1, flags, 1, &get_headers(path))].concat()
    };
    let ping = frame(6, 0, 0, &[0; 8]);
    let cases = [
        (
            "HTTP/2, no room for the answer",
            http2(0, END_STREAM | END_HEADERS, "/v1/whoami"),
            ping.clone(),
            true,
        ),
        (
            "HTTP/2, headers that never end",
            http2(65_535, END_STREAM, "/livez"),
            frame(9, 0, 1, &[0x00, 1, b'a', 1, b'b']),
            true,
        ),
        ("HTTP/2, pings and no request", preface(65_535), ping, true),
        (
            "a body a byte at a time",
            with_token("POST", "/v1/read", "content-length: 100000\r\n"),
            b"x".to_vec(),
            true,
        ),
        (
            "a body that nobody will read",
            b"POST /v1/read HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n".to_vec(),
            b"x".to_vec(),
            true,
        ),
        (
            "an answer that is not taken",
            with_token("GET", "/v1/endless", ""),
            b"x".to_vec(),
            false,
        ),
    ];
    let clients = cases.map(|(name, first, more, reads)| {
        let server = &server;
        async move { (name, held(server, first, more, reads).await) }
    });
    for (name, ended) in join_all(clients).await {
        println!("{name}: {ended:?}");
        assert!(ended.is_ok(), "{name}: {ended:?}");
    }
    assert!(server.run_over_unix().contains("ran"));
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_receive_the_whole_response() {
    let server = Limited::start("idle_timeout = '2s'\nstall_timeout = '8s'");
    let mut stream = server.connect([127, 0, 0, 1]).await;
    let request = format!(
        "GET /v1/large HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = vec![0; 1 << 20];
    let mut taken = 0;
    let mut every = tokio::time::interval(Duration::from_millis(300));
    loop {
        every.tick().await;
        match stream.read(&mut bytes).await.unwrap() {
            0 => break,
            some => taken += some,
        }
    }
    assert!(taken > LARGE, "{taken}");
}
