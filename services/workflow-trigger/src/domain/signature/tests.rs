use std::collections::BTreeMap;

use super::*;

fn check(
    signature: &Signature,
    secrets: &[&str],
    headers: &[(&str, &str)],
    body: &str,
    now: i64,
) -> Result<String, Refusal> {
    let headers: BTreeMap<&str, &str> = headers.iter().copied().collect();
    let request = Request {
        header: &|name| headers.get(name).copied(),
        body: body.as_bytes(),
    };
    let now = DateTime::from_timestamp(now, 0).unwrap();
    signature.check(secrets, &request, now)
}

#[test]
fn a_standard_webhook_is_checked_as_the_published_vectors_say() {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    let body = r#"{"test": 2432232314}"#;
    let headers = [
        ("webhook-id", id),
        ("webhook-timestamp", "1614265330"),
        (
            "webhook-signature",
            "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ),
    ];
    let at = |now| {
        check(
            &Signature::Standard,
            &["whsec_b3RoZXI=", secret],
            &headers,
            body,
            now,
        )
    };
    assert_eq!(at(1_614_265_330), Ok(id.to_owned()));
    assert_eq!(at(1_614_265_330 + 300), Ok(id.to_owned()));
    assert_eq!(at(1_614_265_330 + 301), Err(Refusal::Time));
    assert_eq!(at(1_614_265_330 - 301), Err(Refusal::Time));
    let forged = check(
        &Signature::Standard,
        &[secret],
        &headers,
        "{}",
        1_614_265_330,
    );
    assert_eq!(forged, Err(Refusal::Signature));
    let no_key = check(
        &Signature::Standard,
        &["", "whsec_"],
        &headers,
        body,
        1_614_265_330,
    );
    assert_eq!(no_key, Err(Refusal::Signature));
    let mut other = headers;
    other[0].1 = "msg_other";
    let other = check(&Signature::Standard, &[secret], &other, body, 1_614_265_330);
    assert_eq!(other, Err(Refusal::Signature));
}

#[test]
fn a_delivery_of_github_is_checked_as_its_documentation_says() {
    // The example of GitHub's documentation, "Validating webhook deliveries".
    let secret = "It's a Secret to Everybody";
    let tag = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let of = |secret: &str, tag: &str, body: &str, delivery: &str| {
        let headers = [
            ("x-hub-signature-256", tag),
            ("x-github-delivery", delivery),
        ];
        check(&Signature::Github, &[secret], &headers, body, 0)
    };
    let first = of(secret, tag, "Hello, World!", "1").unwrap();
    // The id of the delivery is not signed: with another one it is the same event.
    assert_eq!(of(secret, tag, "Hello, World!", "2").unwrap(), first);
    assert_eq!(
        of(secret, tag, "Hello, World?", "1"),
        Err(Refusal::Signature)
    );
    assert_eq!(
        of("other", tag, "Hello, World!", "1"),
        Err(Refusal::Signature)
    );
    assert!(of(secret, &tag[7..], "Hello, World!", "1").is_err());
    assert!(of(secret, "sha256=", "Hello, World!", "1").is_err());
}

#[test]
fn a_token_fits_as_a_whole_only() {
    for (signature, name, prefix) in [
        (Signature::Gitlab, "x-gitlab-token", ""),
        (Signature::Bearer, "authorization", "Bearer "),
        (Signature::Bearer, "authorization", ""),
    ] {
        let of = |token: &str| {
            let value = format!("{prefix}{token}");
            check(&signature, &["secret"], &[(name, &value)], "{}", 0).is_ok()
        };
        assert!(of("secret"));
        for wrong in ["", "secre", "secrets", "Secret"] {
            assert!(!of(wrong), "{wrong:?}");
        }
        assert!(check(&signature, &["secret"], &[], "{}", 0).is_err());
        assert!(check(&signature, &[], &[(name, "secret")], "{}", 0).is_err());
    }
}

#[test]
fn a_generic_signature_is_hexadecimal_or_base64() {
    let signature = Signature::Hmac {
        header: "x-signature".to_owned(),
    };
    let tag = hmac::sign(&hmac::Key::new(HMAC_SHA256, b"secret"), b"{}");
    for text in [
        hex::encode(tag.as_ref()),
        format!("sha256={}", hex::encode(tag.as_ref())),
        BASE64_STANDARD.encode(tag.as_ref()),
    ] {
        let of = |secret| {
            check(
                &signature,
                &[secret],
                &[("x-signature", text.as_str())],
                "{}",
                0,
            )
        };
        assert_eq!(of("secret"), Ok(body_id(b"{}")));
        assert_eq!(of("other"), Err(Refusal::Signature));
    }
}
