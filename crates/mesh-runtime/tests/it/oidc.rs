//! Tokens of a real provider: identification, refusals, key rotation, and an unavailable provider.

use mesh_testkit::{OidcProvider, wait_until};
use serde_json::{Value, json};

use crate::support::{DEADLINE, Server};

async fn server(provider: &OidcProvider) -> Server {
    let issuer = provider.issuer();
    let api = format!(
        "[[mesh.api.oidc]]\nissuer = {issuer:?}\naudience = ['mesh']\nclock_skew = '30s'\n\
         user_claim = 'preferred_username'\nadmin_groups = ['admins']\nauditor_groups = ['audit']\n\
         [[mesh.api.oidc]]\nissuer = 'http://127.0.0.1:1/nobody/there'\naudience = ['mesh']\n"
    );
    let map = format!(
        "[users.al]\nissuer = {issuer:?}\nsubject = 'alice'\n\
         [users.al-test]\nissuer = {issuer:?}\nsubject = 'alice'\n\
         [users.carol]\nissuer = {issuer:?}\nsubject = 'somebody else'\n"
    );
    Server::start(&api, &map).await
}

#[tokio::test(flavor = "multi_thread")]
async fn identities_come_from_the_map_and_roles_from_groups() {
    mesh_runtime::install_crypto_provider();
    let provider = OidcProvider::start();
    let server = server(&provider).await;
    for algorithm in ["RS256", "ES256", "EdDSA"] {
        let token = provider.token("alice", "mesh", algorithm).await;
        let (status, _, answer) = server.whoami(Some(&token)).await;
        assert_eq!(status, 200, "{algorithm}: {answer}");
        assert_eq!(
            answer,
            json!({
                "name": "al", "role": "user", "authentication": "oidc", "users": ["al", "al-test"], "accounts": [],
                "identity": { "issuer": provider.issuer(), "subject": "alice" },
                "sees_everything": false, "may_write": false,
            })
        );
    }
    for (client, role, users) in [
        ("admins-1", "admin", json!(["admins-1"])),
        ("audit-1", "auditor", json!(["audit-1"])),
        ("dave", "user", json!(["dave"])),
        // The map assigns this name to another person.
        ("carol", "user", json!([])),
    ] {
        let token = provider.token(client, "mesh", "ES256").await;
        let (_, _, answer) = server.whoami(Some(&token)).await;
        assert_eq!((&answer["role"], &answer["users"]), (&json!(role), &users));
    }
    // The map after a change.
    let map = "[users.alicia]\nissuer = 'ISSUER'\nsubject = 'alice'\n";
    let map = map.replace("ISSUER", &provider.issuer());
    std::fs::write(server.path("identity.toml"), map).unwrap();
    let token = provider.token("alice", "mesh", "RS256").await;
    wait_until("the new map counts", DEADLINE, async || {
        server.whoami(Some(&token)).await.2["users"] == json!(["alicia"])
    })
    .await;
}

/// A valid token's claims with some replaced; `null` removes one.
fn with(mut claims: Value, changes: Value) -> Value {
    let all = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(all.remove(name)),
            _ => drop(all.insert(name.clone(), value.clone())),
        }
    }
    claims
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_token_is_refused_with_the_reason() {
    mesh_runtime::install_crypto_provider();
    let provider = OidcProvider::start();
    let server = server(&provider).await;
    let claims = provider.claims();
    let now = claims["iat"].as_i64().unwrap();
    // Times within the allowed skew are valid, and so is a list of audiences.
    for good in [
        json!({}),
        json!({ "exp": now - 5 }),
        json!({ "nbf": now + 20, "iat": now + 20 }),
        json!({ "aud": ["other", "mesh"] }),
    ] {
        let token = provider
            .forge("ES256", json!({}), with(claims.clone(), good.clone()))
            .await;
        let (status, challenge, _) = server.whoami(Some(&token)).await;
        assert_eq!(status, 200, "{good}: {challenge}");
    }
    for (claim, why) in [
        (json!({ "aud": "other" }), "(aud)"),
        (json!({ "aud": ["other", "mesh2"] }), "(aud)"),
        (json!({ "aud": null }), "aud"),
        (json!({ "iss": "https://id.example.org" }), "issuer"),
        (
            json!({ "iss": format!("{}/", provider.issuer()) }),
            "issuer",
        ),
        (json!({ "iss": [provider.issuer()] }), "iss"),
        (json!({ "iss": null }), "iss"),
        (json!({ "exp": now - 3600 }), "(exp)"),
        (json!({ "exp": null }), "exp"),
        (json!({ "exp": "tomorrow" }), "exp"),
        (json!({ "nbf": now + 3600 }), "(nbf)"),
        (json!({ "iat": now + 3600 }), "(iat)"),
        (json!({ "iat": null }), "(iat)"),
        (json!({ "sub": null }), "sub"),
        (json!({ "sub": "" }), "(sub)"),
        (json!({ "cnf": { "jkt": "x" } }), "(cnf)"),
    ] {
        let token = provider
            .forge("RS256", json!({}), with(claims.clone(), claim.clone()))
            .await;
        refused(&server, &token, &claim.to_string(), why).await;
    }
    for (key, header, why) in [
        ("RS256", json!({ "alg": "none" }), "algorithm"),
        // The public key used as a shared secret.
        ("RS256", json!({ "alg": "HS256" }), "algorithm"),
        ("RS256", json!({ "typ": "logout+jwt" }), "typ"),
        (
            "RS256",
            json!({ "crit": ["b64"], "b64": false }),
            "critical",
        ),
        ("EdDSA", json!({ "kid": "made up" }), "no such key"),
    ] {
        let token = provider.forge(key, header.clone(), claims.clone()).await;
        refused(&server, &token, &header.to_string(), why).await;
    }
    // The id of another algorithm's key.
    let other = provider.token("alice", "mesh", "RS256").await;
    let kid = header_of(&other)["kid"].clone();
    let token = provider
        .forge("ES256", json!({ "kid": kid }), claims.clone())
        .await;
    refused(&server, &token, "kid of RSA", "no such key").await;
    // Another token's claims under a valid signature, and texts that are no token.
    let parts: Vec<&str> = other.split('.').collect();
    let admin = provider.token("admins-1", "mesh", "RS256").await;
    let payload = admin.split('.').nth(1).unwrap();
    let stolen = format!("{}.{payload}.{}", parts[0], parts[2]);
    refused(&server, &stolen, "stolen signature", "signature").await;
    refused(
        &server,
        &format!("{}.{}.", parts[0], parts[1]),
        "cut off",
        "",
    )
    .await;
    for rubbish in ["a.b.c", "..", "x", "eyJhbGciOiJSUzI1NiJ9..x"] {
        refused(&server, rubbish, rubbish, "").await;
    }
    refused(
        &server,
        &format!("{}.{}.x", "a".repeat(20_000), "b"),
        "long",
        "too long",
    )
    .await;
    // An issuer that does not answer is no reason to accept or refuse its tokens.
    let unreachable_issuer = with(claims, json!({ "iss": "http://127.0.0.1:1/nobody/there" }));
    let token = provider.forge("RS256", json!({}), unreachable_issuer).await;
    let (status, _, problem) = server.whoami(Some(&token)).await;
    assert_eq!(status, 503, "{problem}");
}

async fn refused(server: &Server, token: &str, what: &str, why: &str) {
    let (status, challenge, problem) = server.whoami(Some(token)).await;
    assert_eq!(status, 401, "{what}: {problem}");
    assert!(
        challenge.contains("error=\"invalid_token\""),
        "{what}: {challenge}"
    );
    assert!(challenge.contains(why), "{what}: {challenge}");
    assert!(problem["detail"].as_str().unwrap().contains(why), "{what}");
    assert!(
        !problem.to_string().contains("127.0.0.1"),
        "{what}: {problem}"
    );
}

fn header_of(token: &str) -> Value {
    use base64::Engine as _;
    let part = token.split('.').next().unwrap();
    let bytes = base64::prelude::BASE64_URL_SAFE_NO_PAD
        .decode(part)
        .unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_rotated_and_the_provider_may_be_unavailable() {
    mesh_runtime::install_crypto_provider();
    let mut provider = OidcProvider::start();
    let old = provider.token("alice", "mesh", "RS256").await;
    provider.down();
    let server = server(&provider).await;
    // The keys were never fetched.
    assert_eq!(server.whoami(Some(&old)).await.0, 503);
    provider.up();
    wait_until("the keys are there", DEADLINE, async || {
        server.whoami(Some(&old)).await.0 == 200
    })
    .await;
    provider.down();
    let (status, _, problem) = server.whoami(Some(&old)).await;
    assert_eq!(status, 200, "what is known stays known: {problem}");
    provider.rotate();
    let new = provider.token("alice", "mesh", "EdDSA").await;
    wait_until("the new keys are there", DEADLINE, async || {
        server.whoami(Some(&new)).await.0 == 200
    })
    .await;
    refused(&server, &old, "a key that is withdrawn", "no such key").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_keys_do_not_make_us_ask_the_issuer() {
    mesh_runtime::install_crypto_provider();
    let provider = OidcProvider::start();
    let server = server(&provider).await;
    let good = provider.token("alice", "mesh", "RS256").await;
    wait_until("the keys are there", DEADLINE, async || {
        server.whoami(Some(&good)).await.0 == 200
    })
    .await;
    let begin = std::time::Instant::now();
    for number in 0..300 {
        let header = json!({ "kid": format!("made up {number}") });
        let token = provider.forge("ES256", header, provider.claims()).await;
        refused(&server, &token, "made up", "no such key").await;
        if number % 50 == 0 {
            assert_eq!(server.whoami(Some(&good)).await.0, 200);
        }
    }
    // The first, and one per ten seconds.
    let allowed = 2 + begin.elapsed().as_secs() / 10;
    let fetched = provider.fetched().await;
    assert!(u64::from(fetched) <= allowed, "{fetched} > {allowed}");
}
