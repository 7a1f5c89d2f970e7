//! Collects drift from the parsers for the service that publishes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Drift;
use crate::error::excerpt;
use crate::parse::Rejected;
use crate::{Error, JobRecord, metrics};

/// Limit of forms that are held until they are taken; more than are ever published.
const MAX_FORMS: usize = 100;

/// Rows of a response that could not be parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) count: usize,
    /// The first of them, or its beginning.
    pub(crate) first: String,
}

impl Unread {
    pub(crate) fn note(&mut self, row: &str) {
        if self.count == 0 {
            self.first = excerpt(row);
        }
        self.count += 1;
    }
}

/// Recorded drift, by form. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriftLog(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    forms: Mutex<BTreeMap<String, Drift>>,
    noted: Notify,
}

impl DriftLog {
    fn forms(&self) -> MutexGuard<'_, BTreeMap<String, Drift>> {
        self.0.forms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, drifts: impl IntoIterator<Item = Drift>) {
        let mut drifts = drifts.into_iter().peekable();
        if drifts.peek().is_none() {
            return;
        }
        let mut forms = self.forms();
        for drift in drifts {
            if let Some(known) = forms.get_mut(&drift.message) {
                known.count += drift.count;
            } else if forms.len() < MAX_FORMS {
                forms.insert(drift.message.clone(), drift);
            }
        }
        drop(forms);
        self.0.noted.notify_one();
    }

    /// Records unknown forms of a job's record, or why it was rejected.
    pub(crate) fn job(&self, record: Result<&JobRecord, &Rejected>) {
        match record {
            Ok(record) => self.note(Drift::of_record(record)),
            Err(rejected) => self.note(Drift::of_job_record(rejected)),
        }
    }

    /// Records rows that are left out of an accepted response.
    pub(crate) fn unread(&self, command: &'static str, unread: &Unread) {
        metrics::unread(command, unread.count);
        if unread.count > 0 {
            self.note([Drift::of_rows(command, unread)]);
        }
    }

    /// Records a response that is refused because it cannot be parsed.
    pub(crate) fn refused<T>(&self, answer: &Result<T, Error>) {
        if let Err(Error::Malformed {
            command,
            problem,
            excerpt,
        }) = answer
        {
            self.note([Drift::of_answer(command, problem, excerpt)]);
        }
    }

    pub(crate) fn take(&self) -> Vec<Drift> {
        let forms = std::mem::take(&mut *self.forms());
        let mut drifts: Vec<Drift> = forms.into_values().collect();
        drifts.sort_by_key(|drift| drift.what);
        drifts
    }

    /// Waits until there is drift, and takes it.
    pub(crate) async fn next(&self) -> Vec<Drift> {
        loop {
            let taken = self.take();
            if !taken.is_empty() {
                return taken;
            }
            self.0.noted.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_form_is_there_once_with_its_first_example_and_taken_once() {
        let log = DriftLog::default();
        let rows = |first: &str, count| Unread {
            count,
            first: first.to_owned(),
        };
        log.unread("squeue", &Unread::default());
        assert_eq!(log.take(), []);
        log.unread("squeue", &rows("alice|7", 2));
        log.clone().unread("squeue", &rows("bob", 3));
        log.unread("sacct", &rows("bob", 1));
        let taken = log.next().await;
        let printed: Vec<_> = taken
            .iter()
            .map(|drift| (drift.source, drift.count, drift.example.as_str()))
            .collect();
        assert_eq!(printed, [("slurmctld", 5, "x|0"), ("slurmdbd", 1, "x")]);
        assert_eq!(log.take(), []);
    }

    #[test]
    fn unread_lines_are_limited() {
        let log = DriftLog::default();
        log.note((0..1_000).map(|n| Drift::new("row", "slurmctld", n.to_string())));
        assert_eq!(log.take().len(), MAX_FORMS);
    }
}
