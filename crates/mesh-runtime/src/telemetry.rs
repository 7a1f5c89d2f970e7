//! Logs, traces and metrics of a process. Starts first, flushes last.

mod exemplars;
mod meter;
mod otlp;

pub use exemplars::ProcessMetrics;

use std::time::Duration;

use metrics_util::layers::FanoutBuilder;
use opentelemetry::global;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::config::LogFormat;
use crate::telemetry::exemplars::{ExemplarRecorder, Exemplars};
use crate::telemetry::meter::MeterRecorder;
use crate::telemetry::otlp::OtlpProviders;
use crate::{BoxError, MeshConfig, TelemetryConfig};

/// Buckets of duration histograms, in seconds.
const DURATION_BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// Version metric, so that a service without any activity also shows up in Prometheus.
const BUILD_INFO: &str = "mesh_build_info";

/// Name of the tracer and the meter.
const SCOPE: &str = "slurm-mesh";

/// Beginnings of the targets of what sends logs: what they log while they send must not be sent.
const SENDERS: [&str; 6] = ["opentelemetry", "tonic", "tower", "h2", "hyper", "rustls"];

/// Telemetry of a process; [`Telemetry::flush`] sends what is buffered.
pub struct Telemetry {
    providers: OtlpProviders,
    /// The process's metrics.
    pub metrics: ProcessMetrics,
    /// The filter of the logs, which may be changed.
    pub log_filter: LogFilter,
}

/// The filter of the process's logs. Cheap to clone.
#[derive(Clone)]
pub struct LogFilter(reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    /// The present filter.
    pub fn current(&self) -> String {
        let current = self.0.with_current(ToString::to_string);
        current.unwrap_or_default()
    }

    /// Replaces the filter, until the next change or restart. Returns the former one.
    ///
    /// # Errors
    /// If the text is no filter.
    pub fn set(&self, filter: &str) -> Result<String, String> {
        let parsed = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
        let former = self.current();
        self.0.reload(parsed).map_err(|error| error.to_string())?;
        Ok(former)
    }
}

/// Sets up logs on standard error and metrics, and sends traces, metrics and logs by OTLP as configured.
///
/// # Errors
/// If the log filter or the endpoint is wrong, or telemetry was set up before in this process.
pub fn init(service: &'static str, config: &TelemetryConfig) -> Result<Telemetry, BoxError> {
    let (filter, log_filter) = reload::Layer::new(EnvFilter::try_new(&config.log_filter)?);
    let logs = match config.log_format {
        LogFormat::Human => fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .boxed(),
        LogFormat::Json => fmt::layer()
            .with_writer(std::io::stderr)
            .json()
            .flatten_event(true)
            .boxed(),
    };
    global::set_text_map_propagator(TraceContextPropagator::new());
    let providers = OtlpProviders::new(service, config)?;
    // The log filter must not decide which spans are exported: each layer has its own filter.
    let traces = providers.traces.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(SCOPE))
            .with_filter(LevelFilter::INFO)
    });
    let sent = providers.logs.as_ref().map(|provider| {
        let is_own = |target: &str| !SENDERS.iter().any(|sender| target.starts_with(sender));
        OpenTelemetryTracingBridge::new(provider)
            .with_filter(filter_fn(move |metadata| is_own(metadata.target())))
    });
    Registry::default()
        .with(logs.and_then(sent).with_filter(filter))
        .with(traces)
        .try_init()?;
    let shown = metrics_exporter_prometheus::PrometheusBuilder::new()
        .set_buckets(&DURATION_BUCKETS)?
        .build_recorder();
    let exemplars = Exemplars::default();
    let rendered = ProcessMetrics::new(shown.handle(), exemplars.clone());
    // Only exported traces can be looked up.
    let shown: Box<dyn metrics::Recorder + Send + Sync> = match providers.traces {
        Some(_) => Box::new(ExemplarRecorder::new(shown, &DURATION_BUCKETS, exemplars)),
        None => Box::new(shown),
    };
    match &providers.metrics {
        Some(provider) => {
            let sent = MeterRecorder::new(provider.meter(SCOPE), &DURATION_BUCKETS);
            let both = FanoutBuilder::default().add_recorder(shown);
            metrics::set_global_recorder(both.add_recorder(sent).build())
                .map_err(|error| error.to_string())?;
        }
        None => metrics::set_global_recorder(shown).map_err(|error| error.to_string())?,
    }
    metrics::describe_gauge!(BUILD_INFO, "Always 1; the labels are the running version.");
    metrics::gauge!(BUILD_INFO, "service" => service, "version" => env!("CARGO_PKG_VERSION"))
        .set(1.0);
    Ok(Telemetry {
        providers,
        metrics: rendered,
        log_filter: LogFilter(log_filter),
    })
}

/// Time between two aggregations of the recorded samples.
const AGGREGATION_INTERVAL: Duration = Duration::from_secs(5);

/// Aggregates the samples of histograms from time to time. Without it they take memory until somebody reads `/metrics`, which perhaps
/// nobody does. Runs as long as the process.
pub(crate) async fn aggregate(metrics: ProcessMetrics) {
    let mut every = tokio::time::interval(AGGREGATION_INTERVAL);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        metrics.aggregate();
    }
}

impl Telemetry {
    /// Sends what is buffered. The last thing a process does.
    pub async fn flush(self, config: &MeshConfig) {
        self.providers.shut_down(config.spans_deadline()).await;
    }
}
