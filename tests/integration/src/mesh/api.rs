//! The API of a mesh, and its ledger.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Method;
use mesh_events::EventType;

use super::{Mesh, PATIENCE};
use crate::{Answer, Error, Fact, http, wait_for};

impl Mesh {
    /// True if every service is ready.
    pub async fn is_ready(&self) -> bool {
        let answer = self.ask(Method::GET, "/readyz", &[], String::new()).await;
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// Sends a GET to the API, as root.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn get(&self, path: &str) -> Result<Answer, Error> {
        self.ask(Method::GET, path, &[], String::new()).await
    }

    /// Sends a POST to the API, as a sender from outside does by these headers.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<Answer, Error> {
        self.ask(Method::POST, path, headers, body).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<Answer, Error> {
        let answer = http::ask(&self.socket(), method.clone(), path, headers, body).await;
        answer.map_err(|error| Error::Api {
            request: format!("{method} {path}"),
            problem: error.to_string(),
        })
    }

    /// Retries while the API is temporarily unavailable, as a client should. On a busy disk, NATS may not accept the audit of a read.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn get_patiently(&self, path: &str) -> Result<Answer, Error> {
        let started = tokio::time::Instant::now();
        loop {
            let answer = self.get(path).await?;
            if answer.status != 503 || started.elapsed() > PATIENCE {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// All facts of these types in the ledger (`job.*,cost.finalized`; empty for all), in its order.
    ///
    /// # Errors
    /// If the API gives an unexpected answer.
    pub async fn facts(&self, types: &str) -> Result<Vec<Fact>, Error> {
        let mut facts = Vec::new();
        let filter = if types.is_empty() {
            String::new()
        } else {
            format!("&type={types}")
        };
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/events?limit=1000{filter}{cursor}");
            let answer = self.get_patiently(&path).await?;
            let page = answer.json();
            let Some(entries) = page["entries"].as_array() else {
                return Err(Error::Api {
                    request: format!("GET {path}"),
                    problem: format!("{}: {}", answer.status, answer.body),
                });
            };
            facts.extend(entries.iter().filter_map(Fact::read));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(facts),
            }
        }
    }

    /// Waits until the facts of these types are sufficient.
    ///
    /// # Errors
    /// [`Error::Deadline`] with `description` and the end of the log.
    pub async fn wait_facts<T>(
        &self,
        description: &str,
        patience: Duration,
        types: &str,
        is_done: impl Fn(&[Fact]) -> Option<T>,
    ) -> Result<T, Error> {
        let found = wait_for(description, patience, async || {
            Ok(is_done(&self.facts(types).await?))
        });
        match found.await {
            Err(Error::Deadline {
                description,
                patience,
            }) => {
                let mut counts: BTreeMap<EventType, u32> = BTreeMap::new();
                for fact in self.facts(types).await? {
                    *counts.entry(fact.kind).or_default() += 1;
                }
                let log = self.log_tail();
                Err(Error::Deadline {
                    description: format!(
                        "{description}; there are {counts:?}; its log ends with: {log}"
                    ),
                    patience,
                })
            }
            done => done,
        }
    }

    /// Runs `smesh verify` and returns its output.
    ///
    /// # Errors
    /// If it finds that the ledger was changed.
    pub async fn verify(&self) -> Result<String, Error> {
        let output = self.smesh(&["verify"]).await?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(Error::command("smesh verify", &output))
        }
    }
}
