//! The questions of [`Slurm`](crate::Slurm), asked by slurmrestd.
//!
//! Every answer is doubted: HTTP 200 with errors, a cut document, an empty list in answer to "what changed?", an answer older than the one
//! before are errors or "nothing changed", never "no such job". A job is missing only if Slurm says so by its number (2017).
//! `update_time` is never sent to `/nodes/`: up to 25.11 that fails with HTTP 500 whenever nodes changed but partitions did not.

mod accounting;
mod api;
mod http;
mod sweep;
mod verdict;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use slurm_types::{JobId, UnixTime};

use self::{
    api::{Api, Family, NEEDED},
    http::Http,
    sweep::Known,
    verdict::{Told, verdict},
};
use crate::{
    Config, Error, JobRecord, JobsAnswer, NodeRecord, PartitionRecord, Ping,
    cli::{belongs_to, sort_into},
    error::excerpt,
    json::{self, Answer, Envelope, Fields},
    metrics,
    parse::JobsText,
};

const OPENAPI: &str = "slurmrestd openapi";
const JOBS: &str = "slurmrestd jobs";
const JOB: &str = "slurmrestd job";
const ACCOUNTING: &str = "slurmrestd accounting";
const NODES: &str = "slurmrestd nodes";
const PARTITIONS: &str = "slurmrestd partitions";
const PING: &str = "slurmrestd ping";
const DIAG: &str = "slurmrestd diag";
const CONF: &str = "slurmrestd conf";
const CLUSTERS: &str = "slurmrestd clusters";

/// Up to so many jobs are asked for one by one. One costs 2 to 5 ms, the list 0.4 to 0.8 ms per job in it (22.05, 26.05).
const ONE_BY_ONE: usize = 16;
/// "Invalid job id specified".
const INVALID_JOB_ID: i64 = 2017;

/// Slurm, by slurmrestd. Clones share what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    http: Http,
    api: Arc<Mutex<Option<Arc<Api>>>>,
    known: Arc<Mutex<Known>>,
    /// The controller's clock in the newest answer about jobs.
    newest: Arc<AtomicI64>,
}

impl Rest {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            http: Http::new(config),
            api: Arc::default(),
            known: Arc::default(),
            newest: Arc::default(),
        }
    }

    pub(crate) fn patient(&self, command_timeout: Duration) -> Self {
        Self {
            http: self.http.patient(command_timeout),
            ..self.clone()
        }
    }

    /// What it serves, asked once.
    async fn api(&self) -> Result<Arc<Api>, Error> {
        let known = || self.api.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(api) = known().clone() {
            return Ok(api);
        }
        let mut last = None;
        for path in ["/openapi.json", "/openapi/v3"] {
            let reply = self.http.get(OPENAPI, path).await?;
            match verdict(OPENAPI, Family::Controller, reply, self.http.has_token())? {
                Told::Document(body) => last = Some(body),
                Told::NotModified | Told::NoSuchJob | Told::NoSuchPath => {}
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

    fn forget_api(&self) {
        *self.api.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Asks a question in the newest version that is served; once more if the server has changed meanwhile.
    async fn get(
        &self,
        command: &'static str,
        family: Family,
        question: &str,
        argument: &str,
    ) -> Result<Told, Error> {
        let told = self
            .get_or_rediscover(command, family, question, argument)
            .await;
        if let Err(error) = &told {
            metrics::failed(command, error.kind());
        }
        told
    }

    async fn get_or_rediscover(
        &self,
        command: &'static str,
        family: Family,
        question: &str,
        argument: &str,
    ) -> Result<Told, Error> {
        for again in [true, false] {
            let api = self.api().await?;
            let Some(path) = api.path(family, question) else {
                self.forget_api();
                return Err(Error::NotServed {
                    command,
                    served: api.served(family),
                    needed: NEEDED,
                });
            };
            let target = match path.split_once('{') {
                Some((before, _)) => format!("{before}{argument}"),
                None if argument.is_empty() => path,
                None => format!("{path}?{argument}"),
            };
            let reply = self.http.get(command, &target).await?;
            match verdict(command, family, reply, self.http.has_token())? {
                // Once more: the server may be another version than before.
                Told::NoSuchPath => {
                    if again {
                        self.forget_api();
                    }
                }
                told => return Ok(told),
            }
        }
        Err(Error::Failed {
            command,
            status: 404,
            message: "slurmrestd lists this path and does not have it".to_owned(),
        })
    }

    /// A document with its list. `None` only where that is an answer: nothing changed since the time asked about, or no such job.
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
            Told::Document(body) => documented(command, body, list, read).await.map(Some),
            Told::NotModified if argument.starts_with("update_time=") => Ok(None),
            Told::NoSuchJob if list != question => Ok(None),
            Told::NotModified | Told::NoSuchJob | Told::NoSuchPath => Err(nothing(command)),
        }
    }

    /// Full records of these jobs.
    pub(crate) async fn jobs(&self, ids: &[JobId]) -> Result<JobsAnswer, Error> {
        let ids: BTreeSet<JobId> = ids.iter().copied().collect();
        let mut answer = JobsAnswer::default();
        let mut by_id = ids.clone();
        if ids.len() > ONE_BY_ONE.max(self.known().rows() / 8) {
            let before = self.newest();
            let (records, envelope) = self
                .list(JOBS, Family::Controller, "jobs", "", json::job)
                .await?
                .ok_or_else(|| nothing(JOBS))?;
            self.doubt_age(JOBS, before, &envelope)?;
            let (mut rest, mut unclear) = sort_into(&mut answer, &ids, text(records));
            let later = rest.split_off(rest.len().min(ONE_BY_ONE));
            for id in later {
                match unclear.remove(&id) {
                    Some(problem) => answer.unclear.push((id, problem)),
                    None => answer.unlisted.push(id),
                }
            }
            by_id = rest.into_iter().collect();
        }
        for id in by_id {
            self.one_job(id, &mut answer).await?;
        }
        Ok(answer)
    }

    async fn one_job(&self, id: JobId, answer: &mut JobsAnswer) -> Result<(), Error> {
        let before = self.newest();
        let told = self
            .list(
                JOB,
                Family::Controller,
                "job/{job_id}",
                &id.to_string(),
                json::job,
            )
            .await?;
        let Some((records, envelope)) = told else {
            answer.missing.push(id);
            return Ok(());
        };
        if let Err(error) = self.doubt_age(JOB, before, &envelope) {
            answer.unclear.push((id, error.to_string()));
            return Ok(());
        }
        let JobsText { records, unclear } = text(records);
        metrics::unread(JOB, unclear.len());
        let found: Vec<JobRecord> = records
            .into_iter()
            .filter(|record| belongs_to(record, id))
            .collect();
        let unclear: Vec<_> = unclear
            .into_iter()
            .map(|(id, problem)| (id, problem.to_owned()))
            .collect();
        if found.is_empty() && unclear.is_empty() {
            let why = "the answer holds no record of it";
            answer.unclear.push((id, why.to_owned()));
        }
        answer.found.extend(found);
        answer.unclear.extend(unclear);
        Ok(())
    }

    /// Every node.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodeRecord>, Error> {
        let api = self.api().await?;
        if api.version(Family::Controller) == Some(36) {
            // Its states have no flags: a drained node would look idle.
            return Err(Error::NotServed {
                command: NODES,
                served: api.served(Family::Controller),
                needed: "v0.0.37 or newer",
            });
        }
        self.whole(NODES, "nodes", json::node).await
    }

    /// Every partition.
    pub(crate) async fn partitions(&self) -> Result<Vec<PartitionRecord>, Error> {
        self.whole(PARTITIONS, "partitions", json::partition).await
    }

    /// A list whose every record was read, and that is not empty.
    async fn whole<T: Send + 'static>(
        &self,
        command: &'static str,
        question: &'static str,
        read: fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let told = self
            .list(command, Family::Controller, question, "", read)
            .await?;
        let (records, _) = told.ok_or_else(|| nothing(command))?;
        let count = records.len();
        let records: Vec<T> = records.into_iter().flatten().collect();
        complete(command, count - records.len())?;
        match records.is_empty() {
            true => Err(nothing(command)),
            false => Ok(records),
        }
    }

    /// What slurmrestd tells of the configuration: v0.0.45 nearly all, older ones the cluster, the version and the clock.
    pub(crate) async fn config(&self) -> Result<BTreeMap<String, String>, Error> {
        let api = self.api().await?;
        let mut config = BTreeMap::new();
        if api.path(Family::Controller, "conf").is_some()
            && let Told::Document(body) = self.get(CONF, Family::Controller, "conf", "").await?
        {
            let document: Value =
                serde_json::from_slice(&body).map_err(|e| unreadable(CONF, &body, &e))?;
            let values = document["slurm_conf"].as_object().into_iter().flatten();
            config.extend(values.filter_map(|(key, value)| Some((key.clone(), printed(value)?))));
        }
        let about = match self.get(DIAG, Family::Controller, "diag", "").await? {
            Told::Document(body) => envelope(DIAG, &body)?,
            _ => return Err(nothing(DIAG)),
        };
        let mut set = |key: &str, value: String| {
            if !value.is_empty() {
                config.entry(key.to_owned()).or_insert(value);
            }
        };
        set(
            "AsOf",
            about
                .clock
                .map_or_else(String::new, |time| time.to_string()),
        );
        set("SLURM_VERSION", about.release);
        set("ClusterName", about.cluster);
        set(
            "AccountingStorageType",
            match about.accounting_storage {
                told if !told.is_empty() => told,
                // 22.05 does not say; it refuses to serve /slurmdb without slurmdbd.
                _ if api.version(Family::Accounting).is_some() => {
                    "accounting_storage/slurmdbd".to_owned()
                }
                _ => String::new(),
            },
        );
        if !config.contains_key("ClusterName")
            && let Some(cluster) = self.only_cluster(&api).await
        {
            config.insert("ClusterName".to_owned(), cluster);
        }
        Ok(config)
    }

    /// The one cluster of accounting: 22.05 has no other word for it.
    async fn only_cluster(&self, api: &Api) -> Option<String> {
        api.path(Family::Accounting, "clusters")?;
        let read = |value: &Value| Fields::new(value).text("name");
        let told = self
            .list(CLUSTERS, Family::Accounting, "clusters", "", read)
            .await;
        match told.ok()??.0.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        }
    }

    /// Whether a controller is up.
    pub(crate) async fn ping(&self) -> Result<Ping, Error> {
        let (controllers, _) = self.pings().await?;
        Ok(Ping {
            up: controllers.iter().any(|(up, _)| *up),
            lines: controllers.into_iter().map(|(_, line)| line).collect(),
        })
    }

    /// Version of slurmrestd.
    pub(crate) async fn version(&self) -> Result<String, Error> {
        let (_, envelope) = self.pings().await?;
        match envelope.release.is_empty() {
            true => Err(nothing(PING)),
            false => Ok(envelope.release),
        }
    }

    async fn pings(&self) -> Result<(Vec<(bool, String)>, Envelope), Error> {
        let told = match self.get(PING, Family::Controller, "ping", "").await? {
            Told::Document(body) => documented(PING, body, "pings", ping).await?,
            _ => return Err(nothing(PING)),
        };
        match told.0.is_empty() {
            true => Err(nothing(PING)),
            false => Ok(told),
        }
    }

    fn newest(&self) -> i64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// Refuses an answer older than what was known before the question. Two seconds are allowed: whole seconds, and a backup
    /// controller's clock.
    fn doubt_age(
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
            // Once: should the controller's clock have been set back, the next answer is believed.
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

/// Reads a document in a thread of its own: a long one takes a second.
async fn documented<T: Send + 'static>(
    command: &'static str,
    body: Vec<u8>,
    list: &'static str,
    read: impl FnMut(&Value) -> T + Send + 'static,
) -> Result<(Vec<T>, Envelope), Error> {
    let parse = move || match json::answer(&body, list, read) {
        Ok(answer) => Ok(answer),
        Err(error) => Err(unreadable(command, &body, &error)),
    };
    let parsed = tokio::task::spawn_blocking(parse).await;
    let answer: Answer<T> = parsed
        .unwrap_or_else(|_| {
            Err(Error::Suspicious {
                command,
                problem: "reading the answer was interrupted",
            })
        })
        .inspect_err(|error| metrics::failed(command, error.kind()))?;
    let Answer { envelope, items } = answer;
    let empty = items.as_ref().is_none_or(Vec::is_empty);
    let harmless = command == ACCOUNTING && empty && envelope.has_error(json::NOTHING_FOUND);
    if !envelope.errors.is_empty() && !harmless {
        let error = verdict::reported(command, &envelope);
        metrics::failed(command, error.kind());
        return Err(error);
    }
    let items = items.ok_or_else(|| nothing(command))?;
    Ok((items, envelope))
}

fn envelope(command: &'static str, body: &[u8]) -> Result<Envelope, Error> {
    json::envelope(body).map_err(|error| unreadable(command, body, &error))
}

fn unreadable(command: &'static str, body: &[u8], error: &serde_json::Error) -> Error {
    if error.is_eof() {
        return Error::Suspicious {
            command,
            problem: "the document ends too early: the answer was cut",
        };
    }
    Error::Malformed {
        command,
        problem: "it is no document of slurmrestd",
        excerpt: excerpt(&format!(
            "{error}; {}",
            String::from_utf8_lossy(&body[..body.len().min(400)])
        )),
    }
}

/// An answer without what was asked for.
fn nothing(command: &'static str) -> Error {
    let error = Error::Suspicious {
        command,
        problem: "it holds nothing although it reports success",
    };
    metrics::failed(command, error.kind());
    error
}

fn complete(command: &'static str, unread: usize) -> Result<(), Error> {
    metrics::unread(command, unread);
    match unread {
        0 => Ok(()),
        _ => Err(Error::Malformed {
            command,
            problem: "a record could not be read",
            excerpt: format!("{unread} of them"),
        }),
    }
}

/// Records and ids of which the answer proves nothing.
fn text(records: Vec<Result<JobRecord, (Option<JobId>, &'static str)>>) -> JobsText {
    let mut text = JobsText::default();
    for record in records {
        match record {
            Ok(record) => text.records.push(record),
            Err((Some(id), problem)) => text.unclear.push((id, problem)),
            Err((None, _)) => metrics::unread(JOBS, 1),
        }
    }
    text
}

/// `ping: "UP"` (22.05), `pinged: "UP"` (v0.0.40 to v0.0.44), `responding: true` (v0.0.42 and later).
fn ping(value: &Value) -> (bool, String) {
    let mut fields = Fields::new(value);
    let words = [fields.text("ping"), fields.text("pinged")];
    let up = fields.flag("responding") || words.iter().any(|word| word == "UP");
    let mode = match fields.text("mode") {
        told if !told.is_empty() => told,
        _ if fields.flag("primary") => "primary".to_owned(),
        _ => "backup".to_owned(),
    };
    let host = fields.text("hostname");
    let word = if up { "UP" } else { "DOWN" };
    (up, format!("Slurmctld({mode}) at {host} is {word}"))
}

/// A value as `scontrol show config` would print it.
fn printed(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(if *flag { "Yes" } else { "No" }.to_owned()),
        Value::Array(items) => {
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            Some(texts?.join(","))
        }
        Value::Object(_) => Some(
            Fields::new(&serde_json::json!({ "v": value }))
                .signed("v")?
                .to_string(),
        ),
        Value::Null => None,
    }
}

#[cfg(test)]
mod tests;
