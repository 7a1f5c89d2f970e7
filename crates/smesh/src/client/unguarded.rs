//! Client that takes any answer of the ledger.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use reqwest::tls::TlsInfo;
use reqwest::{Certificate, Method, Response, redirect};
use secrecy::ExposeSecret as _;
use serde_json::Value;

use super::address::ApiAddress;
use crate::error::Error;

/// Time to connect. Answers may take longer: an export, or a stream.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Client of the API that takes any answer of the ledger: to check it, to accept it, or to report on it.
#[derive(Clone, Debug)]
pub struct UnguardedClient {
    address: ApiAddress,
    http: reqwest::Client,
}

/// Query parameters: names and values, encoded when the request is sent.
pub type Query = Vec<(&'static str, String)>;

/// Readiness of the services, by name.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// Conditions that keep services from being ready. Empty if all are ready.
    pub problems: BTreeMap<String, String>,
    /// Notes for the operator.
    pub notes: BTreeMap<String, String>,
    /// Version of the services, for those who may see details.
    pub version: Option<String>,
    /// Certificate of the server (DER), over TLS.
    pub certificate: Option<Vec<u8>>,
}

/// A document received in parts.
#[derive(Debug)]
pub struct Download {
    client: UnguardedClient,
    response: Response,
}

impl Download {
    /// Receives the next part. `None` at the proper end.
    ///
    /// # Errors
    /// If the connection ends early.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let part = self.response.chunk().await;
        part.map_err(|error| self.client.unreachable(&error))
    }
}

impl UnguardedClient {
    /// Creates a client for an address. Connects with the first request.
    ///
    /// # Errors
    /// If the file of certificate authorities cannot be read.
    pub fn new(address: ApiAddress) -> Result<Self, Error> {
        mesh_runtime::install_crypto_provider();
        // Neither a proxy nor a redirection gets the token.
        let builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .tls_info(true)
            .connect_timeout(CONNECT_TIMEOUT);
        let builder = match &address {
            ApiAddress::Unix(socket) => builder.unix_socket(socket.as_path()),
            ApiAddress::Tcp {
                ca_file: Some(file),
                ..
            } => builder.tls_certs_merge(certificates(file)?),
            ApiAddress::Tcp { .. } => builder,
        };
        let http = builder
            .build()
            .map_err(|error| Error::Usage(mesh_runtime::error_chain(&error)))?;
        Ok(Self { address, http })
    }

    /// Address of the API.
    pub const fn address(&self) -> &ApiAddress {
        &self.address
    }

    /// Gets a JSON document.
    ///
    /// # Errors
    /// If the API is unreachable, refuses, or its answer is not JSON.
    pub async fn get(&self, path: &str, query: &Query) -> Result<Value, Error> {
        let response = self.send(Method::GET, path, query).await?;
        self.document(response).await
    }

    /// Sends an optional JSON document with additional headers.
    ///
    /// # Errors
    /// As [`UnguardedClient::get`].
    pub async fn send_json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&'static str, String)],
    ) -> Result<Value, Error> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let none = Query::new();
        let response = self.send_with(method, path, &none, body, headers).await?;
        self.document(response).await
    }

    /// Gets the readiness of the services.
    ///
    /// # Errors
    /// If the API is unreachable or its answer has another form.
    pub async fn readiness(&self) -> Result<Readiness, Error> {
        // A 503 with the list is also a valid answer.
        let response = self.send(Method::GET, "/readyz", &Query::new()).await?;
        let tls = response.extensions().get::<TlsInfo>();
        let certificate = tls.and_then(|tls| tls.peer_certificate().map(<[u8]>::to_vec));
        let body = self.body(response).await?;
        let answer: Value =
            serde_json::from_slice(&body).map_err(|error| Error::Answer(error.to_string()))?;
        let texts = |of: &str| {
            let texts = answer[of].as_object()?;
            let text = |(name, text): (&String, &Value)| {
                (name.clone(), text.as_str().unwrap_or_default().to_owned())
            };
            Some(texts.iter().map(text).collect())
        };
        let none = || Error::Answer("no list of problems".into());
        Ok(Readiness {
            problems: texts("problems").ok_or_else(none)?,
            notes: texts("notes").unwrap_or_default(),
            version: answer["version"].as_str().map(str::to_owned),
            certificate,
        })
    }

    async fn body(&self, response: Response) -> Result<Bytes, Error> {
        let body = response.bytes().await;
        body.map_err(|error| self.unreachable(&error))
    }

    async fn document(&self, response: Response) -> Result<Value, Error> {
        let status = response.status();
        if !status.is_success() {
            return Err(self.refusal(response).await);
        }
        let body = self.body(response).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|error| Error::Answer(error.to_string()))
    }

    /// Gets a document of any type, which may be long.
    ///
    /// # Errors
    /// As [`UnguardedClient::get`].
    pub async fn download(&self, path: &str, query: &Query) -> Result<Download, Error> {
        let response = self.send(Method::GET, path, query).await?;
        if response.status().is_success() {
            let client = self.clone();
            return Ok(Download { client, response });
        }
        Err(self.refusal(response).await)
    }

    async fn send(&self, method: Method, path: &str, query: &Query) -> Result<Response, Error> {
        self.send_with(method, path, query, String::new(), &[])
            .await
    }

    async fn send_with(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: String,
        headers: &[(&'static str, String)],
    ) -> Result<Response, Error> {
        let base = match &self.address {
            ApiAddress::Unix(_) => "http://localhost",
            ApiAddress::Tcp { url, .. } => url.as_str().trim_end_matches('/'),
        };
        let mut request = self
            .http
            .request(method, format!("{base}{path}"))
            .query(query)
            .header(ACCEPT, "application/json, text/event-stream");
        if let ApiAddress::Tcp { token, .. } = &self.address {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.expose_secret()));
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let response = request.send().await;
        response.map_err(|error| self.unreachable(&error))
    }

    /// What an answer says that is no success.
    async fn refusal(&self, response: Response) -> Error {
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let body = match self.body(response).await {
            Ok(body) => body,
            Err(error) => return error,
        };
        let problem: Option<Value> = serde_json::from_slice(&body).ok();
        let detail = problem
            .as_ref()
            .and_then(|problem| problem["detail"].as_str())
            .map(str::to_owned);
        Error::Refused {
            status,
            detail: detail.unwrap_or_else(|| {
                format!(
                    "slurm-mesh answers HTTP {status}: {:.200}",
                    String::from_utf8_lossy(&body)
                )
            }),
            retry_after,
        }
    }

    /// The address is named already, so only the causes of the error are.
    fn unreachable(&self, error: &reqwest::Error) -> Error {
        let cause = std::error::Error::source(error);
        Error::Unreachable {
            address: self.address.to_string(),
            reason: mesh_runtime::error_chain(cause.unwrap_or(error)),
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<Certificate>, Error> {
    let pem = std::fs::read(file).map_err(|source| Error::io("read", file, source))?;
    let certificates = Certificate::from_pem_bundle(&pem).ok();
    certificates
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(|| {
            Error::Usage(format!(
                "--ca-file {}: no certificate in PEM form",
                file.display()
            ))
        })
}
