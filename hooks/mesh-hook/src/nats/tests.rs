//! The protocol against servers that are silent, faulty, or not NATS.

use std::io::Write as _;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use super::*;

/// A server that sends a text and then nothing.
fn serve(text: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(text).unwrap();
        thread::sleep(Duration::from_secs(60));
    });
    address
}

fn deliver(address: SocketAddr, patience: Duration) -> (Error, Duration) {
    let start = Instant::now();
    let deadline = start + patience;
    let outcome = Connection::open(address, None, None, deadline).and_then(|mut connection| {
        connection.publish(&[Outgoing {
            subject: "s",
            id: "i",
            body: b"b",
        }])
    });
    (outcome.unwrap_err(), start.elapsed())
}

#[test]
fn a_server_that_is_silent_costs_the_deadline_and_no_more() {
    for text in [&b""[..], b"INFO {\"headers\":true}\r\n", b"INFO {"] {
        let (error, took) = deliver(serve(text), Duration::from_millis(80));
        assert!(matches!(error, Error::Deadline), "{error}");
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}

#[test]
fn servers_other_than_nats_are_recognised() {
    let deliver = |address| deliver(address, Duration::from_secs(30)).0;
    for text in [
        &b"HTTP/1.1 400 Bad Request\r\n"[..],
        b"INFO nonsense\r\n",
        b"\xff\xfe\r\n",
        b"INFO {}\r\n",
    ] {
        let error = deliver(serve(text));
        assert!(matches!(error, Error::Protocol(_)), "{error}");
    }
    let error = deliver(serve(
        b"INFO {\"headers\":true}\r\nHMSG a 1 99999999999 99999999999\r\n",
    ));
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    let error = deliver(serve(
        b"INFO {\"headers\":true}\r\n-ERR 'Authorization Violation'\r\n",
    ));
    assert!(matches!(error, Error::Refused(reason) if reason == "Authorization Violation"));
}

#[test]
fn a_trace_context_is_the_doorbells_id() {
    let id = "01934d5e-8a00-7abc-8def-0123456789ab";
    assert_eq!(
        headers(id),
        format!(
            "NATS/1.0\r\nNats-Msg-Id: {id}\r\ntraceparent: 00-01934d5e8a007abc8def0123456789ab-8def0123456789ab-00\r\n\r\n"
        )
    );
    assert_eq!(headers("x"), "NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n");
}

#[test]
fn an_acknowledgement_is_an_answer_that_names_the_stream() {
    let parse_ack = |body: &[u8]| answer(None, body, 5);
    assert_eq!(parse_ack(br#"{"stream":"MESH_HOOKS","seq":7}"#).unwrap(), 7);
    assert!(parse_ack(br#"{"stream":"MESH_HOOKS","seq":1,"duplicate":true}"#).is_ok());
    assert!(parse_ack(b"{}").is_err());
    assert!(answer(Some("503"), b"", 5).is_err());
}

#[test]
fn a_refused_message_differs_from_an_unavailable_server() {
    let of_one = |description: &str, code: u16| {
        let body = format!(
            r#"{{"error":{{"code":400,"err_code":{code},"description":"{description}"}}}}"#
        );
        let error = answer(None, body.as_bytes(), 5).unwrap_err();
        assert!(error.to_string().contains(description), "{error}");
        error.is_of_one_message()
    };
    // As nats-server 2.12 sends them.
    assert!(of_one("message size exceeds maximum allowed", 10054));
    assert!(!of_one("maximum bytes exceeded", 10077));
    assert!(!of_one("insufficient resources", 10023));
    let forbids = |line: &str| forbidden(line);
    assert_eq!(
        forbids(r#"Permissions Violation for Publish to "mesh.c.hook.Prolog""#).as_deref(),
        Some("mesh.c.hook.Prolog")
    );
    assert_eq!(
        forbids(r#"Permissions Violation for Subscription to "x""#),
        None
    );
    assert_eq!(forbids("Authorization Violation"), None);
}
