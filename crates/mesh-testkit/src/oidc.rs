//! A real OIDC provider (oidc-provider, of npm) that can be stopped, restarted, and given new keys.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Port;

/// Installed by scripts/setup, relative to the root of the project.
const MODULE: &str = ".tools/oidc/node_modules/oidc-provider/lib/index.js";

/// An OIDC provider on loopback, ended when dropped.
pub struct OidcProvider {
    folder: TempDir,
    port: Port,
    child: Option<Child>,
    http: reqwest::Client,
}

impl OidcProvider {
    /// Starts a provider with new keys for RS256, ES256 and EdDSA.
    pub fn start() -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .timeout(Duration::from_secs(60))
            .build()
            .expect("an HTTP client; call mesh_runtime::install_crypto_provider() first");
        let mut provider = Self {
            folder: tempfile::tempdir().expect("a folder"),
            port: Port::take(),
            child: None,
            http,
        };
        provider.up();
        provider
    }

    /// Starts it again, with the same keys.
    pub fn up(&mut self) {
        self.down();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let module = root.join(MODULE);
        assert!(
            module.is_file(),
            "there is no {}: run scripts/setup, which installs the OIDC provider of the tests",
            module.display()
        );
        let mut child = Command::new("node")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("oidc/provider.mjs"))
            .arg(self.port.address().port().to_string())
            .arg(self.keys())
            .env("OIDC_PROVIDER", module)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("node: run scripts/setup");
        let stdout_pipe = child.stdout.take().expect("piped");
        let ready = BufReader::new(stdout_pipe)
            .lines()
            .map_while(Result::ok)
            .any(|line| line == "ready");
        if !ready {
            let output = child.wait_with_output().expect("it ended");
            panic!(
                "the OIDC provider did not start: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        self.child = Some(child);
    }

    /// Stops it.
    pub fn down(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill the provider");
            child.wait().expect("wait for the provider");
        }
    }

    /// Starts it again with new keys.
    pub fn rotate(&mut self) {
        self.down();
        std::fs::remove_file(self.keys()).expect("its keys");
        self.up();
    }

    fn keys(&self) -> PathBuf {
        self.folder.path().join("keys.json")
    }

    /// Its `iss`.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.port.address())
    }

    /// An access token that the provider issues to a client (`alice`, `carol`, `dave`, `stranger`, `audit-1`, `admins-1`) for an audience.
    pub async fn token(&self, client: &str, audience: &str, algorithm: &str) -> String {
        let form = format!("grant_type=client_credentials&resource=urn:{audience}:{algorithm}");
        let answer = self
            .http
            .post(format!("{}/token", self.issuer()))
            .basic_auth(client, Some("secret"))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form)
            .send()
            .await
            .expect("the provider answers");
        let text = answer.text().await.expect("an answer");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["access_token"]
            .as_str()
            .unwrap_or_else(|| panic!("no token: {text}"))
            .to_owned()
    }

    /// Claims of a valid token for the audience `mesh`.
    pub fn claims(&self) -> Value {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("after 1970")
            .as_secs();
        json!({ "iss": self.issuer(), "sub": "alice", "aud": "mesh", "iat": now, "exp": now + 300 })
    }

    /// A token with any claims, signed with the provider's key for an algorithm; fields of `header` replace the usual ones.
    pub async fn forge(&self, key: &str, header: Value, claims: Value) -> String {
        let body = json!({ "key": key, "header": header, "claims": claims });
        let answer = self
            .http
            .post(format!("{}/forge", self.issuer()))
            .body(body.to_string())
            .send()
            .await
            .expect("the provider answers");
        answer.text().await.expect("a token")
    }

    /// Number of fetches of its keys since its start.
    pub async fn fetched(&self) -> u32 {
        let answer = self
            .http
            .get(format!("{}/fetched", self.issuer()))
            .send()
            .await
            .expect("the provider answers");
        let text = answer.text().await.expect("an answer");
        text.parse().expect("a number")
    }
}

impl Drop for OidcProvider {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
