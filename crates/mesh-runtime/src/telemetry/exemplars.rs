//! Exemplars of histograms, and `/metrics` as OpenMetrics 1.0.0, which has them.
//!
//! Each bucket keeps the newest observation that was made within an exported trace. So the cost is a slot per bucket, however much is
//! observed. Without exported traces nothing is kept.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use metrics_exporter_prometheus::PrometheusHandle;
use metrics_exporter_prometheus::formatting::{
    sanitize_label_key, sanitize_label_value, sanitize_metric_name,
};
use opentelemetry::trace::{TraceContextExt as _, TraceId};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The metrics of the process as text. Cheap to clone.
#[derive(Clone)]
pub struct ProcessMetrics {
    shown: PrometheusHandle,
    exemplars: Exemplars,
}

impl ProcessMetrics {
    pub(super) fn new(shown: PrometheusHandle, exemplars: Exemplars) -> Self {
        Self { shown, exemplars }
    }

    /// Prometheus' text format 0.0.4.
    pub fn text(&self) -> String {
        self.shown.render()
    }

    /// OpenMetrics 1.0.0, with exemplars.
    pub fn openmetrics(&self) -> String {
        openmetrics(&self.shown.render(), &self.exemplars.by_series())
    }

    pub(super) fn aggregate(&self) {
        self.shown.run_upkeep();
    }
}

/// Observations that belong to a trace.
#[derive(Clone, Default)]
pub(super) struct Exemplars(Arc<Mutex<HashMap<Key, Series>>>);

/// Handle of a histogram, and its exemplars.
type Series = (Histogram, Arc<Buckets>);

impl Exemplars {
    /// Exemplars as they are appended to a line, by what the line begins with.
    fn by_series(&self) -> HashMap<String, String> {
        let mut found = HashMap::new();
        for (key, (_, buckets)) in lock(&self.0).iter() {
            let newest = lock(&buckets.newest);
            for (place, exemplar) in newest.iter().enumerate() {
                if let Some(exemplar) = exemplar {
                    let bound = buckets.bounds.get(place);
                    found.insert(series(key, bound), exemplar.to_string());
                }
            }
        }
        found
    }
}

/// A series of buckets as `metrics-exporter-prometheus` writes it.
fn series(key: &Key, bound: Option<&f64>) -> String {
    let mut text = format!("{}_bucket{{", sanitize_metric_name(key.name()));
    for label in key.labels() {
        let (name, value) = (
            sanitize_label_key(label.key()),
            sanitize_label_value(label.value()),
        );
        // Writing to memory cannot fail.
        write!(text, "{name}=\"{value}\",").ok();
    }
    match bound {
        Some(bound) => write!(text, "le=\"{bound}\"}}").ok(),
        None => write!(text, "le=\"+Inf\"}}").ok(),
    };
    text
}

/// The buckets of a series, the last one without a bound.
struct Buckets {
    bounds: &'static [f64],
    newest: Mutex<Vec<Option<Exemplar>>>,
}

#[derive(Clone, Copy)]
struct Exemplar {
    trace: TraceId,
    value: f64,
    at: Duration,
}

impl std::fmt::Display for Exemplar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (trace, value, at) = (self.trace, self.value, self.at.as_secs_f64());
        write!(f, " # {{trace_id=\"{trace}\"}} {value} {at:.3}")
    }
}

/// A recorder that also keeps exemplars of histograms.
pub(super) struct ExemplarRecorder<R> {
    recorder: R,
    bounds: &'static [f64],
    exemplars: Exemplars,
}

impl<R> ExemplarRecorder<R> {
    pub(super) fn new(recorder: R, bounds: &'static [f64], exemplars: Exemplars) -> Self {
        Self {
            recorder,
            bounds,
            exemplars,
        }
    }
}

impl<R: Recorder> Recorder for ExemplarRecorder<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.recorder.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.recorder.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        // The macros ask for a handle at every observation.
        let mut handles = lock(&self.exemplars.0);
        if let Some((histogram, _)) = handles.get(key) {
            return histogram.clone();
        }
        let buckets = Arc::new(Buckets {
            bounds: self.bounds,
            newest: Mutex::new(vec![None; self.bounds.len() + 1]),
        });
        let histogram = Histogram::from_arc(Arc::new(WithExemplars {
            histogram: self.recorder.register_histogram(key, metadata),
            buckets: Arc::clone(&buckets),
        }));
        handles.insert(key.clone(), (histogram.clone(), buckets));
        histogram
    }
}

struct WithExemplars {
    histogram: Histogram,
    buckets: Arc<Buckets>,
}

impl HistogramFn for WithExemplars {
    fn record(&self, value: f64) {
        self.histogram.record(value);
        let context = Span::current().context();
        let span = context.span();
        let trace = span.span_context();
        if trace.is_valid() && trace.is_sampled() {
            let bounds = self.buckets.bounds;
            let place = bounds.iter().position(|bound| value <= *bound);
            let at = SystemTime::now().duration_since(UNIX_EPOCH);
            lock(&self.buckets.newest)[place.unwrap_or(bounds.len())] = Some(Exemplar {
                trace: trace.trace_id(),
                value,
                at: at.unwrap_or_default(),
            });
        }
    }
}

/// Rewrites the text format 0.0.4: a counter's name loses its suffix in the head, and nothing else may be a counter.
fn openmetrics(text: &str, exemplars: &HashMap<String, String>) -> String {
    let mut written = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            let (name, kind) = match (kind, name.strip_suffix("_total")) {
                ("counter", Some(family)) => (family, "counter"),
                ("counter", None) => (name, "unknown"),
                _ => (name, kind),
            };
            if let Some(help) = help.take() {
                let help = help.replace('"', "\\\"");
                writeln!(written, "# HELP {name} {help}").ok();
            }
            writeln!(written, "# TYPE {name} {kind}").ok();
        } else if !line.is_empty() {
            written.push_str(line);
            let series = line.rsplit_once(' ').map(|(series, _)| series);
            if let Some(exemplar) = series.and_then(|series| exemplars.get(series)) {
                written.push_str(exemplar);
            }
            written.push('\n');
        }
    }
    written.push_str("# EOF\n");
    written
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const BOUNDS: [f64; 3] = [0.5, 1.0, 2.5];

    #[test]
    fn the_newest_traced_observation_of_a_bucket_is_its_exemplar() {
        let provider = SdkTracerProvider::default();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let _subscriber =
            tracing::subscriber::set_default(tracing_subscriber::Registry::default().with(layer));
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new()
            .set_buckets(&BOUNDS)
            .unwrap()
            .build_recorder();
        let exemplars = Exemplars::default();
        let metrics = ProcessMetrics::new(recorder.handle(), exemplars.clone());
        let recorder = ExemplarRecorder::new(recorder, &BOUNDS, exemplars);
        metrics::with_local_recorder(&recorder, || {
            metrics::describe_counter!("done_total", "What is \"done\".");
            metrics::counter!("done_total", "of" => "a").increment(2);
            metrics::counter!("steps").increment(1);
            metrics::gauge!("level").set(3.0);
            let observe = |value: f64| {
                metrics::histogram!("wait_seconds", "of" => "a\"\nb").record(value);
            };
            observe(0.1);
            assert!(!metrics.openmetrics().contains("trace_id"));
            let trace = || {
                let span = tracing::info_span!("work");
                let _entered = span.enter();
                observe(0.7);
                observe(7.0);
                span.context().span().span_context().trace_id().to_string()
            };
            let (old, new) = (trace(), trace());
            let text = metrics.openmetrics();
            assert!(!text.contains(&old), "{text}");
            let lines: Vec<&str> = text.lines().filter(|line| line.contains(&new)).collect();
            for (line, bound, number) in [(lines[0], "1", "3 # "), (lines[1], "+Inf", "5 # ")] {
                let begins = format!(
                    "wait_seconds_bucket{{of=\"a\\\"\\nb\",le=\"{bound}\"}} {number}{{trace_id=\"{new}\"}} "
                );
                assert!(line.starts_with(&begins), "{begins}\n{text}");
            }
            assert_eq!(lines.len(), 2, "{text}");
            for line in [
                "# HELP done What is \\\"done\\\".",
                "# TYPE done counter",
                "done_total{of=\"a\"} 2",
                "# TYPE steps unknown",
                "steps 1",
                "# TYPE level gauge",
                "# TYPE wait_seconds histogram",
            ] {
                assert!(text.lines().any(|found| found == line), "{line}\n{text}");
            }
            assert!(
                text.ends_with("# EOF\n") && !text.contains("\n\n"),
                "{text}"
            );
            assert!(!metrics.text().contains("trace_id"));
        });
    }
}
