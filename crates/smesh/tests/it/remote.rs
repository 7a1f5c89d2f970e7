//! The API over TCP, plain and behind a proxy that terminates TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh_testkit::write_private;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::access::configure;
use crate::mesh::{Mesh, stderr, stdout};

/// Terminates TLS for the API at `api`. Returns its address and the certificate of its authority in PEM.
async fn tls_proxy(api: SocketAddr) -> (SocketAddr, String) {
    mesh_runtime::install_crypto_provider();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut client = acceptor.accept(client).await?;
                let mut server = TcpStream::connect(api).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    (address, authority.pem())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_api_is_used_over_tls_if_its_authority_is_trusted() {
    let mut mesh = Mesh::init();
    let api = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let token = mesh.path("admin.token");
    write_private(&token, "the token of an administrator");
    configure(
        &mesh,
        &format!("[mesh.api]\nlisten = '{api}'\ntoken_file = {token:?}\n"),
    );
    mesh.start();
    let (proxy, authority) = tls_proxy(api).await;
    let ca_file = mesh.path("ca.pem");
    std::fs::write(&ca_file, authority).unwrap();
    let token = token.to_str().unwrap();
    let whoami = |url: &str, more: &[&str]| {
        let fixed = ["--url", url, "--token-file", token];
        mesh.run(&[&fixed[..], more, &["whoami"]].concat())
    };

    let plain = whoami(&format!("http://{api}"), &[]);
    assert!(plain.status.success(), "{}", stderr(&plain));
    let https = format!("https://{proxy}");
    let trusted = whoami(&https, &["--ca-file", ca_file.to_str().unwrap()]);
    assert!(trusted.status.success(), "{}", stderr(&trusted));
    assert_eq!(stdout(&trusted), stdout(&plain));

    let untrusted = whoami(&https, &[]);
    assert_eq!(untrusted.status.code(), Some(69), "{}", stderr(&untrusted));
    let message = stderr(&untrusted);
    assert!(
        message.contains(&https) && message.contains("certificate"),
        "{message}"
    );
    // Without an address of an API there is no server to trust.
    let alone = mesh.run(&["--ca-file", ca_file.to_str().unwrap(), "whoami"]);
    assert_eq!(alone.status.code(), Some(64), "{}", stderr(&alone));
    assert!(stderr(&alone).contains("--url"), "{}", stderr(&alone));

    let address = format!("ledger={https}");
    let doctor = |more: &[&str]| {
        let fixed = [
            "doctor",
            "--service",
            address.as_str(),
            "--token-file",
            token,
        ];
        stdout(&mesh.run(&[&fixed[..], more].concat()))
    };
    let printed = doctor(&["--ca-file", ca_file.to_str().unwrap()]);
    let certificate = format!("that of ledger at {https} expires on 4096-01-01");
    assert!(printed.contains(&certificate), "{printed}");
    let printed = doctor(&[]);
    let reason = format!("does not answer at {https}: ");
    let line = printed.lines().find(|line| line.contains(&reason));
    assert!(
        line.is_some_and(|line| line.contains("certificate")),
        "{printed}"
    );

    let no_certificate = whoami(&https, &["--ca-file", token]);
    let message = stderr(&no_certificate);
    assert_eq!(no_certificate.status.code(), Some(64), "{message}");
    assert!(message.contains("no certificate in PEM form"), "{message}");
    let other = whoami("ftp://example.org", &[]);
    assert_eq!(other.status.code(), Some(64), "{}", stderr(&other));
}
