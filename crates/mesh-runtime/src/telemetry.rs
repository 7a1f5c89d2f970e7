//! Logs, traces and metrics of a process. Starts first, flushes last.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::config::LogFormat;
use crate::{BoxError, MeshConfig, TelemetryConfig};

/// Buckets of duration histograms, in seconds.
const DURATION_BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// Version metric, so that a service without any activity also shows up in Prometheus.
const BUILD_INFO: &str = "mesh_build_info";

/// Telemetry of a process; [`Telemetry::flush`] sends what is buffered.
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
    /// Renders the process's metrics in Prometheus' text format.
    pub metrics: metrics_exporter_prometheus::PrometheusHandle,
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

/// Sets up logs on standard error, traces by OTLP if an endpoint is configured, and metrics.
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
    let provider = (!config.otlp_endpoint.is_empty())
        .then(|| provider(service, config))
        .transpose()?;
    // The log filter must not decide which spans are exported: each layer has its own filter.
    let traces = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("slurm-mesh"))
            .with_filter(LevelFilter::INFO)
    });
    Registry::default()
        .with(logs.with_filter(filter))
        .with(traces)
        .try_init()?;
    let rendered = metrics_exporter_prometheus::PrometheusBuilder::new()
        .set_buckets(&DURATION_BUCKETS)?
        .install_recorder()?;
    metrics::describe_gauge!(BUILD_INFO, "Always 1; the labels are the running version.");
    metrics::gauge!(BUILD_INFO, "service" => service, "version" => env!("CARGO_PKG_VERSION"))
        .set(1.0);
    Ok(Telemetry {
        provider,
        metrics: rendered,
        log_filter: LogFilter(log_filter),
    })
}

fn provider(
    service: &'static str,
    config: &TelemetryConfig,
) -> Result<SdkTracerProvider, BoxError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(&*config.otlp_endpoint)
        .build()?;
    let resource = Resource::builder()
        .with_service_name(service)
        .with_attribute(KeyValue::new("service.namespace", "slurm-mesh"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(
            config.sample_ratio,
        ))))
        .with_resource(resource)
        .build())
}

impl Telemetry {
    /// Sends what is buffered. The last thing a process does.
    pub async fn flush(self, config: &MeshConfig) {
        let Some(provider) = self.provider else {
            return;
        };
        let within = config.spans_deadline();
        // The exporter's thread needs the runtime's workers: never shut it down on one of them.
        let done =
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(within)).await;
        if let Ok(Err(error)) = done {
            tracing::warn!(%error, "last spans not exported");
        }
    }
}
