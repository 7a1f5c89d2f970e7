use chrono::DateTime;
use event_filter::{DecodedEvent, sample};
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};

use super::*;
use crate::Message;
use crate::digest::{Digest, DigestSchedule};

/// Formats for people.
const MESSAGES: [&str; 5] = [
    "\"slack\"",
    "\"teams\"",
    "\"discord\"",
    "{ type = \"slack-api\", token = \"t\", channel = \"C1\" }",
    "{ type = \"pagerduty\", routing_key = \"k\" }",
];
/// Formats for programs that show costs.
const DATA: [&str; 2] = [
    "{ type = \"github\", token = \"t\", repository = \"a/b\" }",
    "{ type = \"template\", body = '{\"cost\": {{ cost }}, \"owner\": {{ owner }}}' }",
];

fn event(kind: EventType, cost: Option<&CostEvent>) -> (DecodedEvent, Option<CostEvent>) {
    (sample::event(kind).into(), cost.cloned())
}

/// Every body that a format sends, to a receiver that accepts it.
fn sent(format: &str, content: &Content<'_>) -> String {
    let format = read(&format!("format = {format}")).unwrap();
    let address = format
        .address()
        .unwrap_or("https://example.org/api/webhooks/1/x");
    let address = Url::parse(address).unwrap();
    let mut step = format
        .begin(&address, content, &ProviderState::new())
        .unwrap();
    let mut bodies = String::new();
    while let Step::Send(request, exchange) = step {
        bodies.push_str(str::from_utf8(&request.body).unwrap());
        step = exchange.answered(&Response {
            status: 200,
            body: br#"{"ok": true, "channel": "C1", "ts": "1.0"}"#.to_vec(),
            ..Response::default()
        });
    }
    bodies
}

fn sent_event(format: &str, kind: EventType, cost: Option<&CostEvent>) -> String {
    let (event, cost) = event(kind, cost);
    let content = Content::Event {
        event: &event,
        cost: cost.as_ref(),
        replay: None,
        spending: None,
        now: DateTime::UNIX_EPOCH,
    };
    sent(format, &content)
}

#[test]
fn a_price_of_zero_is_no_price_in_every_format() {
    let zero = || {
        Some(Money {
            micros: 0,
            currency: "EUR".into(),
        })
    };
    let costs = [
        CostEvent {
            total: None,
            problem: "price_missing: no price of node type cpu".into(),
            ..sample::cost()
        },
        // As the first versions of cost-engine sent it.
        CostEvent {
            burn_rate: zero(),
            total: zero(),
            charged_seconds: 3_600,
            ..sample::cost()
        },
    ];
    for cost in costs {
        let cost = CostEvent {
            accrued: None,
            ..cost
        };
        for format in MESSAGES {
            let body = sent_event(format, EventType::JobFailed, Some(&cost));
            assert!(body.contains("unpriced"), "{format}: {body}");
            assert!(!body.contains("0.00"), "{format}: {body}");
        }
        for format in DATA {
            let body = sent_event(format, EventType::JobFailed, Some(&cost));
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let fields = body.get("client_payload").unwrap_or(&body);
            assert!(fields["cost"]["total"].is_null(), "{format}: {body}");
        }
    }
    let free = CostEvent {
        total: zero(),
        ..sample::cost()
    };
    let body = sent_event(MESSAGES[0], EventType::JobFailed, Some(&free));
    assert!(
        body.contains("0.00 EUR"),
        "it did not run for a second: {body}"
    );
}

#[test]
fn every_format_has_the_cost_and_its_owner() {
    for format in MESSAGES {
        let body = sent_event(format, EventType::JobFailed, Some(&sample::cost()));
        assert!(body.contains("4.20 EUR"), "{format}: {body}");
        // Some formats escape the parentheses around the user name.
        assert!(body.contains("of Alice "), "{format}: {body}");
    }
    for format in DATA {
        let body = sent_event(format, EventType::JobFailed, Some(&sample::cost()));
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let fields = body.get("client_payload").unwrap_or(&body);
        assert_eq!(fields["cost"]["total"], 4.2, "{format}: {body}");
        let owner = &fields["owner"];
        assert_eq!(owner["name"], "Alice", "{format}: {body}");
        assert_eq!(owner["email"], "alice@example.org", "{format}: {body}");
    }
}

#[test]
fn digests_have_the_cost_and_its_owner() {
    let mut digest = Digest::default();
    let mut summaries = Vec::new();
    let now = DateTime::UNIX_EPOCH;
    for kind in [EventType::JobFailed, EventType::CostFinalized] {
        summaries.extend(digest.apply(kind, &sample::event(kind), |_| true, now));
    }
    summaries.extend(digest.tick(&DigestSchedule::MESSAGES, now + chrono::TimeDelta::days(1)));
    let summary = summaries.last().unwrap();
    let message = summary.message();
    let content = Content::Message {
        id: "1",
        message: &message,
        topic: None,
    };
    for format in MESSAGES {
        let body = sent(format, &content);
        assert!(body.contains("4.20 EUR"), "{format}: {body}");
        // Some formats escape the parentheses around the user name.
        assert!(body.contains("of Alice "), "{format}: {body}");
    }
}

fn read(text: &str) -> Result<Format, String> {
    #[derive(Deserialize)]
    struct File {
        format: Format,
    }
    toml::from_str::<File>(text)
        .map(|file| file.format)
        .map_err(|error| error.message().to_owned())
}

#[test]
fn a_format_is_a_word_or_a_table() {
    assert_eq!(read("format = \"discord\""), Ok(Format::Discord));
    assert_eq!(read("format = { type = \"teams\" }"), Ok(Format::Teams));
    let Ok(Format::PagerDuty(settings)) =
        read("format = { type = \"pagerduty\", routing_key = \"k\", incident = \"name\" }")
    else {
        panic!("no PagerDuty")
    };
    assert_eq!(settings.incident, Incident::Name);
    let faults = [
        ("format = \"pagerduty\"", "has settings"),
        ("format = \"fax\"", "slack-api, teams"),
        ("format = { type = \"teams\", color = 1 }", "unknown field"),
        (
            "format = { type = \"github\", token = \"t\" }",
            "missing field `repository`",
        ),
        (
            "format = { type = \"slack-api\", token = \"t\", chanel = \"c\" }",
            "unknown field `chanel`",
        ),
    ];
    for (text, expected) in faults {
        let problem = read(text).unwrap_err();
        assert!(problem.contains(expected), "{text}: {problem}");
    }
}

#[test]
fn secrets_are_read_from_files_and_never_shown() {
    let mut format =
        read("format = { type = \"github\", token = { file = \"t\" }, repository = \"a/b\" }")
            .unwrap();
    assert_eq!(format.secrets()[0].1.file(), Some(Path::new("t")));
    assert!(
        format
            .read_secrets(|_| Err(io::ErrorKind::NotFound.into()))
            .is_err()
    );
    format
        .read_secrets(|_| Ok("ghp_secret\n".to_owned()))
        .unwrap();
    assert_eq!(format.secrets()[0].1.expose(), "ghp_secret");
    let shown = serde_json::to_string(&format).unwrap();
    assert_eq!(shown, r#"{"type":"github","token":"…","repository":"a/b"}"#);
    assert!(!format!("{format:?}").contains("secret"));
    let again: Format = serde_json::from_str(&shown).unwrap();
    let faults = again.faults(&Url::parse("https://api.github.com/").unwrap());
    assert_eq!(
        faults,
        [("token", "missing".to_owned())],
        "what is shown cannot be saved by mistake"
    );
}

#[test]
fn answers_of_teams_and_discord_are_judged_by_what_they_say() {
    let judge = |address: &str, format: Format, status: u16, body: &str| {
        let message = Message::test("e", "c");
        let content = Content::Message {
            id: "1",
            message: &message,
            topic: None,
        };
        let address = Url::parse(address).unwrap();
        let Ok(Step::Send(_, exchange)) = format.begin(&address, &content, &ProviderState::new())
        else {
            panic!("nothing to send")
        };
        let response = Response {
            status,
            body: body.as_bytes().to_vec(),
            ..Response::default()
        };
        let Step::Done(verdict) = exchange.answered(&response) else {
            panic!("one request")
        };
        verdict.outcome
    };
    use crate::attempt_outcome::{Outcome, RetryAfter};
    let teams = |status: u16, body: &str| {
        judge(
            "https://example.org/workflows/1",
            Format::Teams,
            status,
            body,
        )
    };
    assert_eq!(teams(202, ""), Outcome::Delivered);
    assert_eq!(teams(200, "1"), Outcome::Delivered);
    let failed = |status: u16| {
        format!(
            "Webhook message delivery failed with error: Microsoft Teams endpoint returned HTTP error {status} with ContextId x"
        )
    };
    assert_eq!(teams(200, &failed(429)), Outcome::Retry { after: None });
    assert!(matches!(
        teams(200, &failed(413)),
        Outcome::Permanent { .. }
    ));
    let discord = |status: u16, body: &str| {
        judge(
            "https://discord.com/api/webhooks/1/x",
            Format::Discord,
            status,
            body,
        )
    };
    assert_eq!(discord(204, ""), Outcome::Delivered);
    assert_eq!(
        discord(429, r#"{"retry_after": 0.65}"#),
        Outcome::Retry {
            after: Some(RetryAfter::fractional(0.65))
        }
    );
    assert_eq!(
        discord(429, r#"{"retry_after": 1e30}"#),
        Outcome::Retry {
            after: Some(RetryAfter::fractional(1e30))
        }
    );
    assert!(matches!(discord(404, ""), Outcome::Gone { .. }));
    assert!(matches!(discord(400, ""), Outcome::Permanent { .. }));
}
