//! Exemplars of histograms: the newest observation of each bucket that belongs to an exported trace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};

/// An observation with its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// Trace id in hexadecimal digits.
    pub trace_id: String,
    /// Observed value in seconds.
    pub seconds: i64,
    /// When it was counted.
    pub at: DateTime<Utc>,
}

/// The newest exemplar of each bucket: as many as there are buckets, and none after a restart.
#[derive(Clone, Debug, Default)]
pub struct Exemplars(BTreeMap<(&'static str, String), Exemplar>);

impl Exemplars {
    /// Replaces the exemplar of a bucket.
    pub fn set(&mut self, buckets: &'static str, labels: &str, exemplar: Exemplar) {
        self.0.insert((buckets, labels.to_owned()), exemplar);
    }

    /// The exemplar of a bucket, by the name of the buckets and the stored form of its labels.
    pub fn of(&self, buckets: &'static str, labels: String) -> Option<&Exemplar> {
        self.0.get(&(buckets, labels))
    }
}

/// Exemplars that the handler of events sets and the pages show. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SharedExemplars(Arc<Mutex<Exemplars>>);

impl SharedExemplars {
    /// Sets several.
    pub fn set(&self, set: impl FnOnce(&mut Exemplars)) {
        set(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Those of now.
    pub fn snapshot(&self) -> Exemplars {
        let exemplars = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        exemplars.clone()
    }
}

/// The trace id of a W3C `traceparent`, if the trace is sampled: only then can it be looked up.
pub fn sampled_trace(traceparent: &str) -> Option<&str> {
    let mut fields = traceparent.split('-');
    let (_, trace, _, flags) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    let is_id = trace.len() == 32
        && trace.bytes().all(|byte| byte.is_ascii_hexdigit())
        && trace.bytes().any(|byte| byte != b'0');
    let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    (is_id && is_sampled).then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sampled_traces_are_exemplars() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let of = |trace: &str, flags: &str| {
            sampled_trace(&format!("00-{trace}-00f067aa0ba902b7-{flags}")).map(str::to_owned)
        };
        assert_eq!(of(trace, "01").as_deref(), Some(trace));
        assert_eq!(of(trace, "00"), None);
        assert_eq!(of(&"0".repeat(32), "01"), None);
        assert_eq!(of("4bf9\"}", "01"), None);
        assert_eq!(sampled_trace(""), None);
    }
}
