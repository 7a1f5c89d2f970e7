//! Validates one endpoint of the configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::attempt::success::Codes;
use event_filter::{Expression, Filter, TypePattern};
use event_message::redactor::Redactor;
use ipnet::IpNet;
use reqwest::header::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use url::{Host, Url};

use super::{Arrays, Config, Endpoint, EndpointConfig, Fault};
use crate::address::{self, parse_subnet};
use crate::attempt::rate::{Limit, Rate};
use crate::attempt::retry::RetryPolicy;
use crate::attempt::signature::Signer;
use event_message::format::{Format, Signed};

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
    pub faults: Vec<Fault>,
}

impl<'a> Check<'a> {
    pub const fn new(config: &'a Config, written: &'a EndpointConfig) -> Self {
        Self {
            config,
            written,
            faults: Vec::new(),
        }
    }

    pub fn fault(&mut self, key: &'static str, problem: impl Into<String>) {
        self.faults.push(Fault {
            endpoint: String::new(),
            key,
            problem: problem.into(),
        });
    }

    /// Checks the name and the description.
    pub fn name(&mut self) {
        let EndpointConfig {
            name, description, ..
        } = self.written;
        if ["openapi.json", "preview"].contains(&name.as_str()) {
            self.fault("name", "reserved by the API; choose another");
        }
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
        if description.chars().count() > 500 || description.chars().any(char::is_control) {
            self.fault(
                "description",
                "at most 500 characters, none of them a control character",
            );
        }
    }

    /// Checks that a name is usable in URLs and on command lines.
    pub fn name_in_paths(&mut self) {
        let name = &self.written.name;
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !name.chars().all(good) || name.starts_with(['.', '-']) {
            self.fault(
                "name",
                "letters, digits, dots, underscores and hyphens, beginning with a letter or digit",
            );
        }
    }

    /// Builds the endpoint, if it has no faults.
    pub fn endpoint(
        &mut self,
        allowed: &[IpNet],
        read: &impl Fn(&Path) -> std::io::Result<String>,
    ) -> Option<Endpoint> {
        let (config, written) = (self.config, self.written);
        let allowed = self.subnets(allowed);
        let url = self.url(&allowed, read);
        let format = self.format(url.as_ref(), read);
        let signer = self.signer(read);
        let filter = self.filter();
        let (retry, defaults) = (written.retry, config.retry);
        let policy = RetryPolicy {
            max_attempts: written.max_attempts.unwrap_or(config.max_attempts),
            initial_interval: retry.initial_interval.unwrap_or(defaults.initial_interval),
            multiplier: retry.multiplier.unwrap_or(defaults.multiplier),
            max_interval: retry.max_interval.unwrap_or(defaults.max_interval),
            max_retry_after: written.max_retry_after.unwrap_or(config.max_retry_after),
            give_up_after: written.give_up_after,
        };
        if written.give_up_after.is_some_and(|after| after.is_zero()) {
            self.fault("give_up_after", "above 0; omit it to limit attempts only");
        }
        if policy.max_attempts == 0 {
            self.fault("max_attempts", "at least 1");
        }
        if policy.max_retry_after.is_zero() || policy.max_retry_after > LONGEST_WAIT {
            self.fault("max_retry_after", "above 0 and at most 7d");
        }
        if policy.multiplier == 0 {
            self.fault("retry.multiplier", "at least 1");
        }
        let timeout = written.timeout.unwrap_or(config.timeout);
        if timeout.is_zero() || timeout > Duration::from_secs(30) {
            self.fault(
                "timeout",
                "above 0 and at most 30s: so long a request keeps its place",
            );
        }
        // A channel accepts about one message per second, and sequential requests keep their order.
        let concurrency = written
            .concurrency
            .unwrap_or(if written.format.is_ordered() {
                1
            } else {
                config.concurrency
            });
        if !(1..=1024).contains(&concurrency) {
            self.fault("concurrency", "from 1 to 1024");
        }
        let chat_age = written
            .format
            .is_chat()
            .then_some(config.chat_max_event_age);
        let max_event_age = written.max_event_age.or(chat_age);
        let is_chat = written.format.is_chat();
        let digest = written
            .arrays
            .map_or(is_chat, |arrays| arrays == Arrays::Digest);
        if digest && !is_chat {
            self.fault("arrays", "only for chat formats");
        }
        if written.pending_threshold.is_some() && !is_chat {
            let problem = "only for chat formats";
            self.fault("pending_threshold", problem);
        }
        let pending_threshold = self.pending_threshold();
        if pending_threshold > LONGEST_WAIT {
            self.fault("pending_threshold", "at most 7d");
        }
        let headers = self.headers(read);
        let limit = self.limit();
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
            failure_threshold: written
                .circuit_breaker
                .failure_threshold
                .unwrap_or(config.circuit_breaker.failure_threshold),
            limit,
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
    fn success(&mut self) -> Codes {
        let judges = matches!(
            self.written.format,
            Format::CloudEvents | Format::Template(_)
        );
        if !self.written.success.is_empty() && !judges {
            self.fault("success", "only for the formats cloudevents and template");
        }
        Codes::parse(&self.written.success).unwrap_or_else(|error| {
            self.fault("success", error.to_string());
            Codes::default()
        })
    }

    /// The rate limit.
    fn limit(&mut self) -> Option<Limit> {
        let EndpointConfig {
            rate_limit, burst, ..
        } = self.written;
        let Some(text) = rate_limit else {
            if burst.is_some() {
                self.fault("burst", "needs a rate_limit");
            }
            return None;
        };
        let rate: Rate = match text.parse() {
            Ok(rate) => rate,
            Err(error) => {
                self.fault("rate_limit", error.to_string());
                return None;
            }
        };
        let burst = burst.unwrap_or(rate.count());
        if !(1..=MAX_BURST).contains(&burst) {
            self.fault("burst", format!("from 1 to {MAX_BURST}"));
        }
        Some(Limit { rate, burst })
    }

    /// Extra headers, except those that the dispatcher sets.
    fn headers(
        &mut self,
        read: &impl Fn(&Path) -> std::io::Result<String>,
    ) -> Vec<(HeaderName, HeaderValue)> {
        let written = self.written;
        let mut headers = Vec::new();
        if written.headers.len() > MAX_HEADERS {
            self.fault("headers", format!("at most {MAX_HEADERS}"));
        }
        for (name, secret) in &written.headers {
            let mut secret = secret.clone();
            if let Err(problem) = secret.read(read) {
                self.fault("headers", format!("{name}: {problem}"));
                continue;
            }
            let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
                self.fault("headers", format!("{name:?} is not a header name"));
                continue;
            };
            if OURS.contains(&parsed.as_str()) || parsed.as_str().starts_with("webhook-") {
                self.fault("headers", format!("{name} is set by the dispatcher"));
                continue;
            }
            let value = secret.expose();
            match HeaderValue::from_str(value) {
                Ok(mut value) if (1..=MAX_VALUE).contains(&value.len()) && value != "…" => {
                    value.set_sensitive(true);
                    headers.push((parsed, value));
                }
                _ => self.fault(
                    "headers",
                    format!("{name}: 1 to {MAX_VALUE} visible characters"),
                ),
            }
        }
        headers
    }

    /// Validates the format after reading its secrets.
    fn format(
        &mut self,
        url: Option<&Url>,
        read: &impl Fn(&Path) -> std::io::Result<String>,
    ) -> Format {
        let mut format = self.written.format.clone();
        let problems = match (format.read_secrets(read), url) {
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
            match parse_subnet(text) {
                Ok(subnet) => allowed.push(subnet),
                Err(error) => self.fault("allow_private", error.to_string()),
            }
        }
        allowed
    }

    fn url(
        &mut self,
        allowed: &[IpNet],
        read: &impl Fn(&Path) -> std::io::Result<String>,
    ) -> Option<Url> {
        let text = match &self.written.url_file {
            Some(_) if !self.written.url.is_empty() => {
                self.fault("url", "given twice: url or url_file, not both");
                return None;
            }
            Some(path) => match read(path) {
                Ok(text) => text.trim().to_owned(),
                Err(error) => {
                    self.fault("url_file", format!("read {}: {error}", path.display()));
                    return None;
                }
            },
            None if self.written.url.is_empty() => {
                let address = self.written.format.address();
                address.unwrap_or_default().to_owned()
            }
            None => self.written.url.clone(),
        };
        let url = match Url::parse(&text) {
            Ok(url) => url,
            Err(error) => {
                self.fault("url", format!("not a URL: {error}"));
                return None;
            }
        };
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
        let literal = match url.host() {
            Some(Host::Ipv4(address)) => Some(address.into()),
            Some(Host::Ipv6(address)) => Some(address.into()),
            Some(Host::Domain(_)) => None,
            None => {
                self.fault("url", "has no host");
                None
            }
        };
        if let Some(address) = literal
            && let Err(why) = address::check(address, allowed)
        {
            self.fault("url", format!("{address} may not be reached ({why}); allow_private = [\"{address}/{}\"] allows it", if address.is_ipv4() { 32 } else { 128 }));
        }
        if self.faults.iter().any(|fault| fault.key == "url") {
            None
        } else {
            Some(url)
        }
    }

    fn signer(
        &mut self,
        read: &impl Fn(&Path) -> std::io::Result<String>,
    ) -> Option<Option<Signer>> {
        let secret = match (&self.written.secret, &self.written.secret_file) {
            (Some(_), Some(_)) => {
                self.fault("secret", "given twice: secret or secret_file, not both");
                return None;
            }
            (Some(secret), None) => secret.clone(),
            (None, Some(path)) => match read(path) {
                Ok(text) => SecretString::from(text.trim()),
                Err(error) => {
                    self.fault("secret_file", format!("read {}: {error}", path.display()));
                    return None;
                }
            },
            (None, None) if self.written.format.signed() != Signed::Always => return Some(None),
            (None, None) => {
                self.fault("secret", "missing: deliveries are signed; `echo whsec_$(openssl rand -base64 32)` makes one");
                return None;
            }
        };
        match Signer::new(secret.expose_secret()) {
            Ok(signer) => Some(Some(signer)),
            Err(error) => {
                self.fault("secret", error.to_string());
                None
            }
        }
    }

    fn filter(&mut self) -> Option<Filter> {
        let mut patterns = Vec::new();
        for text in &self.written.types {
            match text.parse::<TypePattern>() {
                Ok(pattern) => patterns.push(pattern),
                Err(error) => self.fault(
                    "types",
                    format!("{error}; \"job.failed\", \"job.*\" and \"*\" are patterns"),
                ),
            }
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
        if filter.is_empty() {
            self.fault(
                "users",
                "no event can match: nodes and capture belong to no user",
            );
        }
        if self.faults.iter().any(|fault| fault.key == "types") {
            return None;
        }
        if self.written.when.is_empty() {
            return Some(filter);
        }
        let problem = match Expression::new(&self.written.when) {
            Ok(condition) => match filter.when(condition) {
                Ok(filter) => return Some(filter),
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        self.fault("when", problem);
        None
    }
}
