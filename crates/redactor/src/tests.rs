use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use proptest::prelude::*;
use url::Url;

use super::*;

fn redactor(fill: impl FnOnce(&mut Values)) -> Redactor {
    let mut values = Values::default();
    fill(&mut values);
    Redactor::new(values)
}

#[test]
fn a_text_without_secrets_stays_as_it_is() {
    let redactor = redactor(|values| values.secret("hunter22"));
    for text in ["", "ok", "no hunter here", "hunter2"] {
        assert!(matches!(redactor.redact(text), Cow::Borrowed(same) if same == text));
    }
    assert_eq!(redactor.redact("a HUNTER22."), "a [redacted].");
}

#[test]
fn an_address_gives_its_secrets_as_they_are_written_and_as_they_are_meant() {
    let url = "https://bot:p%40ss%2Fword@example.org/services/T0001/aSecretPath/x?sig=s1g%2Bnature&bareToken";
    let url: Url = url.parse().unwrap();
    let chat = redactor(|values| values.address(&url, true));
    for secret in [
        "p%40ss%2Fword",
        "p@ss/word",
        "Basic Ym90OnBAc3Mvd29yZA==",
        "s1g%2Bnature",
        "s1g+nature",
        "bareToken",
        "aSecretPath",
        "T0001",
    ] {
        assert!(chat.finds(&format!("<{secret}>")), "{secret}");
    }
    assert!(!chat.finds("services unavailable at example.org"));
    let pipeline = redactor(|values| values.address(&url, false));
    assert!(!pipeline.finds("aSecretPath"));
}

#[test]
fn a_headers_token_is_found_without_its_scheme() {
    let redactor = redactor(|values| {
        values.header("Authorization", b"Bearer tok3n-of-mine");
        values.header("Authorization", b"Basic dXNlcjpodW50ZXIy");
        values.header("cookie", b"session=\"c00kie-value\"; path=/");
    });
    for secret in [
        "tok3n-of-mine",
        "hunter2",
        "c00kie-value",
        "dXNlcjpodW50ZXIy",
    ] {
        assert_eq!(redactor.redact(&format!("<{secret}>")), "<[redacted]>");
    }
}

#[test]
fn a_short_token_behind_a_scheme_is_a_secret_and_a_media_type_is_none() {
    let redactor = redactor(|values| {
        values.header("Authorization", b"Bearer tok3");
        values.header("Authorization", b"Token  s3cr3t7");
        values.header("Authorization", b"Token token=abc12");
        values.header("proxy-authorization", b"ApiKey \"pa55\"");
        values.header("accept", b"application/json; charset=utf-8");
        values.header("x-team", b"compute node");
    });
    for secret in ["tok3", "s3cr3t7", "abc12", "pa55"] {
        assert_eq!(
            redactor.redact(&format!("bad token {secret}!")),
            "bad token [redacted]!"
        );
    }
    for shown in ["Bearer", "Token", "utf-8", "json", "node", "compute"] {
        assert_eq!(redactor.redact(shown), shown);
    }
}

#[test]
fn a_repetition_that_was_cut_off_is_taken_out_as_far_as_it_goes() {
    let redactor = redactor(|values| values.secret("0123456789abcdefghijklmnop"));
    assert_eq!(redactor.redact("x 0123456789abcdefghij"), "x [redacted]");
    assert_eq!(redactor.redact("0123456789abcdefgh and"), "[redacted] and");
}

#[test]
fn secrets_that_overlap_are_one_gap() {
    let redactor = redactor(|values| {
        values.secret("abcdef");
        values.secret("defghi");
    });
    assert_eq!(redactor.redact("<abcdefghi>"), "<[redacted]>");
}

proptest! {
    #[test]
    fn no_form_of_a_secret_is_left(secret in "[ -~]{7,40}", before in ".{0,20}", after in ".{0,20}") {
        let redactor = redactor(|values| values.secret(&secret));
        let encoded = format!("{before}{secret}{after}");
        let json = serde_json::to_string(&secret).unwrap();
        let forms = [
            secret.clone(),
            json[1..json.len() - 1].to_owned(),
            url::form_urlencoded::byte_serialize(secret.as_bytes()).collect(),
            hex::encode(&secret).to_uppercase(),
        ];
        for form in forms {
            let clean = redactor.redact(&format!("{before}{form}{after}")).into_owned();
            prop_assert!(clean.contains(REDACTED), "{form} in {clean}");
        }
        for text in [BASE64_STANDARD.encode(&encoded), BASE64_URL_SAFE.encode(&encoded)] {
            prop_assert!(redactor.finds(&text), "{text}");
        }
    }

    #[test]
    fn any_text_is_taken(text in ".{0,60}", secret in ".{0,30}") {
        let redactor = redactor(|values| values.secret(&secret));
        let clean = redactor.redact(&text).into_owned();
        prop_assert!(secret.len() < MIN_BYTES || REDACTED.contains(&secret) || !clean.contains(&secret) || clean.contains(REDACTED));
    }
}
