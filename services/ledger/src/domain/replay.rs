//! Replays: recorded events told once more. Who asked, which events, how far it is, how fast it goes, and what the audit has of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, Read, Replay as ReplayAct};
use mesh_events::timestamp;
use mesh_runtime::api::{Caller, Means, Sight};
use serde::{Deserialize, Serialize};

use super::fact::AUDIT;
use super::filter::{Filter, Invalid, Moment, Selection};
use super::keys::entry_id;

/// Kinds of the audit's entries.
const KIND: &str = "replay";
const KIND_READ: &str = "read";
/// Most events that are told before it is noted how far it is.
const LARGEST_PAGE: u32 = 500;
/// How often in a second that is noted, unless the page is the smallest or the largest.
const PAGES_PER_SECOND: u32 = 4;
/// Users in one entry of the audit.
const MOST_NAMES: usize = 100;
/// Users that are told apart.
const MOST_COUNTED: usize = 1000;
/// Longest idempotency key.
const LONGEST_KEY: usize = 200;
/// Longest name of a webhook endpoint.
const LONGEST_NAME: usize = 100;

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

impl Wanted {
    /// Checks what was asked for. Without an end, the range ends with the ledger as it is now.
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
        if let Some(endpoint) = &self.endpoint {
            if !caller.may_write() {
                return Err(Refused::Forbidden(
                    "endpoint: only administrators have events told to a webhook endpoint; leave it out to have them on the bus",
                ));
            }
            if endpoint.is_empty() || endpoint.len() > LONGEST_NAME {
                return Err(Invalid::new(
                    "endpoint",
                    "it is no endpoint; allowed: the name of one, as `smesh webhooks list` shows it",
                )
                .into());
            }
        }
        let audit = |kind: &&String| kind.split('.').next() == Some(AUDIT);
        if let Some(kind) = self.filter.types.iter().find(audit) {
            return Err(Invalid::new(
                "type",
                format!("{kind:?} is not replayed; allowed: types of events, not of the audit"),
            )
            .into());
        }
        let absolute = |moment: Moment| {
            let time = DateTime::from_timestamp_micros(moment.resolve(now));
            // Before any time that a calendar can show, there was nothing.
            Moment::At(time.unwrap_or(DateTime::<Utc>::MIN_UTC))
        };
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

    /// The audit's entries about its beginning, or its end. Each has one id, however often it is told.
    pub fn audit_entries(&self, at_the_end: bool, cluster: &str) -> Vec<AuditEntry> {
        let id =
            |kind: &str, phase: &str| entry_id(&["slurm-mesh/replay/1", &self.id, kind, phase]);
        let phase = if at_the_end { "end" } else { "begin" };
        let who = &self.request.who;
        let micros = if at_the_end { self.ended_at } else { None };
        let at = DateTime::from_timestamp_micros(micros.unwrap_or(self.made_at)).map(timestamp);
        let entry = |kind: &str, act| AuditEntry {
            id: id(kind, phase),
            cluster: cluster.to_owned(),
            kind: kind.to_owned(),
            at,
            service: "ledger".to_owned(),
            act: Some(act),
        };
        let mut act = ReplayAct {
            replay_id: self.id.clone(),
            by: who.name.clone(),
            role: who.role.clone(),
            authentication: who.authentication.clone(),
            filter: self.request.shown_filter(),
            from_seq: self.request.begin().unsigned_abs() + 1,
            to_seq: self.to_seq.unsigned_abs(),
            endpoint: self.request.wanted.endpoint.clone().unwrap_or_default(),
            phase: phase.to_owned(),
            ..ReplayAct::default()
        };
        let mut read = Read {
            reader: who.name.clone(),
            reader_users: who.users.iter().cloned().collect(),
            issuer: who.issuer.clone(),
            subject: who.subject.clone(),
            role: who.role.clone(),
            authentication: who.authentication.clone(),
            request: format!("{} (replay {})", who.request, self.id),
            filter: self.request.shown_filter(),
            phase: phase.to_owned(),
            ..Read::default()
        };
        if at_the_end {
            act.outcome = self.state.as_str().to_owned();
            act.sent = self.sent.unsigned_abs();
            act.cancelled_by = self.cancelled_by.clone().unwrap_or_default();
            act.error = match self.state {
                State::Failed => self.problem.clone(),
                State::Running | State::Done | State::Cancelled => String::new(),
            };
            read.whose = self.shown.users.iter().take(MOST_NAMES).cloned().collect();
            read.whose_count = self.shown.users.len() as u64;
            read.rows = self.shown.rows;
            read.begun = id(KIND_READ, "begin");
        }
        let mut entries = vec![entry(KIND, Act::Replay(act))];
        if !who.sees_only_their_own() {
            entries.push(entry(KIND_READ, Act::Read(read)));
        }
        entries
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
mod tests {
    use mesh_runtime::api::Role;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        rate: 1000,
        max_rate: 5000,
        max_running: 4,
    };

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000, 0).unwrap()
    }

    fn check(wanted: &str, caller: &Caller) -> Result<Request, Refused> {
        let wanted: Wanted = serde_json::from_str(wanted).unwrap();
        wanted.check(caller, 100, &LIMITS, now())
    }

    fn alice() -> Caller {
        Caller::peer("alice", 1000, Role::User)
    }

    #[test]
    fn the_range_ends_with_the_ledger_and_times_are_absolute() {
        let request = check(
            r#"{"filter": {"since": "2h", "type": ["job.*"]}}"#,
            &alice(),
        )
        .unwrap();
        assert_eq!(
            (request.begin(), request.end(), request.rate),
            (0, 100, 1000)
        );
        assert_eq!(
            request.shown_filter(),
            r#"{"type":["job.*"],"since":"2025-11-21T19:20:00Z","to_seq":100}"#
        );
        let request = check(r#"{"filter": {"from_seq": 5, "to_seq": 1000}}"#, &alice()).unwrap();
        assert_eq!((request.begin(), request.end()), (4, 100));
        let stored = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&stored).unwrap(), request);
        assert_eq!(request.who.sight(), alice().sight());
    }

    #[test]
    fn what_is_wrong_or_not_allowed_is_named() {
        let admin = Caller::peer("root", 0, Role::Admin);
        for (wanted, field) in [
            (r#"{"rate": 0}"#, "rate"),
            (r#"{"rate": 5001}"#, "rate"),
            (r#"{"endpoint": ""}"#, "endpoint"),
            (r#"{"filter": {"type": ["audit.read"]}}"#, "type"),
            (r#"{"filter": {"job": "x"}}"#, "job"),
            (r#"{"filter": {"from_seq": 7, "to_seq": 6}}"#, "to_seq"),
        ] {
            let Err(Refused::Invalid(invalid)) = check(wanted, &admin) else {
                panic!("{wanted}")
            };
            assert_eq!(invalid.field, field);
            assert!(invalid.problem.contains("allowed: "), "{invalid}");
        }
        let auditor = Caller::peer("eve", 2, Role::Auditor);
        for caller in [&alice(), &auditor] {
            let refused = check(r#"{"endpoint": "ci"}"#, caller).unwrap_err();
            assert!(matches!(refused, Refused::Forbidden(_)));
            assert!(check("{}", caller).is_ok());
        }
        assert!(check(r#"{"endpoint": "ci"}"#, &admin).is_ok());
        for wrong in [r#"{"colour": 1}"#, r#"{"filter": {"colour": "red"}}"#] {
            assert!(serde_json::from_str::<Wanted>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_audit_has_the_same_entries_however_often_they_are_told() {
        let carol = Caller::peer("carol", 1, Role::User).coordinating("c", "physics");
        let request = check("{}", &carol).unwrap();
        let mut replay = Replay::new("r1".into(), request, now());
        let begun = replay.audit_entries(false, "c");
        for (seq, owner) in [(3, "carol"), (5, "bob"), (9, ""), (10, "bob")] {
            replay.told(seq, owner);
        }
        assert_eq!(replay.audit_entries(false, "c"), begun);
        replay.end(State::Done, String::new(), now());
        assert_eq!((replay.sent, replay.cursor), (4, 100));
        let ended = replay.audit_entries(true, "c");
        let (Some(Act::Replay(act)), Some(Act::Read(read))) = (&ended[0].act, &ended[1].act) else {
            panic!("{ended:?}")
        };
        assert_eq!((act.outcome.as_str(), act.sent), ("done", 4));
        assert_eq!((read.whose.clone(), read.rows), (vec!["bob".to_owned()], 2));
        assert_eq!(read.begun, begun[1].id);
        let ids: BTreeSet<&String> = begun.iter().chain(&ended).map(|entry| &entry.id).collect();
        assert_eq!(ids.len(), 4);
        // Who sees only what is theirs reads nothing of others.
        let own = Replay::new("r2".into(), check("{}", &alice()).unwrap(), now());
        assert_eq!(own.audit_entries(false, "c").len(), 1);
    }

    proptest! {
        #[test]
        fn the_rate_is_kept(rate in 1u32..20_000, took in 0u64..2_000) {
            let sent = page(rate) as usize;
            prop_assert!((1..=500).contains(&sent));
            let took = Duration::from_millis(took);
            let whole = took + pause(sent, rate, took);
            prop_assert!(sent as f64 / whole.as_secs_f64() <= f64::from(rate) * 1.001);
        }
    }
}
