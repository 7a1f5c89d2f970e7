use event_filter::sample;
use mesh_events::proto::mesh::cost::v1::{Money, Spending};
use mesh_events::{Event, EventType};

use super::*;
use crate::attempt_outcome::RetryAfter;

fn settings() -> SlackApi {
    SlackApi {
        token: "xoxb-1".into(),
        channel: None,
        direct: true,
        current: false,
    }
}

fn event(seq: u64) -> Event {
    Event {
        run_seq: seq,
        ..sample::event(EventType::JobFailed)
    }
}

fn answer(body: &Value) -> Response {
    Response {
        status: 200,
        body: body.to_string().into_bytes(),
        ..Response::default()
    }
}

/// Runs an exchange against canned responses. Returns the requested paths and bodies, and the verdict.
fn run(
    settings: &SlackApi,
    event: &Event,
    state: &ProviderState,
    answers: &[Value],
) -> (Vec<(String, Value)>, Verdict) {
    run_with(settings, event, None, state, answers)
}

fn run_with(
    settings: &SlackApi,
    event: &Event,
    spending: Option<&Spending>,
    state: &ProviderState,
    answers: &[Value],
) -> (Vec<(String, Value)>, Verdict) {
    let address = Url::parse("https://slack.com/api/").unwrap();
    let content = Content::Event {
        event: &event.clone().into(),
        cost: None,
        replay: None,
        spending,
        now: chrono::DateTime::UNIX_EPOCH,
    };
    let mut step = settings.begin(&address, &content, state).unwrap();
    let mut asked = Vec::new();
    let mut answers = answers.iter();
    loop {
        match step {
            Step::Done(verdict) => return (asked, verdict),
            Step::Send(request, exchange) => {
                assert!(
                    request
                        .headers
                        .contains(&("authorization", "Bearer xoxb-1".to_owned()))
                );
                let path = request.url.path().trim_start_matches("/api/").to_owned();
                let query = request
                    .url
                    .query()
                    .map_or(String::new(), |query| format!("?{query}"));
                asked.push((
                    path + &query,
                    serde_json::from_slice(&request.body).unwrap_or_default(),
                ));
                step =
                    exchange.answered(&answer(answers.next().expect("an answer for each request")));
            }
        }
    }
}

fn paths(asked: &[(String, Value)]) -> Vec<&str> {
    asked.iter().map(|(path, _)| path.as_str()).collect()
}

fn keep(state: &mut ProviderState, verdict: &Verdict) {
    for (key, value) in &verdict.keep {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

#[test]
fn a_direct_message_looks_the_person_up_once() {
    let mut state = ProviderState::new();
    let ok = json!({"ok": true, "channel": "D1", "ts": "1.2"});
    let (asked, verdict) = run(
        &settings(),
        &event(1),
        &state,
        &[
            json!({"ok": true, "user": {"id": "U1", "name": "alice"}}),
            json!({"ok": true, "channel": {"id": "D1"}}),
            ok.clone(),
        ],
    );
    assert_eq!(
        paths(&asked),
        [
            "users.lookupByEmail?email=alice%40example.org",
            "conversations.open",
            "chat.postMessage"
        ]
    );
    assert_eq!(asked[1].1, json!({"users": "U1"}));
    assert_eq!(asked[2].1["channel"], "D1");
    assert_eq!(verdict.outcome, Outcome::Delivered);
    keep(&mut state, &verdict);
    assert!(!format!("{state:?}").contains("alice"));
    let (asked, _) = run(&settings(), &event(2), &state, &[ok]);
    assert_eq!(paths(&asked), ["chat.postMessage"]);
}

#[test]
fn only_the_owner_reads_what_the_owner_has_spent() {
    let spending = Spending {
        spent: vec![Money {
            micros: 2_310_000_000,
            currency: "USD".into(),
        }],
        unpriced_runs: 1,
        ..Spending::default()
    };
    let settings = SlackApi {
        channel: Some("C1".into()),
        current: true,
        ..settings()
    };
    let text = "2310.00 USD, 1 run has no price and is not included";
    let shows = |body: &Value| body.to_string().contains(text);
    let person = json!({"ok": true, "user": {"id": "U1"}});
    let conversation = json!({"ok": true, "channel": {"id": "D1"}});
    let (in_private, in_channel) = (
        json!({"ok": true, "channel": "D1", "ts": "1"}),
        json!({"ok": true, "channel": "C1", "ts": "1"}),
    );
    let unknown = json!({"ok": false, "error": "users_not_found"});
    for (answers, again, is_private) in [
        (
            vec![person, conversation, in_private.clone()],
            in_private,
            true,
        ),
        (vec![unknown, in_channel.clone()], in_channel, false),
    ] {
        let mut state = ProviderState::new();
        let (asked, verdict) = run_with(&settings, &event(1), Some(&spending), &state, &answers);
        let (path, body) = asked.last().unwrap();
        assert_eq!(
            (path.as_str(), shows(body)),
            ("chat.postMessage", is_private)
        );
        // The message is updated where it was sent.
        keep(&mut state, &verdict);
        let (asked, _) = run_with(&settings, &event(2), Some(&spending), &state, &[again]);
        let (path, body) = asked.last().unwrap();
        assert_eq!((path.as_str(), shows(body)), ("chat.update", is_private));
    }
}

#[test]
fn who_is_not_in_slack_is_told_in_the_channel_if_there_is_one() {
    let unknown = json!({"ok": false, "error": "users_not_found"});
    let (_, verdict) = run(
        &settings(),
        &event(1),
        &ProviderState::new(),
        std::slice::from_ref(&unknown),
    );
    assert!(matches!(verdict.outcome, Outcome::Permanent { .. }));
    assert_eq!(verdict.error, "Slack says users_not_found");
    let with_channel = SlackApi {
        channel: Some("#jobs".into()),
        ..settings()
    };
    let (asked, verdict) = run(
        &with_channel,
        &event(1),
        &ProviderState::new(),
        &[unknown, json!({"ok": true, "channel": "C1", "ts": "1"})],
    );
    assert_eq!(asked[1].1["channel"], "#jobs");
    assert_eq!(verdict.outcome, Outcome::Delivered);
    let mut unknown_person = event(1);
    unknown_person.owner.as_mut().unwrap().identity = None;
    let content = Content::Event {
        event: &unknown_person.into(),
        cost: None,
        replay: None,
        spending: None,
        now: chrono::DateTime::UNIX_EPOCH,
    };
    let address = Url::parse("https://slack.com/api/").unwrap();
    let error = settings()
        .begin(&address, &content, &ProviderState::new())
        .unwrap_err();
    assert_eq!(
        error,
        Unsendable::NoEmail {
            user: "alice".into()
        }
    );
}

#[test]
fn one_message_is_kept_current_and_never_goes_back() {
    let settings = SlackApi {
        channel: Some("C1".into()),
        direct: false,
        current: true,
        ..settings()
    };
    let mut state = ProviderState::new();
    let ok = json!({"ok": true, "channel": "C1", "ts": "5.5"});
    let (asked, verdict) = run(&settings, &event(1), &state, std::slice::from_ref(&ok));
    assert_eq!(paths(&asked), ["chat.postMessage"]);
    keep(&mut state, &verdict);
    let (asked, verdict) = run(&settings, &event(4), &state, std::slice::from_ref(&ok));
    assert_eq!(paths(&asked), ["chat.update"]);
    assert_eq!(
        (&asked[0].1["channel"], &asked[0].1["ts"]),
        (&json!("C1"), &json!("5.5"))
    );
    keep(&mut state, &verdict);
    let (asked, verdict) = run(&settings, &event(3), &state, &[]);
    assert_eq!((asked.len(), verdict), (0, Verdict::needless()), "late");
    let (asked, verdict) = run(
        &settings,
        &event(5),
        &state,
        &[
            json!({"ok": false, "error": "message_not_found"}),
            json!({"ok": true, "channel": "C1", "ts": "6.6"}),
        ],
    );
    assert_eq!(paths(&asked), ["chat.update", "chat.postMessage"]);
    keep(&mut state, &verdict);
    assert!(format!("{state:?}").contains("6.6"));
}

#[test]
fn a_kept_conversation_that_is_gone_is_forgotten() {
    let mut state: ProviderState = [(user_key("alice@example.org"), "D9".to_owned())].into();
    let (_, verdict) = run(
        &settings(),
        &event(1),
        &state,
        &[json!({"ok": false, "error": "channel_not_found"})],
    );
    assert_eq!(verdict.outcome, Outcome::Retry { after: None });
    keep(&mut state, &verdict);
    assert!(state.is_empty());
}

#[test]
fn two_hundred_may_mean_no() {
    let settings = SlackApi {
        channel: Some("C1".into()),
        direct: false,
        ..settings()
    };
    let outcome = |body: Value| {
        run(&settings, &event(1), &ProviderState::new(), &[body])
            .1
            .outcome
    };
    for error in [
        "invalid_auth",
        "not_in_channel",
        "channel_not_found",
        "msg_too_long",
        "whatever_comes",
    ] {
        assert!(
            matches!(
                outcome(json!({"ok": false, "error": error})),
                Outcome::Permanent { .. }
            ),
            "{error}"
        );
    }
    for error in ["internal_error", "service_unavailable", "ratelimited"] {
        assert!(
            matches!(
                outcome(json!({"ok": false, "error": error})),
                Outcome::Retry { .. }
            ),
            "{error}"
        );
    }
    for strange in [json!("<html>"), json!({}), json!([]), Value::Null] {
        assert_eq!(outcome(strange), Outcome::Retry { after: None });
    }
}

#[test]
fn limits_are_waited_for() {
    let address = Url::parse("https://slack.com/api/").unwrap();
    let event = event(1);
    let content = Content::Event {
        event: &event.into(),
        cost: None,
        replay: None,
        spending: None,
        now: chrono::DateTime::UNIX_EPOCH,
    };
    let Step::Send(_, exchange) = settings()
        .begin(&address, &content, &ProviderState::new())
        .unwrap()
    else {
        panic!("nothing to send")
    };
    let mut limited = answer(&json!({"ok": false, "error": "ratelimited"}));
    limited.status = 429;
    limited.headers.insert("retry-after", "30".parse().unwrap());
    let Step::Done(verdict) = exchange.answered(&limited) else {
        panic!("another request")
    };
    assert_eq!(
        verdict.outcome,
        Outcome::Retry {
            after: Some(RetryAfter::fractional(30.0))
        }
    );
}

#[test]
fn an_answer_that_was_cut_says_enough() {
    let whole =
        json!({"ok": true, "channel": "C1", "ts": "1.5", "message": {"text": "x".repeat(99)}})
            .to_string();
    // serde_json writes keys alphabetically here. Slack's order is ok, channel, ts, message.
    let slacks = format!(
        "{{\"ok\":true,\"channel\":\"C1\",\"ts\":\"1.5\",\"message\":{{\"text\":\"{}",
        "x".repeat(99)
    );
    let expected = SlackResponse {
        ok: Some(true),
        channel: Some("C1".into()),
        ts: Some("1.5".into()),
        ..SlackResponse::default()
    };
    assert_eq!(SlackResponse::read(whole.as_bytes()), expected);
    assert_eq!(SlackResponse::read(slacks.as_bytes()), expected);
    assert_eq!(SlackResponse::read(b"not json"), SlackResponse::default());
}
