//! TLS of the TCP listener. The certificate is read again when its files change; connections that exist go on.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll, ready};

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use super::peer::{Peer, tcp_peer};
use crate::{BoxError, HealthNote, WatchedFiles};

/// The present certificate of the server.
#[derive(Debug)]
pub(crate) struct Certificate {
    cert_file: PathBuf,
    key_file: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    /// The files last read, good or bad, so that a bad one is reported once.
    files: Mutex<WatchedFiles>,
}

impl Certificate {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// If one of them cannot be used, or they do not belong together.
    pub(crate) fn new(cert_file: PathBuf, key_file: PathBuf) -> Result<Self, String> {
        let mut files = WatchedFiles::default();
        files.add(cert_file.clone());
        files.add(key_file.clone());
        let current = RwLock::new(read(&cert_file, &key_file)?);
        Ok(Self {
            cert_file,
            key_file,
            current,
            files: Mutex::new(files),
        })
    }

    /// Reads changed files again. A pair that cannot be used changes nothing.
    pub(crate) fn reload(&self, note: &HealthNote) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if !files.changed() {
            return;
        }
        match read(&self.cert_file, &self.key_file) {
            Ok(read) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
                tracing::info!(file = %self.cert_file.display(), "certificate of the API read again");
                note.clear();
            }
            Err(problem) => {
                tracing::warn!(
                    problem,
                    "certificate of the API not usable, the former one stays in use"
                );
                note.say(format!("{problem}; the former certificate stays in use"));
            }
        }
    }

    /// The TLS configuration that always presents the present certificate.
    pub(super) fn acceptor(self: Arc<Self>) -> Result<TlsAcceptor, BoxError> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&current))
    }
}

fn read(cert_file: &Path, key_file: &Path) -> Result<Arc<CertifiedKey>, String> {
    let of_cert = |problem: &dyn std::fmt::Display| {
        format!("mesh.api.cert_file {}: {problem}", cert_file.display())
    };
    let of_key = |problem: &dyn std::fmt::Display| {
        format!("mesh.api.key_file {}: {problem}", key_file.display())
    };
    let key = secret_file::read(key_file).map_err(|error| of_key(&error))?;
    let text = std::fs::read(cert_file).map_err(|error| of_cert(&error))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| of_cert(&error))?;
    if chain.is_empty() {
        return Err(of_cert(
            &"no certificates: PEM is needed, -----BEGIN CERTIFICATE-----",
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| of_key(&"no private key: PEM is needed, -----BEGIN PRIVATE KEY-----"))?;
    let pair = CertifiedKey::from_der(chain, key, &ring::default_provider());
    pair.map(Arc::new).map_err(|error| {
        of_key(&format!(
            "{error}; is it the key of {}?",
            cert_file.display()
        ))
    })
}

/// The TCP listener, with TLS if a certificate is configured.
pub(super) struct TlsListener {
    tcp: TcpListener,
    acceptor: Option<TlsAcceptor>,
}

impl TlsListener {
    pub(super) const fn new(tcp: TcpListener, acceptor: Option<TlsAcceptor>) -> Self {
        Self { tcp, acceptor }
    }
}

impl Listener for TlsListener {
    type Io = ApiStream;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.tcp).await;
        let peer = tcp_peer(&stream);
        let state = match &self.acceptor {
            None => State::Plain(stream),
            // Done by the connection's task: a slow client does not hold up the next one.
            Some(acceptor) => State::Handshake(Box::new(acceptor.accept(stream))),
        };
        (ApiStream { peer, state }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

/// A connection of the TCP listener.
pub(super) struct ApiStream {
    peer: Peer,
    state: State,
}

enum State {
    Plain(TcpStream),
    Handshake(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
}

impl ApiStream {
    pub(super) const fn peer(&self) -> Peer {
        self.peer
    }

    /// Finishes the handshake, then calls `io` with the stream.
    fn poll_with<T>(
        &mut self,
        context: &mut Context<'_>,
        io: impl FnOnce(Pin<&mut dyn Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let State::Handshake(accept) = &mut self.state {
            let stream = ready!(Pin::new(accept.as_mut()).poll(context))?;
            self.state = State::Tls(Box::new(stream));
        }
        match &mut self.state {
            State::Plain(stream) => io(Pin::new(stream), context),
            State::Tls(stream) => io(Pin::new(stream.as_mut()), context),
            State::Handshake(_) => Poll::Pending,
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl AsyncRead for ApiStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_with(context, |stream, context| stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for ApiStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(context, |stream, context| stream.poll_shutdown(context))
    }
}
