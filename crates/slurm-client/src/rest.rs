//! The queries of [`Slurm`](crate::Slurm) by slurmrestd.
//!
//! No response is trusted unchecked. HTTP 200 with errors, a truncated document, an empty list of changes, or a response older than the
//! last one is an error or "nothing changed", never "no such job". A job counts as missing only if Slurm reports its error number (2017).
//! `update_time` is never sent to `/nodes/`: up to 25.11 that fails with HTTP 500 whenever nodes changed but partitions did not.

mod access;
mod accounting;
mod api;
mod controller;
mod document;
mod http;
mod jobs;
mod queue;
mod response;
mod scheduling;
mod submit;

pub use submit::{SubmitAnswer, SubmitApi};

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use slurm_types::UnixTime;

use self::{
    api::{Api, Family, NEEDED},
    document::{complete, documented, envelope, nothing, or_keys, read_rows, unreadable},
    http::Http,
    queue::CachedQueue,
    response::{Response, classify},
};
use crate::{Config, Error, drift::DriftLog, error::excerpt, json::Envelope, metrics};

const OPENAPI: &str = "slurmrestd openapi";
const JOBS: &str = "slurmrestd jobs";
const JOB: &str = "slurmrestd job";
const ACCOUNTING: &str = "slurmrestd accounting";
const ASSOCIATIONS: &str = "slurmrestd associations";
const USERS: &str = "slurmrestd users";
const NODES: &str = "slurmrestd nodes";
const PARTITIONS: &str = "slurmrestd partitions";
const PING: &str = "slurmrestd ping";
const DIAG: &str = "slurmrestd diag";
const RESERVATIONS: &str = "slurmrestd reservations";
const LICENSES: &str = "slurmrestd licenses";
const CONF: &str = "slurmrestd conf";
const SUBMIT: &str = "slurmrestd submit";
const CLUSTERS: &str = "slurmrestd clusters";

/// "Invalid job id specified".
const INVALID_JOB_ID: i64 = 2017;

/// A client of slurmrestd. Clones share its state.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    http: Http,
    api: Arc<Mutex<Option<Arc<Api>>>>,
    known: Arc<Mutex<CachedQueue>>,
    /// The controller's clock in the newest response about jobs.
    newest: Arc<AtomicI64>,
    /// Limit of requests per second.
    pace: NonZeroU32,
    /// Unknown forms in responses.
    pub(crate) drifts: DriftLog,
}

impl Rest {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            pace: config.commands_per_second,
            http: Http::new(config),
            api: Arc::default(),
            known: Arc::default(),
            newest: Arc::default(),
            drifts: DriftLog::default(),
        }
    }

    pub(crate) fn with_timeout(&self, command_timeout: Duration) -> Self {
        Self {
            http: self.http.with_timeout(command_timeout),
            ..self.clone()
        }
    }

    /// The API versions that the server offers, requested once.
    async fn api(&self) -> Result<Arc<Api>, Error> {
        let known = || self.api.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(api) = known().clone() {
            return Ok(api);
        }
        let mut last = None;
        for path in ["/openapi.json", "/openapi/v3"] {
            let reply = self.http.get(OPENAPI, path).await?;
            match classify(OPENAPI, Family::Controller, reply, self.http.has_token())? {
                Response::Document(body) => last = Some(body),
                Response::NotModified | Response::NoSuchJob | Response::NoSuchPath => {}
            }
            if let Some(api) = last.as_deref().and_then(Api::read).map(Arc::new) {
                *known() = Some(Arc::clone(&api));
                return Ok(api);
            }
        }
        Err(Error::Malformed {
            command: OPENAPI,
            problem: "no list of paths; is this slurmrestd?",
            excerpt: excerpt(&String::from_utf8_lossy(&last.unwrap_or_default())),
        })
    }

    fn invalidate_api(&self) {
        *self.api.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Sends a query in the newest version that is served; retries once if the server has changed meanwhile.
    async fn get(
        &self,
        command: &'static str,
        family: Family,
        question: &str,
        argument: &str,
    ) -> Result<Response, Error> {
        let response = self
            .get_or_rediscover(command, family, question, argument)
            .await;
        if let Err(error) = &response {
            metrics::failed(command, error.kind());
        }
        response
    }

    async fn get_or_rediscover(
        &self,
        command: &'static str,
        family: Family,
        question: &str,
        argument: &str,
    ) -> Result<Response, Error> {
        for may_retry in [true, false] {
            let api = self.api().await?;
            let Some(path) = api.path(family, question) else {
                self.invalidate_api();
                return Err(Error::NotServed {
                    command,
                    served: api.served(family),
                    needed: &NEEDED,
                });
            };
            let target = match path.split_once('{') {
                Some((before, _)) => format!("{before}{argument}"),
                None if argument.is_empty() => path,
                None => format!("{path}?{argument}"),
            };
            let reply = self.http.get(command, &target).await?;
            match classify(command, family, reply, self.http.has_token())? {
                // Retried: the server may have another version than before.
                Response::NoSuchPath => {
                    if may_retry {
                        self.invalidate_api();
                    }
                }
                response => return Ok(response),
            }
        }
        Err(Error::Failed {
            command,
            status: 404,
            message: "slurmrestd lists this path but does not serve it".to_owned(),
        })
    }

    /// A document with its list. `None` only where that is a valid result: nothing changed since the given time, or no such job.
    async fn list<T: Send + 'static>(
        &self,
        command: &'static str,
        family: Family,
        question: &'static str,
        argument: &str,
        read: impl FnMut(&Value) -> T + Send + 'static,
    ) -> Result<Option<(Vec<T>, Envelope)>, Error> {
        let list = question.split('/').next().unwrap_or(question);
        let list = if list == "job" { "jobs" } else { list };
        match self.get(command, family, question, argument).await? {
            Response::Document(body) => documented(command, body, list, read).await.map(Some),
            Response::NotModified if argument.starts_with("update_time=") => Ok(None),
            Response::NoSuchJob if list != question => Ok(None),
            Response::NotModified | Response::NoSuchJob | Response::NoSuchPath => {
                Err(nothing(command))
            }
        }
    }

    /// A list that was parsed completely.
    async fn all<T: Send + 'static>(
        &self,
        command: &'static str,
        family: Family,
        question: &'static str,
        argument: &str,
        read: fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let response = self
            .list(command, family, question, argument, or_keys(read))
            .await?;
        let (records, _) = response.ok_or_else(|| nothing(command))?;
        complete(command, records)
    }

    fn newest(&self) -> i64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// Refuses a response older than the state before the request. Two seconds are allowed: for whole seconds, and a backup controller's
    /// clock.
    fn check_age(
        &self,
        command: &'static str,
        before: i64,
        envelope: &Envelope,
    ) -> Result<(), Error> {
        const ALLOWED: i64 = 2;
        let Some(this) = envelope.last_update.map(UnixTime::as_secs) else {
            return Ok(());
        };
        if this + ALLOWED < before {
            // Once only: should the controller's clock have been set back, the next response is accepted.
            self.newest.store(this, Ordering::Relaxed);
            let error = Error::Stale {
                command,
                this,
                newest: before,
            };
            metrics::failed(command, error.kind());
            return Err(error);
        }
        self.newest.fetch_max(this, Ordering::Relaxed);
        Ok(())
    }
}
