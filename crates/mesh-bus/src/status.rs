//! Problems and repairs of the bus, for readiness, health notes and the doctor.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, Utc};
use mesh_events::catalogue::STREAMS;

/// A publish without an answer for this long is a problem already.
const SLOW_PUBLISH: Duration = Duration::from_secs(5);
/// A caller that gives up after this long does so because there is no answer.
const ABANDONED_PUBLISH: Duration = Duration::from_secs(2);
/// Publishers retry. An older failure that did not recur says nothing about the present.
const FAILURE_AGE: Duration = Duration::from_secs(120);
/// How long a repair is reported.
const REPAIR_AGE: chrono::TimeDelta = chrono::TimeDelta::hours(1);

#[derive(Default)]
pub(crate) struct Status(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    next: u64,
    /// Publishes without an answer yet: since when, and to which stream.
    waiting: HashMap<u64, (Instant, String)>,
    /// The last failure since the last success, by stream.
    failed: BTreeMap<String, (Instant, String)>,
    /// Consumers that cannot be read, by stream and name: since when, and why.
    unreadable: BTreeMap<(String, String), (Instant, String)>,
    repairs: Vec<(DateTime<Utc>, String)>,
    /// Streams that the last check found missing.
    missing: BTreeSet<String>,
    /// When and why the connection was found missing; `None` while connected.
    disconnected: Option<(Instant, String)>,
}

/// A publish in progress. Dropped without an answer, it counts as failed after [`ABANDONED_PUBLISH`].
pub(crate) struct Waiting<'a> {
    status: &'a Status,
    number: u64,
    since: Instant,
    subject: String,
    answered: bool,
}

impl Status {
    pub(crate) fn publishing(&self, subject: &str) -> Waiting<'_> {
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        let since = Instant::now();
        inner.waiting.insert(number, (since, stream_of(subject)));
        Waiting {
            status: self,
            number,
            since,
            subject: subject.to_owned(),
            answered: false,
        }
    }

    pub(crate) fn stored(&self, subject: &str) {
        let mut inner = self.lock();
        if !inner.failed.is_empty() {
            inner.failed.remove(&stream_of(subject));
        }
    }

    pub(crate) fn failed(&self, subject: &str, error: &dyn std::fmt::Display) {
        let text = (error.to_string(), Instant::now());
        self.lock()
            .failed
            .insert(stream_of(subject), (text.1, text.0));
    }

    /// Records the streams that a check found missing. Returns those that the check before did not.
    pub(crate) fn newly_missing(&self, missing: BTreeSet<String>) -> Vec<String> {
        let mut inner = self.lock();
        let news = missing.difference(&inner.missing).cloned().collect();
        inner.missing = missing;
        news
    }

    pub(crate) fn unreadable(&self, stream: &str, consumer: &str, error: String) {
        let mut inner = self.lock();
        let key = (stream.to_owned(), consumer.to_owned());
        let since = inner
            .unreadable
            .get(&key)
            .map_or_else(Instant::now, |(since, _)| *since);
        inner.unreadable.insert(key, (since, error));
    }

    pub(crate) fn readable(&self, stream: &str, consumer: &str) {
        let mut inner = self.lock();
        if !inner.unreadable.is_empty() {
            inner
                .unreadable
                .remove(&(stream.to_owned(), consumer.to_owned()));
        }
    }

    pub(crate) fn connected(&self) {
        self.lock().disconnected = None;
    }

    pub(crate) fn not_connected(&self, reason: String) {
        self.lock().disconnected = Some((Instant::now(), reason));
    }

    pub(crate) fn reason_is_older_than(&self, age: Duration) -> bool {
        let inner = self.lock();
        let known = inner.disconnected.as_ref();
        known.is_none_or(|(at, _)| at.elapsed() > age)
    }

    pub(crate) fn repaired(&self, message: String) {
        self.record(format!("{message}; repaired"));
    }

    /// Records what was repaired, or cannot be.
    pub(crate) fn record(&self, message: String) {
        let now = Utc::now();
        let mut inner = self.lock();
        inner.repairs.retain(|(at, _)| now - *at < REPAIR_AGE);
        inner.repairs.push((now, message));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    pub(crate) fn stored(mut self) {
        self.answered = true;
        self.status.stored(&self.subject);
    }

    /// The server answered; the result is recorded elsewhere or says nothing about the stream.
    pub(crate) fn answered(mut self) {
        self.answered = true;
    }

    pub(crate) fn failed(mut self, error: &dyn std::fmt::Display) {
        self.answered = true;
        self.status.failed(&self.subject, error);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.status.lock().waiting.remove(&self.number);
        if !self.answered && self.since.elapsed() > ABANDONED_PUBLISH {
            self.status.failed(&self.subject, &"no answer");
        }
    }
}

impl Status {
    /// Why NATS does not answer, as far as that is known.
    pub(crate) fn disconnection(&self) -> String {
        match &self.lock().disconnected {
            None => "NATS does not answer, reconnecting".to_owned(),
            Some((_, reason)) => format!("NATS does not answer ({reason}), reconnecting"),
        }
    }

    /// Drops failures of publishes and writes, which would be problems until they are [`FAILURE_AGE`] old.
    pub(crate) fn drop_failures(&self) {
        self.lock().failed.clear();
    }

    /// Repairs of the last hour, each with its time.
    pub(crate) fn repairs(&self) -> Vec<String> {
        let now = Utc::now();
        let repairs = &self.lock().repairs;
        let recent = repairs.iter().filter(|(at, _)| now - *at < REPAIR_AGE);
        recent
            .map(|(at, message)| {
                let at = at.to_rfc3339_opts(SecondsFormat::Secs, true);
                format!("{at} {message}")
            })
            .collect()
    }

    /// Streams that do not store and consumers that cannot be read, if any.
    pub(crate) fn problem(&self, now: Instant) -> Option<String> {
        let inner = self.lock();
        let mut stores: BTreeMap<&str, &str> = inner
            .failed
            .iter()
            .filter(|(_, (at, _))| now.duration_since(*at) < FAILURE_AGE)
            .map(|(stream, (_, error))| (stream.as_str(), error.as_str()))
            .collect();
        for (since, stream) in inner.waiting.values() {
            if now.duration_since(*since) > SLOW_PUBLISH {
                stores.entry(stream).or_insert("no answer");
            }
        }
        let stores = stores
            .into_iter()
            .map(|(stream, error)| format!("{stream} does not store: {error}"));
        let reads = inner
            .unreadable
            .iter()
            .filter(|(_, (since, _))| now.duration_since(*since) > SLOW_PUBLISH)
            .map(|((stream, name), (_, error))| {
                format!("consumer {name} of {stream} cannot be read: {error}")
            });
        let problems: Vec<String> = stores.chain(reads).collect();
        (!problems.is_empty()).then(|| format!("NATS: {}; retrying", problems.join("; ")))
    }
}

/// The stream that takes a subject, or the bucket.
fn stream_of(subject: &str) -> String {
    if let Some(bucket) = subject.strip_prefix("$KV.") {
        let bucket = bucket.split('.').next().unwrap_or_default();
        return format!("bucket {bucket}");
    }
    let takes = |pattern: &&&str| matches(pattern, subject);
    let found = STREAMS
        .iter()
        .find(|stream| stream.subjects.iter().any(|pattern| takes(&pattern)));
    found.map_or_else(
        || subject.to_owned(),
        |stream| format!("stream {}", stream.name),
    )
}

/// Whether a subject matches a pattern with NATS wildcards.
fn matches(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for expected in pattern.split('.') {
        match (expected, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (expected, Some(token)) if expected == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_stream_is_news_once_also_if_declaring_it_fails_midway() {
        let status = Status::default();
        let missing = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            status.newly_missing(names.collect())
        };
        assert_eq!(missing(&["A", "B", "C"]), ["A", "B", "C"]);
        assert_eq!(missing(&["B", "C"]), Vec::<String>::new());
        assert_eq!(missing(&[]), Vec::<String>::new());
        assert_eq!(missing(&["A"]), ["A"]);
    }

    #[test]
    fn every_subject_has_its_stream() {
        for (subject, stream) in [
            ("slurm.c.job.1.started", "stream SLURM_EVENTS"),
            ("mesh.c.hook.Epilog", "stream MESH_HOOKS"),
            ("mesh.c.audit.delivery", "stream MESH_AUDIT"),
            ("mesh.replay.r1.slurm.c.job.1.started", "stream MESH_REPLAY"),
            ("$KV.mesh_leases.c.ingest", "bucket mesh_leases"),
            ("other", "other"),
        ] {
            assert_eq!(stream_of(subject), stream);
        }
    }

    #[test]
    fn a_failure_is_a_problem_until_a_publish_succeeds_or_none_is_pending() {
        let status = Status::default();
        let now = Instant::now();
        assert_eq!(status.problem(now), None);
        status.failed("slurm.x", &std::io::Error::other("full"));
        let problem = status.problem(now).unwrap();
        assert!(
            problem.contains("stream SLURM_EVENTS does not store: full"),
            "{problem}"
        );
        status.stored("mesh.c.audit.read");
        assert!(status.problem(now).is_some(), "another stream");
        assert_eq!(status.problem(Instant::now() + FAILURE_AGE), None);
        status.stored("slurm.y");
        assert_eq!(status.problem(now), None);
    }

    #[test]
    fn a_long_unanswered_publish_is_a_problem() {
        let status = Status::default();
        let waiting = status.publishing("slurm.x");
        assert_eq!(status.problem(Instant::now()), None);
        let after_limit = Instant::now() + SLOW_PUBLISH + Duration::from_secs(1);
        let problem = status.problem(after_limit).unwrap();
        assert!(
            problem.contains("stream SLURM_EVENTS does not store: no answer"),
            "{problem}"
        );
        waiting.stored();
        assert_eq!(status.problem(after_limit), None);
    }
}
