//! What is sent to an OTLP collector besides being shown by the process itself: traces, metrics, logs.
//!
//! Each has a bounded queue and a thread of its own: a collector that is gone, or does not answer, costs what was not sent, and nothing else.

use std::sync::mpsc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::sync::oneshot;

use crate::BoxError;
use crate::config::{OtlpSignal, TelemetryConfig};

/// Time limit of sending a batch of metrics or logs, also of the last one: as long as the last spans may take by default.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The providers of what is sent. Those that are not configured are absent.
#[derive(Default)]
pub(super) struct OtlpProviders {
    pub traces: Option<SdkTracerProvider>,
    pub metrics: Option<SdkMeterProvider>,
    pub logs: Option<SdkLoggerProvider>,
}

impl OtlpProviders {
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

    /// Sends what is buffered, and gives up after this time.
    pub(super) async fn shut_down(self, within: Duration) {
        let (done, ended) = oneshot::channel();
        // The exporters' threads need the runtime's workers: never shut them down on one of them. Nor on one of the threads whose end the
        // process awaits: a provider may block for longer than it was asked to.
        std::thread::spawn(move || {
            self.shut_down_now(within);
            // Nobody waits any more.
            done.send(()).unwrap_or_default();
        });
        match tokio::time::timeout(within, ended).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::warn!("telemetry not shut down"),
            Err(_) => tracing::warn!(?within, "last telemetry not exported"),
        }
    }

    /// Blocks. The logs have the second half of the time, also if the other two take longer than theirs.
    fn shut_down_now(self, within: Duration) {
        let Self {
            traces,
            metrics,
            logs,
        } = self;
        let half = within / 2;
        let (running, ended) = mpsc::channel::<()>();
        if let Some(traces) = traces {
            let running = running.clone();
            std::thread::spawn(move || {
                report("spans", traces.shutdown_with_timeout(half));
                drop(running);
            });
        }
        if let Some(metrics) = metrics {
            let running = running.clone();
            std::thread::spawn(move || {
                report("metrics", metrics.shutdown_with_timeout(half));
                drop(running);
            });
        }
        drop(running);
        // Nothing is sent: the channel is closed once both threads have ended.
        ended.recv_timeout(half).unwrap_or_default();
        // Last, because the other two may log.
        if let Some(logs) = logs {
            report("logs", logs.shutdown_with_timeout(half));
        }
    }
}

fn report(name: &str, ended: OTelSdkResult) {
    if let Err(error) = ended {
        tracing::warn!(%error, "last {name} not exported");
    }
}

fn resource(service: &'static str) -> Resource {
    Resource::builder()
        .with_service_name(service)
        .with_attribute(KeyValue::new("service.namespace", "slurm-mesh"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider as _;
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::time::Instant;

    use super::*;
    use crate::config::LogFormat;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_collector_that_takes_no_connection_does_not_delay_the_end() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        // Nobody accepts: the kernel leaves what comes after these unanswered.
        let mut held = Vec::new();
        while let Ok(connected) =
            tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            held.push(connected.unwrap());
        }
        let config = TelemetryConfig {
            log_format: LogFormat::Json,
            log_filter: "info".to_owned(),
            otlp_endpoint: format!("http://{address}").into(),
            otlp_signals: [OtlpSignal::Traces, OtlpSignal::Metrics, OtlpSignal::Logs].into(),
            otlp_metrics_interval: Duration::from_secs(60),
            sample_ratio: 1.0,
        };
        let providers = OtlpProviders::new("test", &config).unwrap();
        let meter = providers.metrics.as_ref().unwrap().meter("test");
        meter.u64_counter("sent").build().add(1, &[]);
        let begin = Instant::now();
        providers.shut_down(Duration::from_millis(300)).await;
        let took = begin.elapsed();
        // The half that the logs, of which there are none, do not need.
        assert!(took >= Duration::from_millis(150), "it connected: {took:?}");
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
}
