//! W3C trace context: in NATS headers, and as text for callers that store it or pass it on.

use std::collections::HashMap;

use async_nats::HeaderMap;
use opentelemetry::global;
use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::TraceContextExt as _;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

struct Headers<'a>(&'a mut HeaderMap);

impl Injector for Headers<'_> {
    fn set(&mut self, key: &str, value: String) {
        self.0.insert(key, value);
    }
}

struct ReadHeaders<'a>(&'a HeaderMap);

impl Extractor for ReadHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(async_nats::HeaderValue::as_str)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_ref()).collect()
    }
}

/// Writes the current span's context into headers.
pub(crate) fn inject(headers: &mut HeaderMap) {
    let context = Span::current().context();
    global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&context, &mut Headers(headers))
    });
}

/// Reads the sender's context from headers.
pub(crate) fn extract(headers: &HeaderMap) -> opentelemetry::Context {
    global::get_text_map_propagator(|propagator| propagator.extract(&ReadHeaders(headers)))
}

/// The `traceparent` of the current span, for outgoing requests; `None` without telemetry.
pub fn traceparent() -> Option<String> {
    let mut headers = HashMap::new();
    global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&Span::current().context(), &mut headers)
    });
    headers.remove("traceparent")
}

/// Makes a span a child of the span that a `traceparent` names, if there is one.
pub fn adopt(span: &Span, traceparent: &str) {
    if !traceparent.is_empty()
        && let Err(error) = span.set_parent(read(traceparent))
    {
        tracing::trace!(%error, "span cannot have a parent");
    }
}

/// Links a span to the span that a `traceparent` names, if there is one.
pub fn link(span: &Span, traceparent: &str) {
    if traceparent.is_empty() {
        return;
    }
    let linked = read(traceparent).span().span_context().clone();
    if linked.is_valid() {
        span.add_link(linked);
    }
}

fn read(traceparent: &str) -> opentelemetry::Context {
    let headers = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
    global::get_text_map_propagator(|propagator| propagator.extract(&headers))
}
