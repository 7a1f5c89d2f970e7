//! Replays: recorded events told once more. Who asked, which events, how far it is, and how fast it goes.

mod audit;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_runtime::TimeBound;
use mesh_runtime::api::{Caller, Means, Sight};
use serde::{Deserialize, Serialize};

use super::fact::AUDIT;
use super::filter::{Filter, Invalid, Selection};

/// Most events that are told before it is noted how far it is.
const LARGEST_PAGE: u32 = 500;
/// How often in a second that is noted, unless the page is the smallest or the largest.
const PAGES_PER_SECOND: u32 = 4;
/// Users that are told apart.
const MOST_COUNTED: usize = 1000;
/// Longest idempotency key.
const LONGEST_KEY: usize = 200;
/// Longest name of a webhook endpoint, its owner's with it.
const LONGEST_NAME: usize = 400;

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wanted {
    /// Which events.
    pub filter: Filter,
    /// Only for this webhook endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Events in a second at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
}

/// How much may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events in a second if nothing is asked for.
    pub rate: u32,
    /// Events in a second at most.
    pub max_rate: u32,
    /// Replays of one caller that may run at the same time.
    pub max_running: u32,
}

/// Who asked, as they were known then. What they may see stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// For people.
    pub name: String,
    /// The Unix users they are.
    pub users: BTreeSet<String>,
    /// `user`, `coordinator`, `auditor` or `admin`.
    pub role: String,
    /// `unix`, `token` or `oidc`.
    pub authentication: String,
    /// `iss` of an OIDC identity.
    pub issuer: String,
    /// `sub` of an OIDC identity.
    pub subject: String,
    /// What they asked, as `POST /v1/replays`.
    pub request: String,
    everything: bool,
    accounts: Vec<(Option<String>, BTreeSet<String>)>,
}

/// A replay that can be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Who asked.
    pub who: Who,
    /// What they asked for.
    pub wanted: Wanted,
    /// Which events, with absolute times and the end of the range.
    pub filter: Filter,
    /// Events in a second at most.
    pub rate: u32,
}

/// Where a replay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on.
    Running,
    /// Everything was told.
    Done,
    /// It cannot go on.
    Failed,
    /// Somebody ended it.
    Cancelled,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Failed, Self::Cancelled];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of a word.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(word: &str) -> Result<Self, Invalid> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| {
            Invalid::new(
                "state",
                format!("{word:?} is no state; allowed: running, done, failed, cancelled"),
            )
        })
    }
}

/// What of the audit's entries is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audited {
    /// Nothing: no event is told before it is.
    Nothing,
    /// Its beginning.
    Begin,
    /// Its end: nothing is left to do.
    End,
}

/// Whose data of other people was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Unix users, at most [`MOST_COUNTED`].
    pub users: BTreeSet<String>,
    /// Events.
    pub rows: u64,
}

/// A replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// UUID.
    pub id: String,
    /// What is told to whom.
    pub request: Request,
    /// When it was asked for, in microseconds since 1970.
    pub made_at: i64,
    /// Last sequence of the range.
    pub to_seq: i64,
    /// Everything up to here was told.
    pub cursor: i64,
    /// Events that were told.
    pub sent: i64,
    /// Whose data of other people was told.
    pub shown: Shown,
    /// Where it is.
    pub state: State,
    /// When it ended, in microseconds since 1970.
    pub ended_at: Option<i64>,
    /// Who cancelled it.
    pub cancelled_by: Option<String>,
    /// What it waits for, or why it failed.
    pub problem: String,
    /// What of the audit's entries is written.
    pub audited: Audited,
}

/// Why no replay is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Something is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The caller may not do it.
    #[error("{0}")]
    Forbidden(&'static str),
}

impl Who {
    /// Who calls.
    pub fn of(caller: &Caller) -> Self {
        let (issuer, subject) = match &caller.means {
            Means::Oidc { issuer, subject } => (issuer.clone(), subject.clone()),
            Means::Peer { .. } | Means::Token => Default::default(),
        };
        let accounts = caller.accounts.iter();
        Self {
            name: caller.name.clone(),
            users: caller.users.clone(),
            role: caller.role_name().to_owned(),
            authentication: caller.means.as_str().to_owned(),
            issuer,
            subject,
            request: caller.request.clone(),
            everything: caller.sees_everything(),
            accounts: accounts
                .map(|(of, names)| (of.clone(), names.clone()))
                .collect(),
        }
    }

    /// What they may see.
    pub fn sight(&self) -> Sight {
        if self.everything {
            return Sight::Everything;
        }
        Sight::Of {
            users: self.users.clone(),
            accounts: self.accounts.iter().cloned().collect::<BTreeMap<_, _>>(),
        }
    }

    /// True if only what is their own is told to them.
    fn sees_only_their_own(&self) -> bool {
        !self.everything && self.accounts.is_empty()
    }
}

/// What the replays of a caller are found by. People of the same name are told apart by how they are known.
pub fn owner(caller: &Caller) -> String {
    match &caller.means {
        Means::Peer { uid } => format!("unix {uid}"),
        Means::Token => caller.name.clone(),
        Means::Oidc { issuer, subject } => format!("oidc {issuer} {subject}"),
    }
}

/// Checks the text by which a caller finds their replay again.
///
/// # Errors
/// If it is none.
pub fn check_key(key: &str) -> Result<(), Invalid> {
    if key.is_empty() || key.len() > LONGEST_KEY || !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Invalid::new(
            "idempotency_key",
            format!("it is no such key; allowed: 1 to {LONGEST_KEY} printable ASCII characters"),
        ));
    }
    Ok(())
}

/// Checks that somebody may have events told to a webhook endpoint: administrators to every one, users to their own. Whose it is
/// stands in `owner`, empty for the operator's; `None` if there is none of that name.
///
/// # Errors
/// If they may not. Who may not know of it is told that it is not there.
pub fn check_endpoint(caller: &Caller, endpoint: &str, owner: Option<&str>) -> Result<(), Refused> {
    match owner {
        Some(owner) if caller.may_write() || caller.is(owner) => Ok(()),
        Some(_) if caller.sees_everything() => Err(Refused::Forbidden(
            "endpoint: auditors have nothing told to others' webhook endpoints; ask its owner or an administrator",
        )),
        Some(_) | None => Err(unknown_endpoint(endpoint).into()),
    }
}

fn unknown_endpoint(endpoint: &str) -> Invalid {
    Invalid::new(
        "endpoint",
        format!(
            "there is no webhook endpoint {endpoint:?}, or it is not yours; allowed: one that `smesh webhooks list` (GET /v1/webhooks) shows you"
        ),
    )
}

impl Wanted {
    /// Checks what was asked for, but for whose the endpoint is ([`check_endpoint`]). Without an end, the range ends with the ledger as it is now.
    ///
    /// # Errors
    /// The first part that is wrong or not allowed.
    pub fn check(
        self,
        caller: &Caller,
        head: u64,
        limits: &Limits,
        now: DateTime<Utc>,
    ) -> Result<Request, Refused> {
        let rate = self.rate.unwrap_or(limits.rate.min(limits.max_rate));
        if rate == 0 || rate > limits.max_rate {
            return Err(Invalid::new(
                "rate",
                format!(
                    "{rate} is not allowed; allowed: 1 to {} events in a second",
                    limits.max_rate
                ),
            )
            .into());
        }
        let named = |endpoint: &String| !endpoint.is_empty() && endpoint.len() <= LONGEST_NAME;
        if let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| !named(endpoint)) {
            return Err(unknown_endpoint(endpoint).into());
        }
        let audit = |kind: &&String| kind.split('.').next() == Some(AUDIT);
        if let Some(kind) = self.filter.types.iter().find(audit) {
            return Err(Invalid::new(
                "type",
                format!("{kind:?} is not replayed; allowed: types of events, not of the audit"),
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
        Ok(Request {
            who: Who::of(caller),
            wanted: self,
            filter,
            rate,
        })
    }
}

impl Request {
    /// Sequence after which it begins.
    pub fn begin(&self) -> i64 {
        let from = self.filter.from_seq.unwrap_or(1).max(1) - 1;
        i64::try_from(from).unwrap_or(i64::MAX)
    }

    /// Last sequence of its range.
    pub fn end(&self) -> i64 {
        i64::try_from(self.filter.to_seq.unwrap_or_default()).unwrap_or(i64::MAX)
    }

    /// Which entries: all but the bounds of the sequence, which the cursor and [`Self::end`] are.
    ///
    /// # Errors
    /// If it is not what was checked once.
    pub fn selection(&self) -> Result<Selection, Invalid> {
        let filter = Filter {
            from_seq: None,
            to_seq: None,
            ..self.filter.clone()
        };
        // Every time in it is absolute.
        filter.check(DateTime::<Utc>::MIN_UTC)
    }

    /// The filter for people and for the audit.
    pub fn shown_filter(&self) -> String {
        serde_json::to_string(&self.filter).unwrap_or_default()
    }
}

impl Replay {
    /// A replay that nobody works on yet.
    pub fn new(id: String, request: Request, now: DateTime<Utc>) -> Self {
        Self {
            id,
            made_at: now.timestamp_micros(),
            to_seq: request.end(),
            cursor: request.begin(),
            sent: 0,
            shown: Shown::default(),
            state: State::Running,
            ended_at: None,
            cancelled_by: None,
            problem: String::new(),
            audited: Audited::Nothing,
            request,
        }
    }

    /// How much of the range is behind it, 0 to 1.
    pub fn progress(&self) -> f64 {
        let begin = self.request.begin();
        let (behind, whole) = (self.cursor - begin, self.to_seq.saturating_sub(begin));
        if self.state == State::Done || whole <= 0 {
            return 1.0;
        }
        (behind as f64 / whole as f64).clamp(0.0, 1.0)
    }

    /// An event of a user was told; of an empty one, it is nobody's.
    pub fn told(&mut self, seq: i64, owner: &str) {
        self.cursor = seq;
        self.sent += 1;
        if owner.is_empty() || self.request.who.users.contains(owner) {
            return;
        }
        self.shown.rows += 1;
        if self.shown.users.len() < MOST_COUNTED && !self.shown.users.contains(owner) {
            self.shown.users.insert(owner.to_owned());
        }
    }

    /// It ended.
    pub fn end(&mut self, state: State, problem: String, now: DateTime<Utc>) {
        self.state = state;
        self.problem = problem;
        self.ended_at = Some(now.timestamp_micros());
        if state == State::Done {
            self.cursor = self.cursor.max(self.to_seq);
        }
    }
}

/// How many events are told before it is noted how far it is.
pub fn page(rate: u32) -> u32 {
    (rate / PAGES_PER_SECOND).clamp(1, LARGEST_PAGE)
}

/// How long to wait after so many events, which took so long, to keep the rate.
pub fn pause(sent: usize, rate: u32, took: Duration) -> Duration {
    Duration::from_secs_f64(sent as f64 / f64::from(rate.max(1))).saturating_sub(took)
}

#[cfg(test)]
mod tests;
