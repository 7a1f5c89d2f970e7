//! A recorder that passes metrics on to an OpenTelemetry meter, with the names and labels that `/metrics` shows.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

/// Passes metrics on to a meter.
pub(super) struct MeterRecorder {
    meter: Meter,
    /// Bounds of the buckets of all histograms.
    bounds: Vec<f64>,
    descriptions: Mutex<HashMap<String, SharedString>>,
    // The macros ask for a handle at every change, and a gauge's last value is in its handle.
    counters: MetricHandles<Counter>,
    gauges: MetricHandles<Gauge>,
    histograms: MetricHandles<Histogram>,
}

/// The handle of each name with its labels.
struct MetricHandles<T>(Mutex<HashMap<Key, T>>);

impl<T: Clone> MetricHandles<T> {
    fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn get(&self, key: &Key, new: impl FnOnce() -> T) -> T {
        let mut handles = lock(&self.0);
        match handles.get(key) {
            Some(handle) => handle.clone(),
            None => handles.entry(key.clone()).or_insert_with(new).clone(),
        }
    }
}

fn lock<K: Eq + Hash, V>(map: &Mutex<HashMap<K, V>>) -> std::sync::MutexGuard<'_, HashMap<K, V>> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MeterRecorder {
    pub(super) fn new(meter: Meter, bounds: &[f64]) -> Self {
        Self {
            meter,
            bounds: bounds.to_vec(),
            descriptions: Mutex::default(),
            counters: MetricHandles::new(),
            gauges: MetricHandles::new(),
            histograms: MetricHandles::new(),
        }
    }

    fn describe(&self, key: &KeyName, description: SharedString) {
        lock(&self.descriptions).insert(key.as_str().to_owned(), description);
    }

    fn description(&self, key: &Key) -> String {
        let found = lock(&self.descriptions).get(key.name()).cloned();
        found.map_or_else(String::new, |text| text.to_string())
    }
}

fn labels(key: &Key) -> Vec<KeyValue> {
    key.labels()
        .map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned()))
        .collect()
}

impl Recorder for MeterRecorder {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.counters.get(key, || {
            let instrument = self.meter.u64_counter(key.name().to_owned());
            let counter = MeterCounter {
                instrument: instrument.with_description(self.description(key)).build(),
                labels: labels(key),
                absolute: AtomicU64::new(0),
            };
            // Shown from the first handle on, as on `/metrics`.
            counter.increment(0);
            Counter::from_arc(Arc::new(counter))
        })
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.gauges.get(key, || {
            let instrument = self.meter.f64_gauge(key.name().to_owned());
            let gauge = MeterGauge {
                instrument: instrument.with_description(self.description(key)).build(),
                labels: labels(key),
                value: Mutex::new(0.0),
            };
            gauge.set(0.0);
            Gauge::from_arc(Arc::new(gauge))
        })
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.histograms.get(key, || {
            let instrument = self.meter.f64_histogram(key.name().to_owned());
            Histogram::from_arc(Arc::new(MeterHistogram {
                instrument: instrument
                    .with_description(self.description(key))
                    .with_boundaries(self.bounds.clone())
                    .build(),
                labels: labels(key),
            }))
        })
    }
}

struct MeterCounter {
    instrument: opentelemetry::metrics::Counter<u64>,
    labels: Vec<KeyValue>,
    /// Largest value that was set.
    absolute: AtomicU64,
}

impl CounterFn for MeterCounter {
    fn increment(&self, value: u64) {
        self.instrument.add(value, &self.labels);
    }

    fn absolute(&self, value: u64) {
        let before = self.absolute.fetch_max(value, Ordering::Relaxed);
        self.increment(value.saturating_sub(before));
    }
}

struct MeterGauge {
    instrument: opentelemetry::metrics::Gauge<f64>,
    labels: Vec<KeyValue>,
    value: Mutex<f64>,
}

impl MeterGauge {
    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        *value = change(*value);
        // Within the lock, or an older value could be the last one.
        self.instrument.record(*value, &self.labels);
    }
}

impl GaugeFn for MeterGauge {
    fn increment(&self, value: f64) {
        self.change(|before| before + value);
    }

    fn decrement(&self, value: f64) {
        self.change(|before| before - value);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

struct MeterHistogram {
    instrument: opentelemetry::metrics::Histogram<f64>,
    labels: Vec<KeyValue>,
}

impl HistogramFn for MeterHistogram {
    fn record(&self, value: f64) {
        self.instrument.record(value, &self.labels);
    }
}
