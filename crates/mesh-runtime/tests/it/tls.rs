//! The API over TLS: certificates that are exchanged while it runs.

use std::path::Path;

use mesh_testkit::{wait_until, write_private};
use rcgen::{CertificateParams, KeyPair};

use crate::support::{DEADLINE, Server};

const TOKEN: &str = "a token of enough characters";

/// Writes a new certificate of its own authority with its key, and returns it.
pub(crate) fn issue(cert: &Path, key: &Path) -> String {
    let pair = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&pair).unwrap().pem();
    write_private(key, pair.serialize_pem());
    std::fs::write(cert, &certificate).unwrap();
    certificate
}

pub(crate) fn trusting(certificate: &str) -> reqwest::Client {
    let root = reqwest::Certificate::from_pem(certificate.as_bytes()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([root])
        .no_proxy()
        .timeout(DEADLINE)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_exchanged_without_a_restart_and_a_bad_one_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (cert, key, token) = (at("api.pem"), at("api.key"), at("token"));
    write_private(&token, TOKEN);
    let first = issue(&cert, &key);
    let server = Server::start_tls(&format!(
        "token_file = {token:?}\ncert_file = {cert:?}\nkey_file = {key:?}"
    ))
    .await;
    let url = format!("https://{}/v1/whoami", server.address());
    let whoami = async |certificate: &str| {
        let asked = trusting(certificate).get(&url).bearer_auth(TOKEN).send();
        asked
            .await
            .map(|answer| (answer.status().as_u16(), answer.version()))
    };
    let answer = whoami(&first).await.unwrap();
    assert_eq!(answer, (200, reqwest::Version::HTTP_2));
    // Without TLS there is nothing to read.
    let plain = reqwest::get(format!("http://{}/livez", server.address())).await;
    assert!(plain.is_err());

    let second = issue(&cert, &key);
    wait_until("the new certificate is used", DEADLINE, async || {
        whoami(&second).await.is_ok()
    })
    .await;
    assert!(whoami(&first).await.is_err());

    let note = || server.health.notes().get("api.certificate").cloned();
    let note = || note().filter(|note| !note.is_empty());
    // A certificate whose key has not been exchanged yet.
    let third = issue(&cert, &at("other.key"));
    wait_until("it is noted", DEADLINE, async || note().is_some()).await;
    assert!(
        note().unwrap().contains("former certificate"),
        "{note:?}",
        note = note()
    );
    assert!(whoami(&second).await.is_ok(), "the former one stays");
    std::fs::rename(at("other.key"), &key).unwrap();
    wait_until("now they belong together", DEADLINE, async || {
        whoami(&third).await.is_ok() && note().is_none()
    })
    .await;
}
