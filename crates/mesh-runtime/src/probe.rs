//! `--probe`: asks a running service for its health, for images that have no shell and no curl.

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;

use crate::BoxError;

/// The process answers from memory; a slower one is stuck.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Health endpoint to query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// Whether the process responds.
    Livez,
    /// Whether the service is ready: NATS, Slurm and its database are available.
    Readyz,
}

impl Probe {
    const fn path(self) -> &'static str {
        match self {
            Self::Livez => "/livez",
            Self::Readyz => "/readyz",
        }
    }

    /// Sends the request over the service's Unix socket.
    ///
    /// # Errors
    /// The problems that the service reports.
    pub(crate) async fn ask(self, socket: &Path) -> Result<(), BoxError> {
        let client = reqwest::Client::builder()
            .unix_socket(socket)
            .timeout(TIMEOUT)
            .build()?;
        let asking = client.get(format!("http://localhost{}", self.path()));
        let answer = asking
            .send()
            .await
            .map_err(|error| format!("{} does not answer: {error}", socket.display()))?;
        let status = answer.status();
        let text = answer.text().await?;
        match status.is_success() {
            true => Ok(()),
            false => Err(format!("{status}: {}", problems(&text)).into()),
        }
    }
}

/// The problems in a response of `/readyz`, or the whole text of another response.
fn problems(text: &str) -> String {
    let answer: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let problems = answer["problems"].as_object().into_iter().flatten();
    let lines: Vec<String> = problems
        .map(|(name, problem)| format!("{name}: {}", problem.as_str().unwrap_or_default()))
        .collect();
    match lines.is_empty() {
        true => text.trim().to_owned(),
        false => lines.join("; "),
    }
}
