//! Replays of recorded events: request, progress and rate.

mod audit;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_runtime::TimeBound;
use mesh_runtime::api::{AuthMethod, Caller, Visibility};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::filter::{Filter, InvalidFilter, Selection};
use super::record::AUDIT;

/// Maximum number of events published before the cursor is stored.
const MAX_PAGE: u32 = 500;
/// Pages per second, except for the smallest and the largest page.
const PAGES_PER_SECOND: u32 = 4;
/// Maximum number of users listed by name in the audit.
const MAX_AUDITED_USERS: usize = 1000;
const MAX_KEY_BYTES: usize = 200;
/// Includes the owner's name.
const MAX_NAME_BYTES: usize = 400;

/// A replay request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayRequest {
    /// Events to replay; without `to_seq`, up to the current end of the ledger. Default: all events. Audit entries are
    /// never replayed.
    pub filter: Filter,
    /// Replays only to this webhook, which must be the caller's own (administrators: any). Default: replays on the bus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Maximum events per second. Default: the ledger's `replay.rate` (1000 by default).
    #[schema(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
}

/// Limits of replay requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLimits {
    /// Default events per second.
    pub rate: u32,
    /// Maximum events per second.
    pub max_rate: u32,
    /// Concurrent replays per caller.
    pub max_running: u32,
}

/// The caller and their visibility at the time of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requester {
    /// Display name.
    pub name: String,
    /// Unix users of the caller.
    pub users: BTreeSet<String>,
    /// Role: `user`, `coordinator`, `auditor` or `admin`.
    pub role: String,
    /// Authentication method: `unix`, `token` or `oidc`.
    pub authentication: String,
    /// `iss` of an OIDC identity.
    pub issuer: String,
    /// `sub` of an OIDC identity.
    pub subject: String,
    /// The request, such as `POST /v1/replays`.
    pub request: String,
    everything: bool,
    accounts: Vec<(Option<String>, BTreeSet<String>)>,
}

/// A validated replay request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaySpec {
    /// The caller.
    #[serde(rename = "who")]
    pub requester: Requester,
    /// Request as received.
    #[serde(rename = "wanted")]
    pub requested: ReplayRequest,
    /// Filter with absolute times and the end of the range.
    pub filter: Filter,
    /// Maximum events per second.
    pub rate: u32,
}

/// State of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayState {
    /// Running.
    Running,
    /// All events were published.
    Done,
    /// Failed permanently.
    Failed,
    /// Cancelled by a user.
    Cancelled,
}

impl ReplayState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Failed, Self::Cancelled];
    /// Name of the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Parses a state.
    ///
    /// # Errors
    /// If there is no such state.
    pub fn parse(text: &str) -> Result<Self, InvalidFilter> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| {
            InvalidFilter::new(
                "state",
                format!("{text:?} is not a state; allowed: running, done, failed, cancelled"),
            )
        })
    }
}

/// Audit entries written so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditProgress {
    /// No entry. No event is published before the opening entry.
    Nothing,
    /// The opening entry.
    Begin,
    /// The closing entry.
    End,
}

/// Published events of other users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedRows {
    /// Unix users, at most [`MAX_AUDITED_USERS`].
    pub users: BTreeSet<String>,
    /// Number of events.
    pub rows: u64,
}

/// A replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// UUID.
    pub id: String,
    /// The validated request.
    pub request: ReplaySpec,
    /// Time of the request, in microseconds since 1970.
    pub made_at: i64,
    /// Last sequence of the range.
    pub to_seq: i64,
    /// Last published sequence.
    pub cursor: i64,
    /// Number of published events.
    pub sent: i64,
    /// Published events of other users.
    pub disclosed: AuditedRows,
    /// State.
    pub state: ReplayState,
    /// End time, in microseconds since 1970.
    pub ended_at: Option<i64>,
    /// User who cancelled it.
    pub cancelled_by: Option<String>,
    /// What the replay waits for, or why it failed.
    pub problem: String,
    /// Audit entries written so far.
    pub audited: AuditProgress,
}

/// A refused replay request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayRefused {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidFilter),
    /// The caller lacks the permission.
    #[error("{0}")]
    Forbidden(&'static str),
}

impl Requester {
    /// Captures the caller's identity and visibility.
    pub fn of(caller: &Caller) -> Self {
        let (issuer, subject) = match &caller.auth_method {
            AuthMethod::Oidc { issuer, subject } => (issuer.clone(), subject.clone()),
            AuthMethod::Peer { .. } | AuthMethod::Token => Default::default(),
        };
        let accounts = caller.accounts.iter();
        Self {
            name: caller.name.clone(),
            users: caller.users.clone(),
            role: caller.role_name().to_owned(),
            authentication: caller.auth_method.as_str().to_owned(),
            issuer,
            subject,
            request: caller.request.clone(),
            everything: caller.sees_everything(),
            accounts: accounts
                .map(|(of, names)| (of.clone(), names.clone()))
                .collect(),
        }
    }

    /// Returns the visibility of the requester.
    pub fn visibility(&self) -> Visibility {
        if self.everything {
            return Visibility::All;
        }
        Visibility::Restricted {
            users: self.users.clone(),
            accounts: self.accounts.iter().cloned().collect::<BTreeMap<_, _>>(),
        }
    }
    fn sees_only_own_events(&self) -> bool {
        !self.everything && self.accounts.is_empty()
    }
}

/// Returns the owner key of a caller's replays. Identities with the same name differ by
/// authentication method.
pub fn owner(caller: &Caller) -> String {
    match &caller.auth_method {
        AuthMethod::Peer { uid } => format!("unix {uid}"),
        AuthMethod::Token => caller.name.clone(),
        AuthMethod::Oidc { issuer, subject } => format!("oidc {issuer} {subject}"),
    }
}

/// Validates an idempotency key.
///
/// # Errors
/// If it is empty, too long, or has characters other than printable ASCII.
pub fn check_key(key: &str) -> Result<(), InvalidFilter> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(InvalidFilter::new(
            "idempotency_key",
            format!("invalid key; allowed: 1 to {MAX_KEY_BYTES} printable ASCII characters"),
        ));
    }
    Ok(())
}

/// Checks that the caller may replay to a webhook endpoint: administrators to any, users to their own. `owner` is empty for the operator's
/// endpoints and `None` if there is no such endpoint.
///
/// # Errors
/// If the caller may not. An endpoint that they may not see is reported as unknown.
pub fn check_endpoint(
    caller: &Caller,
    endpoint: &str,
    owner: Option<&str>,
) -> Result<(), ReplayRefused> {
    match owner {
        Some(owner) if caller.may_write() || caller.is(owner) => Ok(()),
        Some(_) if caller.sees_everything() => Err(ReplayRefused::Forbidden(
            "endpoint: auditors may not replay to others' webhook endpoints; ask its owner or an administrator",
        )),
        Some(_) | None => Err(unknown_endpoint(endpoint).into()),
    }
}

fn unknown_endpoint(endpoint: &str) -> InvalidFilter {
    InvalidFilter::new(
        "endpoint",
        format!(
            "no webhook endpoint {endpoint:?}, or you may not use it; allowed: one listed by `smesh webhooks list` (GET /v1/webhooks)"
        ),
    )
}

impl ReplayRequest {
    /// Validates the request, except for the owner of the endpoint ([`check_endpoint`]). Without an
    /// end, the range ends at the current head of the ledger.
    ///
    /// # Errors
    /// The first invalid or forbidden field.
    pub fn check(
        self,
        caller: &Caller,
        head: u64,
        limits: &ReplayLimits,
        now: DateTime<Utc>,
    ) -> Result<ReplaySpec, ReplayRefused> {
        let rate = self.rate.unwrap_or(limits.rate.min(limits.max_rate));
        if rate == 0 || rate > limits.max_rate {
            return Err(InvalidFilter::new(
                "rate",
                format!(
                    "{rate} is out of range; allowed: 1 to {} events per second",
                    limits.max_rate
                ),
            )
            .into());
        }
        let named = |endpoint: &String| !endpoint.is_empty() && endpoint.len() <= MAX_NAME_BYTES;
        if let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| !named(endpoint)) {
            return Err(unknown_endpoint(endpoint).into());
        }
        let audit = |kind: &&String| kind.split('.').next() == Some(AUDIT);
        if let Some(kind) = self.filter.types.iter().find(audit) {
            return Err(InvalidFilter::new(
                "type",
                format!("{kind:?} is not replayed; allowed: event types, not audit kinds"),
            )
            .into());
        }
        let absolute = |bound: TimeBound| TimeBound::At(bound.resolve(&now));
        let to_seq = self.filter.to_seq.unwrap_or(head).min(head);
        self.filter.check(now)?;
        let mut filter = self.filter.clone();
        filter.since = filter.since.map(absolute);
        filter.until = filter.until.map(absolute);
        filter.to_seq = Some(to_seq);
        Ok(ReplaySpec {
            requester: Requester::of(caller),
            requested: self,
            filter,
            rate,
        })
    }
}

impl ReplaySpec {
    /// Returns the sequence after which the replay begins.
    pub fn begin(&self) -> i64 {
        let from = self.filter.from_seq.unwrap_or(1).max(1) - 1;
        i64::try_from(from).unwrap_or(i64::MAX)
    }

    /// Returns the last sequence of the range.
    pub fn end(&self) -> i64 {
        i64::try_from(self.filter.to_seq.unwrap_or_default()).unwrap_or(i64::MAX)
    }

    /// Returns the selection without bounds of the sequence, which are the cursor and
    /// [`Self::end`].
    ///
    /// # Errors
    /// If the stored filter is no longer valid.
    pub fn selection(&self) -> Result<Selection, InvalidFilter> {
        let filter = Filter {
            from_seq: None,
            to_seq: None,
            ..self.filter.clone()
        };
        // All times in it are absolute.
        filter.check(DateTime::<Utc>::MIN_UTC)
    }

    /// Returns the filter as JSON, for the audit.
    pub fn filter_text(&self) -> String {
        serde_json::to_string(&self.filter).unwrap_or_default()
    }
}

impl Replay {
    /// Creates a replay.
    pub fn new(id: String, request: ReplaySpec, now: DateTime<Utc>) -> Self {
        Self {
            id,
            made_at: now.timestamp_micros(),
            to_seq: request.end(),
            cursor: request.begin(),
            sent: 0,
            disclosed: AuditedRows::default(),
            state: ReplayState::Running,
            ended_at: None,
            cancelled_by: None,
            problem: String::new(),
            audited: AuditProgress::Nothing,
            request,
        }
    }

    /// Returns the progress from 0 to 1.
    pub fn progress(&self) -> f64 {
        let begin = self.request.begin();
        let (behind, whole) = (self.cursor - begin, self.to_seq.saturating_sub(begin));
        if self.state == ReplayState::Done || whole <= 0 {
            return 1.0;
        }
        (behind as f64 / whole as f64).clamp(0.0, 1.0)
    }

    /// Counts a published event of `owner`, which is empty for events without one.
    pub fn add_sent(&mut self, seq: i64, owner: &str) {
        self.cursor = seq;
        self.sent += 1;
        if owner.is_empty() || self.request.requester.users.contains(owner) {
            return;
        }
        self.disclosed.rows += 1;
        if self.disclosed.users.len() < MAX_AUDITED_USERS && !self.disclosed.users.contains(owner) {
            self.disclosed.users.insert(owner.to_owned());
        }
    }

    /// Ends the replay.
    pub fn end(&mut self, state: ReplayState, problem: String, now: DateTime<Utc>) {
        self.state = state;
        self.problem = problem;
        self.ended_at = Some(now.timestamp_micros());
        if state == ReplayState::Done {
            self.cursor = self.cursor.max(self.to_seq);
        }
    }
}

/// Returns the number of events per page.
pub fn page(rate: u32) -> u32 {
    (rate / PAGES_PER_SECOND).clamp(1, MAX_PAGE)
}

/// Returns the pause after a page that is needed to maintain the rate.
pub fn pause(sent: usize, rate: u32, took: Duration) -> Duration {
    Duration::from_secs_f64(sent as f64 / f64::from(rate.max(1))).saturating_sub(took)
}

#[cfg(test)]
mod tests;
