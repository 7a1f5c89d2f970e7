use super::*;

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
    use crate::domain::retry::{Outcome, RetryAfter};
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
