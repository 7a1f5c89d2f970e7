//! Validates one endpoint of the configuration.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use event_filter::{Expression, Filter, TypePattern};
use guarded_http::address::{self, parse_subnet};
use ipnet::IpNet;
use rate_limit::{Limit, Rate};
use redactor::Redactor;
use reqwest::header::{HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use secret_file::text_or_file;
use standard_webhooks::Signer;
use url::Url;

use super::{Arrays, Config, Endpoint, EndpointConfig, Fault};
use crate::attempt::circuit::{self, CircuitPolicy};
use crate::attempt::gate::AdmissionRules;
use crate::attempt::retry::{Intervals, RetryPolicy};
use event_message::format::{Format, Secret, Signed};
use event_message::success_codes::SuccessCodes;

/// Headers set by the dispatcher or by HTTP itself.
const OURS: [&str; 10] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
const MAX_BURST: u32 = 10_000;
const MAX_HEADERS: usize = 20;
const MAX_VALUE: usize = 4096;
/// Half the retention of the event stream.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Validates one endpoint and collects its faults.
pub(super) struct Check<'a> {
    pub config: &'a Config,
    pub written: &'a EndpointConfig,
    /// Reads the file of a secret.
    pub read: &'a dyn Fn(&Path) -> std::io::Result<String>,
    pub faults: Vec<Fault>,
}

impl<'a> Check<'a> {
    pub const fn new(
        config: &'a Config,
        written: &'a EndpointConfig,
        read: &'a dyn Fn(&Path) -> std::io::Result<String>,
    ) -> Self {
        Self {
            config,
            written,
            read,
            faults: Vec::new(),
        }
    }

    pub fn fault(&mut self, key: &'static str, problem: impl Into<String>) {
        self.faults.push(Fault::new(key, problem));
    }

    /// Reports a fault unless this holds.
    fn require(&mut self, holds: bool, key: &'static str, problem: impl Into<String>) {
        if !holds {
            self.fault(key, problem);
        }
    }

    /// The value, unless it has a fault.
    fn accept<T>(&mut self, found: Result<T, impl Into<Fault>>) -> Option<T> {
        found.map_err(|fault| self.faults.push(fault.into())).ok()
    }

    /// Checks the name and the description.
    pub fn name(&mut self) {
        let EndpointConfig {
            name, description, ..
        } = self.written;
        let is_free = !["openapi.json", "preview"].contains(&name.as_str());
        self.require(is_free, "name", "reserved by the API; choose another");
        if name.is_empty() {
            self.fault("name", "missing");
        } else if name.contains('/') {
            self.fault(
                "name",
                "no slash: it stands between a user and the name of a webhook of theirs",
            );
        } else if name.chars().any(char::is_control) || name.len() > 64 {
            self.fault(
                "name",
                "at most 64 characters, none of them a control character",
            );
        }
        let is_plain =
            description.chars().count() <= 500 && !description.chars().any(char::is_control);
        let problem = "at most 500 characters, none of them a control character";
        self.require(is_plain, "description", problem);
    }

    /// Checks that a name is usable in URLs and on command lines.
    pub fn name_in_paths(&mut self) {
        let name = &self.written.name;
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_good = name.chars().all(good) && !name.starts_with(['.', '-']);
        let problem =
            "letters, digits, dots, underscores and hyphens, beginning with a letter or digit";
        self.require(is_good, "name", problem);
    }

    /// Builds the endpoint, if it has no faults.
    pub fn endpoint(&mut self, allowed: &[IpNet]) -> Option<Endpoint> {
        let (config, written) = (self.config, self.written);
        let allowed = self.subnets(allowed);
        let url = self.url(&allowed);
        let format = self.format(url.as_ref());
        let signer = self.signer();
        let filter = self.filter();
        let (retry, defaults) = (written.retry, config.retry);
        let policy = RetryPolicy {
            max_attempts: written.max_attempts.unwrap_or(config.max_attempts),
            intervals: Intervals {
                initial_interval: retry.initial_interval.unwrap_or(defaults.initial_interval),
                multiplier: retry.multiplier.unwrap_or(defaults.multiplier),
                max_interval: retry.max_interval.unwrap_or(defaults.max_interval),
            },
            max_retry_after: written.max_retry_after.unwrap_or(config.max_retry_after),
            give_up_after: written.give_up_after,
        };
        let within = |time: Duration, max: Duration| !time.is_zero() && time <= max;
        let gives_up = written.give_up_after.unwrap_or(Duration::MAX);
        let problem = "above 0; omit it to limit attempts only";
        self.require(!gives_up.is_zero(), "give_up_after", problem);
        self.require(policy.max_attempts > 0, "max_attempts", "at least 1");
        let is_within = within(policy.max_retry_after, LONGEST_WAIT);
        self.require(is_within, "max_retry_after", "above 0 and at most 7d");
        let grows = policy.intervals.multiplier > 0;
        self.require(grows, "retry.multiplier", "at least 1");
        let timeout = written.timeout.unwrap_or(config.timeout);
        let is_within = within(timeout, Duration::from_secs(30));
        let problem = "above 0 and at most 30s: so long a request keeps its place";
        self.require(is_within, "timeout", problem);
        // A channel accepts about one message per second, and sequential requests keep their order.
        let concurrency = written
            .concurrency
            .unwrap_or(match written.format.is_ordered() {
                true => 1,
                false => config.concurrency,
            });
        let is_within = (1..=1024).contains(&concurrency);
        self.require(is_within, "concurrency", "from 1 to 1024");
        let is_chat = written.format.is_chat();
        let chat_age = is_chat.then_some(config.chat_max_event_age);
        let max_event_age = written.max_event_age.or(chat_age);
        let arrays = written.arrays;
        let digest = arrays.map_or(is_chat, |arrays| arrays == Arrays::Digest);
        self.require(is_chat || !digest, "arrays", "only for chat formats");
        let fits = is_chat || written.pending_threshold.is_none();
        self.require(fits, "pending_threshold", "only for chat formats");
        let pending_threshold = self.pending_threshold();
        let is_within = pending_threshold <= LONGEST_WAIT;
        self.require(is_within, "pending_threshold", "at most 7d");
        let headers = self.headers();
        let threshold = written.circuit_breaker.failure_threshold;
        let rules = AdmissionRules {
            circuit: CircuitPolicy {
                failure_threshold: threshold.unwrap_or(config.circuit_breaker.failure_threshold),
                // Those of retries, capped.
                intervals: Intervals {
                    max_interval: policy.intervals.max_interval.min(circuit::LONGEST),
                    ..policy.intervals
                },
            },
            limit: self.limit(),
            max_retry_after: policy.max_retry_after,
        };
        let success = self.success();
        let mut endpoint = Endpoint {
            name: written.name.clone(),
            owner: String::new(),
            url: url?,
            signer: signer?,
            format,
            filter: Arc::new(filter?),
            digest,
            headers,
            public: String::new(),
            max_event_age,
            pending_threshold,
            allowed,
            timeout,
            concurrency,
            policy,
            success,
            rules,
            redactor: Arc::default(),
        };
        endpoint.redactor = Arc::new(Redactor::new(endpoint.secrets()));
        let mut public = serde_json::json!(written);
        public["url"] = endpoint.redacted_url().into();
        public["signed"] = endpoint.signer.is_some().into();
        endpoint.public = public.to_string();
        Some(endpoint)
    }

    fn pending_threshold(&self) -> Duration {
        let written = self.written.pending_threshold;
        written.unwrap_or(self.config.pending_threshold)
    }

    /// Statuses that mean success.
    fn success(&mut self) -> SuccessCodes {
        let judges = matches!(
            self.written.format,
            Format::CloudEvents | Format::Template(_)
        );
        let fits = judges || self.written.success.is_empty();
        let problem = "only for the formats cloudevents and template";
        self.require(fits, "success", problem);
        let codes = SuccessCodes::parse(&self.written.success).map_err(Fault::of("success"));
        self.accept(codes).unwrap_or_default()
    }

    /// The rate limit.
    fn limit(&mut self) -> Option<Limit> {
        let EndpointConfig {
            rate_limit, burst, ..
        } = self.written;
        let Some(text) = rate_limit else {
            self.require(burst.is_none(), "burst", "needs a rate_limit");
            return None;
        };
        let rate: Rate = self.accept(text.parse().map_err(Fault::of("rate_limit")))?;
        let burst = burst.map_or(Some(rate.count), NonZeroU32::new);
        let burst = burst.filter(|burst| burst.get() <= MAX_BURST);
        let problem = format!("from 1 to {MAX_BURST}");
        self.require(burst.is_some(), "burst", problem);
        burst.map(|burst| Limit { rate, burst })
    }

    /// Extra headers, except those that the dispatcher sets.
    fn headers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = Vec::new();
        let are_few = self.written.headers.len() <= MAX_HEADERS;
        self.require(are_few, "headers", format!("at most {MAX_HEADERS}"));
        for (name, secret) in &self.written.headers {
            let header = self.header(name, secret.clone());
            headers.extend(self.accept(header.map_err(Fault::of("headers"))));
        }
        headers
    }

    fn header(&self, name: &str, mut value: Secret) -> Result<(HeaderName, HeaderValue), String> {
        let read = value.read(self.read);
        read.map_err(|problem| format!("{name}: {problem}"))?;
        let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
            return Err(format!("{name:?} is not a header name"));
        };
        if OURS.contains(&parsed.as_str()) || parsed.as_str().starts_with("webhook-") {
            return Err(format!("{name} is set by the dispatcher"));
        }
        match HeaderValue::from_str(value.expose()) {
            Ok(mut value) if (1..=MAX_VALUE).contains(&value.len()) && value != "…" => {
                value.set_sensitive(true);
                Ok((parsed, value))
            }
            _ => Err(format!("{name}: 1 to {MAX_VALUE} visible characters")),
        }
    }

    /// Validates the format after reading its secrets.
    fn format(&mut self, url: Option<&Url>) -> Format {
        let mut format = self.written.format.clone();
        let problems = match (format.read_secrets(self.read), url) {
            (Err(problems), _) => problems,
            (Ok(()), Some(url)) => format.faults(url),
            (Ok(()), None) => Vec::new(),
        };
        for (key, problem) in problems {
            self.fault(key, problem);
        }
        format
    }

    fn subnets(&mut self, service: &[IpNet]) -> Vec<IpNet> {
        let mut allowed = service.to_vec();
        for text in &self.written.allow_private {
            let subnet = parse_subnet(text).map_err(Fault::of("allow_private"));
            allowed.extend(self.accept(subnet));
        }
        allowed
    }

    fn url(&mut self, allowed: &[IpNet]) -> Option<Url> {
        let written = self.written;
        let text = Some(written.url.as_str()).filter(|url| !url.is_empty());
        let file = written.url_file.as_deref();
        let given = text_or_file(["url", "url_file"], text, file, &self.read);
        let given = self.accept(given)?;
        let given = given.as_ref().map(ExposeSecret::expose_secret);
        let url = Url::parse(given.or(written.format.address()).unwrap_or_default());
        let not_a_url = |error| Fault::new("url", format!("not a URL: {error}"));
        let url = self.accept(url.map_err(not_a_url))?;
        let allow_http = self.written.allow_http.unwrap_or(self.config.allow_http);
        match url.scheme() {
            "https" => {}
            "http" if allow_http => {}
            "http" => self.fault(
                "url",
                "not https; set allow_http = true if the network in between is trusted",
            ),
            other => self.fault("url", format!("https is needed, not {other}")),
        }
        // Host names are checked when they are resolved for a request, as their addresses may change.
        self.require(url.has_host(), "url", "has no host");
        if let Err((address, why)) = address::check_literal(&url, allowed) {
            self.fault("url", format!("{address} may not be reached ({why}); allow_private = [\"{address}/{}\"] allows it", if address.is_ipv4() { 32 } else { 128 }));
        }
        let is_good = self.faults.iter().all(|fault| fault.key != "url");
        is_good.then_some(url)
    }

    fn signer(&mut self) -> Option<Option<Signer>> {
        let written = self.written;
        let text = written.secret.as_ref().map(ExposeSecret::expose_secret);
        let file = written.secret_file.as_deref();
        let secret = text_or_file(["secret", "secret_file"], text, file, &self.read);
        let secret = self.accept(secret)?;
        let Some(secret) = secret else {
            let is_optional = written.format.signed() != Signed::Always;
            self.require(
                is_optional,
                "secret",
                "missing: deliveries are signed; `echo whsec_$(openssl rand -base64 32)` makes one",
            );
            return is_optional.then_some(None);
        };
        let signer = Signer::new(secret.expose_secret());
        self.accept(signer.map_err(Fault::of("secret"))).map(Some)
    }

    fn filter(&mut self) -> Option<Filter> {
        let mut patterns = Vec::new();
        for text in &self.written.types {
            let unknown = |error| {
                let problem = format!("{error}; \"job.failed\", \"job.*\" and \"*\" are patterns");
                Fault::new("types", problem)
            };
            patterns.extend(self.accept(text.parse::<TypePattern>().map_err(unknown)));
        }
        let default_types = self.written.format.default_types();
        let by_default = default_types.filter(|_| patterns.is_empty());
        if let Some(types) = by_default {
            patterns = types.iter().copied().map(TypePattern::One).collect();
        }
        let mut filter = Filter::new(&patterns, &self.written.users, &self.written.partitions)
            .in_clusters(&self.written.clusters)
            .of_accounts(&self.written.accounts);
        if by_default.is_some() && self.written.format.is_chat() {
            filter = filter.without_routine(self.pending_threshold());
        }
        let problem = "no event can match: nodes and capture belong to no user";
        self.require(!filter.is_empty(), "users", problem);
        if self.faults.iter().any(|fault| fault.key == "types") {
            return None;
        }
        if self.written.when.is_empty() {
            return Some(filter);
        }
        let condition = Expression::new(&self.written.when).map_err(Fault::of("when"));
        let condition = self.accept(condition)?;
        self.accept(filter.when(condition).map_err(Fault::of("when")))
    }
}
