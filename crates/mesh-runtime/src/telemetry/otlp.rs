//! What is sent to an OTLP collector besides being shown by the process itself: traces, metrics, logs.
//!
//! Each has a bounded queue and a thread of its own: a collector that is gone, or does not answer, costs what was not sent, and nothing else.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

use crate::BoxError;
use crate::config::{OtlpSignal, TelemetryConfig};

/// Time limit of sending a batch of metrics or logs, also of the last one: as long as the last spans may take by default.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The providers of what is sent. Those that are not configured are absent.
#[derive(Default)]
pub(super) struct Providers {
    pub traces: Option<SdkTracerProvider>,
    pub metrics: Option<SdkMeterProvider>,
    pub logs: Option<SdkLoggerProvider>,
}

impl Providers {
    /// Connects when something is sent for the first time. Nothing is sent without an endpoint.
    pub(super) fn new(service: &'static str, config: &TelemetryConfig) -> Result<Self, BoxError> {
        let mut providers = Self::default();
        if config.otlp_endpoint.is_empty() {
            return Ok(providers);
        }
        let endpoint = &*config.otlp_endpoint;
        for signal in &config.otlp_signals {
            match signal {
                OtlpSignal::Traces => {
                    let exporter = SpanExporter::builder().with_tonic();
                    let exporter = exporter.with_endpoint(endpoint).build()?;
                    let sampler = Sampler::TraceIdRatioBased(config.sample_ratio);
                    let provider = SdkTracerProvider::builder()
                        .with_batch_exporter(exporter)
                        .with_sampler(Sampler::ParentBased(Box::new(sampler)))
                        .with_resource(resource(service))
                        .build();
                    providers.traces = Some(provider);
                }
                OtlpSignal::Metrics => {
                    let exporter = MetricExporter::builder().with_tonic();
                    let exporter = exporter.with_endpoint(endpoint).with_timeout(SEND_TIMEOUT);
                    let reader = PeriodicReader::builder(exporter.build()?)
                        .with_interval(config.otlp_metrics_interval)
                        .build();
                    let provider = SdkMeterProvider::builder()
                        .with_reader(reader)
                        .with_resource(resource(service))
                        .build();
                    providers.metrics = Some(provider);
                }
                OtlpSignal::Logs => {
                    let exporter = LogExporter::builder().with_tonic();
                    let exporter = exporter.with_endpoint(endpoint).with_timeout(SEND_TIMEOUT);
                    let provider = SdkLoggerProvider::builder()
                        .with_batch_exporter(exporter.build()?)
                        .with_resource(resource(service))
                        .build();
                    providers.logs = Some(provider);
                }
            }
        }
        Ok(providers)
    }

    /// Sends what is buffered. Blocks.
    pub(super) fn shut_down(self, within: Duration) {
        // Logs last: the other two may log.
        let traces = self
            .traces
            .map(|traces| traces.shutdown_with_timeout(within));
        let metrics = self
            .metrics
            .map(|metrics| metrics.shutdown_with_timeout(within));
        for (name, ended) in [("spans", traces), ("metrics", metrics)] {
            if let Some(Err(error)) = ended {
                tracing::warn!(%error, "last {name} not exported");
            }
        }
        let logs = self.logs.map(|logs| logs.shutdown_with_timeout(within));
        if let Some(Err(error)) = logs {
            tracing::warn!(%error, "last logs not exported");
        }
    }
}

fn resource(service: &'static str) -> Resource {
    Resource::builder()
        .with_service_name(service)
        .with_attribute(KeyValue::new("service.namespace", "slurm-mesh"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}
