//! Selects events by patterns and a condition.
//!
//! A filter has several parts, all of which must match. An empty part matches everything:
//!
//! - types: `job.failed`, `job.*` or `*`. Wildcards exclude baselines, which describe objects from before the capture
//!   began. Baselines are sent if named.
//! - users: the owner of the job, cost or quota. Nodes and capture have no owner and do not match if users are given.
//! - accounts: the account charged, or affected by a change of a user.
//! - clusters: where events of several clusters come.
//! - a condition: an expression over the event's fields. It does not match events without those fields.
//! - partitions: any of the job's partitions (a pending job may name several), or of the node's. Users and capture
//!   have none.
//!
//! The subjects select as much as possible, so that the server sends less;
//! [`Filter::matches`] decides. Partitions are never selected by subject: a pending job's subject has the whole list in one token, and a cost's
//! subject has the account in that position.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use mesh_events::proto::mesh::event::v1::{Event, event::Payload};
use mesh_events::{Category, EventType, UnknownEventType, subject};

use crate::decoded_event::DecodedEvent;
use crate::expression::Expression;
use crate::routine::is_routine;
use crate::type_set::TypeSet;

/// Maximum subjects of a read. Beyond it whole categories are requested, as the server compares every subject
/// with each message.
const MAX_SUBJECTS: usize = 32;

/// `job.failed`, `job.*` or `*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypePattern {
    /// Every type.
    All,
    /// Every type of a category.
    Category(Category),
    /// One type.
    One(EventType),
}

impl FromStr for TypePattern {
    type Err = UnknownEventType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(Self::All);
        }
        match text.strip_suffix(".*") {
            Some(word) => Category::ALL
                .into_iter()
                .find(|category| category.as_str() == word)
                .map(Self::Category)
                .ok_or_else(|| UnknownEventType(text.to_owned())),
            None => Ok(Self::One(text.parse()?)),
        }
    }
}

impl TypePattern {
    fn matches(self, kind: EventType) -> bool {
        match self {
            Self::All => !is_baseline(kind),
            Self::Category(category) => category == kind.category() && !is_baseline(kind),
            Self::One(one) => one == kind,
        }
    }
}

fn is_baseline(kind: EventType) -> bool {
    matches!(kind, EventType::JobBaseline | EventType::NodeBaseline)
}

/// Selects events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    types: TypeSet,
    users: BTreeSet<String>,
    partitions: BTreeSet<String>,
    clusters: BTreeSet<String>,
    accounts: BTreeSet<String>,
    condition: Option<Expression>,
    /// If set, routine events are excluded. Shorter waits than this count as no wait.
    routine_below: Option<Duration>,
}

/// A condition that no event can meet.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "cost is known of cost.* events only: add them to types, e.g. types = [\"cost.finalized\"]"
)]
pub struct CostUnknown;

impl Filter {
    /// A filter with these patterns. Without patterns it selects every type.
    pub fn new(types: &[TypePattern], users: &[String], partitions: &[String]) -> Self {
        let all = [TypePattern::All];
        let patterns = if types.is_empty() { &all } else { types };
        Self {
            types: EventType::ALL
                .iter()
                .copied()
                .filter(|kind| patterns.iter().any(|p| p.matches(*kind)))
                .collect(),
            users: users.iter().cloned().collect(),
            partitions: partitions.iter().cloned().collect(),
            clusters: BTreeSet::new(),
            accounts: BTreeSet::new(),
            condition: None,
            routine_below: None,
        }
    }

    /// Excludes routine events. For endpoints that name no types.
    #[must_use]
    pub fn without_routine(mut self, threshold: Duration) -> Self {
        self.routine_below = Some(threshold);
        self
    }

    /// True if routine events are excluded.
    pub const fn excludes_routine(&self) -> bool {
        self.routine_below.is_some()
    }

    /// Selects these clusters only. Empty: all.
    #[must_use]
    pub fn in_clusters(mut self, clusters: &[String]) -> Self {
        self.clusters = clusters.iter().cloned().collect();
        self
    }

    /// Selects these accounts only. Empty: all.
    #[must_use]
    pub fn of_accounts(mut self, accounts: &[String]) -> Self {
        self.accounts = accounts.iter().cloned().collect();
        self
    }

    /// Adds a condition.
    ///
    /// # Errors
    /// If it refers to cost and no selected type carries one: a job's own events do not.
    pub fn when(mut self, condition: Expression) -> Result<Self, CostUnknown> {
        let costs = self
            .types
            .iter()
            .any(|kind| kind.category() == Category::Cost);
        if condition.mentions("cost") && !costs {
            return Err(CostUnknown);
        }
        self.condition = Some(condition);
        Ok(self)
    }

    /// True if no event can match: users are given, and only types without an owner.
    pub fn is_empty(&self) -> bool {
        self.subjects(TypeSet::default()).is_empty()
    }

    /// The types that were requested.
    pub const fn types(&self) -> TypeSet {
        self.types
    }

    /// True if the type was requested.
    pub fn selects(&self, kind: EventType) -> bool {
        self.types.contains(kind)
    }

    /// True if the event is selected.
    pub fn matches(&self, kind: EventType, event: &DecodedEvent) -> bool {
        let is_routine = |threshold| is_routine(kind, event, threshold);
        self.selects(kind)
            && self.concerns(kind, event)
            && self.meets(event)
            && !self.routine_below.is_some_and(is_routine)
    }

    /// True if the condition holds, or there is none.
    pub fn meets(&self, event: &DecodedEvent) -> bool {
        self.condition
            .as_ref()
            .is_none_or(|condition| condition.holds(event.fields()))
    }

    /// True if the cluster, user, account and partition match, whatever the type.
    pub fn concerns(&self, kind: EventType, event: &Event) -> bool {
        (self.clusters.is_empty() || self.clusters.contains(&event.cluster))
            && (self.accounts.is_empty()
                || account_of(event).is_some_and(|account| self.accounts.contains(account)))
            && self.is_of_users(kind, event)
            && (self.partitions.is_empty()
                || partitions_of(event)
                    .iter()
                    .any(|partition| self.partitions.contains(*partition)))
    }

    /// True if the user matches, as the subjects say it too.
    pub fn is_of_users(&self, kind: EventType, event: &Event) -> bool {
        self.users.is_empty() || user_of(kind, event).is_some_and(|user| self.users.contains(user))
    }

    /// The users it selects. Empty: all.
    pub const fn users(&self) -> &BTreeSet<String> {
        &self.users
    }

    /// The accounts it selects. Empty: all.
    pub const fn accounts(&self) -> &BTreeSet<String> {
        &self.accounts
    }

    /// Subjects that cover all matching events and the additional types. They do not overlap, as the server rejects
    /// overlapping filters.
    pub fn subjects(&self, besides: TypeSet) -> Vec<String> {
        let types = self.types | besides;
        let exact = self.per_type(types);
        if exact.len() <= MAX_SUBJECTS {
            return exact;
        }
        let categories: BTreeSet<_> = types.iter().map(|kind| kind.category()).collect();
        categories
            .into_iter()
            .map(|category| format!("slurm.*.{}.>", category.as_str()))
            .collect()
    }

    fn per_type(&self, types: TypeSet) -> Vec<String> {
        let mut subjects = Vec::new();
        for category in Category::ALL {
            let of_category = |kind: &EventType| kind.category() == category && !is_baseline(*kind);
            let all = EventType::ALL.iter().copied().filter(of_category).count();
            let selected: Vec<_> = types
                .iter()
                .filter(|kind| kind.category() == category)
                .collect();
            let events: Vec<&str> =
                if selected.iter().filter(|kind| of_category(kind)).count() == all {
                    vec!["*"]
                } else {
                    selected.into_iter().map(|kind| kind.event()).collect()
                };
            for event in events {
                let prefix = format!("slurm.*.{}.{event}", category.as_str());
                match category {
                    _ if self.users.is_empty() => subjects.push(format!("{prefix}.>")),
                    Category::Job | Category::Queue | Category::Cost => {
                        subjects.extend(
                            self.users
                                .iter()
                                .map(|user| format!("{prefix}.*.{}", subject::token(user))),
                        );
                    }
                    Category::User => subjects.extend(
                        self.users
                            .iter()
                            .map(|user| format!("{prefix}.{}", subject::token(user))),
                    ),
                    // These have no owner and never match.
                    Category::Node | Category::Capture => {}
                }
            }
        }
        subjects
    }
}

/// The user that an event concerns.
pub fn user_of(kind: EventType, event: &Event) -> Option<&str> {
    match (kind.category(), &event.payload) {
        (Category::User, Some(Payload::User(payload))) => Some(&payload.user),
        (Category::Node | Category::Capture, _) => None,
        _ => event.owner.as_ref().map(|owner| owner.user.as_str()),
    }
}

/// The account that an event concerns.
pub fn account_of(event: &Event) -> Option<&str> {
    match &event.payload {
        Some(Payload::User(payload)) if !payload.account.is_empty() => Some(&payload.account),
        _ => event.owner.as_ref().map(|owner| owner.account.as_str()),
    }
}

fn partitions_of(event: &Event) -> Vec<&str> {
    match (event.job(), &event.payload) {
        (Some(job), _) => job.partition.split(',').collect(),
        (None, Some(Payload::Node(payload))) => payload
            .node
            .iter()
            .flat_map(|node| node.partitions.iter().map(String::as_str))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::event::v1::Owner;
    use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
    use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
    use proptest::prelude::*;

    use super::*;

    fn filter(types: &[&str], users: &[&str], partitions: &[&str]) -> Filter {
        let types: Vec<TypePattern> = types.iter().map(|text| text.parse().unwrap()).collect();
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        Filter::new(&types, &words(users), &words(partitions))
    }

    fn job(kind: EventType, user: &str, partition: &str) -> DecodedEvent {
        let event = Event {
            cluster: "c".into(),
            r#type: kind.to_string(),
            owner: Some(Owner {
                user: user.into(),
                ..Default::default()
            }),
            payload: Some(Payload::Job(JobEvent {
                job: Some(Job {
                    partition: partition.into(),
                    ..Default::default()
                }),
                ..Default::default()
            })),
            ..Default::default()
        };
        event.into()
    }

    /// True if a NATS subject filter matches a subject.
    fn covers(filter: &str, subject: &str) -> bool {
        let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
        loop {
            match (filter.next(), subject.next()) {
                (Some(">"), Some(_)) | (None, None) => return true,
                (Some(wanted), Some(token)) if wanted == "*" || wanted == token => {}
                _ => return false,
            }
        }
    }

    #[test]
    fn subjects_say_what_they_can() {
        assert_eq!(
            filter(&["job.completed"], &["alice"], &[]).subjects(TypeSet::default()),
            ["slurm.*.job.completed.*.alice"]
        );
        assert_eq!(
            filter(&["job.*"], &[], &["gpu"]).subjects(TypeSet::default()),
            ["slurm.*.job.*.>"]
        );
        assert_eq!(
            filter(&["user.login", "node.down"], &["a.b"], &[]).subjects(TypeSet::default()),
            ["slurm.*.user.login.a_2Eb"],
            "nodes have no owner"
        );
        assert_eq!(
            filter(&["job.started"], &[], &[])
                .subjects([EventType::CostEstimated].into_iter().collect()),
            ["slurm.*.job.started.>", "slurm.*.cost.estimated.>"]
        );
    }

    #[test]
    fn too_many_subjects_become_categories() {
        let users: Vec<String> = (0..20).map(|n| format!("user{n}")).collect();
        let users: Vec<&str> = users.iter().map(String::as_str).collect();
        let subjects = filter(
            &["job.failed", "job.timeout", "cost.finalized"],
            &users,
            &[],
        )
        .subjects(TypeSet::default());
        assert_eq!(subjects, ["slurm.*.job.>", "slurm.*.cost.>"]);
    }

    #[test]
    fn baselines_come_only_when_named() {
        let event = job(EventType::JobBaseline, "alice", "gpu");
        assert!(!filter(&["job.*"], &[], &[]).matches(EventType::JobBaseline, &event));
        assert!(!filter(&[], &[], &[]).matches(EventType::JobBaseline, &event));
        assert!(filter(&["job.baseline"], &[], &[]).matches(EventType::JobBaseline, &event));
    }

    #[test]
    fn a_pending_job_in_several_partitions_is_in_each() {
        let event = job(EventType::JobHeld, "alice", "debug,gpu");
        assert!(filter(&["job.held"], &[], &["gpu"]).matches(EventType::JobHeld, &event));
        assert!(!filter(&["job.held"], &[], &["gp"]).matches(EventType::JobHeld, &event));
    }

    #[test]
    fn nodes_match_by_partition_and_never_by_user() {
        let node = Node {
            name: "n1".into(),
            partitions: vec!["gpu".into()],
            ..Default::default()
        };
        let event = DecodedEvent::from(Event {
            r#type: "node.down".into(),
            payload: Some(Payload::Node(NodeEvent {
                node: Some(node),
                ..Default::default()
            })),
            ..Default::default()
        });
        assert!(filter(&["node.*"], &[], &["gpu"]).matches(EventType::NodeDown, &event));
        assert!(!filter(&["node.*"], &[], &["cpu"]).matches(EventType::NodeDown, &event));
        assert!(!filter(&["node.*"], &["alice"], &[]).matches(EventType::NodeDown, &event));
    }

    #[test]
    fn clusters_accounts_and_conditions_narrow_it_down() {
        let event = crate::sample::event(EventType::JobFailed).into();
        let all = || filter(&["job.*"], &[], &[]);
        let matches = |filter: Filter| filter.matches(EventType::JobFailed, &event);
        let words = |word: &str| vec![word.to_owned()];
        assert!(matches(all().in_clusters(&words("example"))));
        assert!(!matches(all().in_clusters(&words("other"))));
        assert!(matches(all().of_accounts(&words("physics"))));
        assert!(!matches(all().of_accounts(&words("chemistry"))));
        let when = |text: &str| all().when(Expression::new(text).unwrap()).unwrap();
        assert!(matches(when("job.exit_code == 1")));
        assert!(!matches(when("job.exit_code == 2")));
        assert!(
            !matches(when("node.name == 'n1'")),
            "a job's event has no node"
        );
        let cost = Expression::new("cost.total > 10").unwrap();
        assert_eq!(all().when(cost.clone()), Err(CostUnknown));
        assert!(filter(&["cost.finalized"], &[], &[]).when(cost).is_ok());
    }

    #[test]
    fn unknown_patterns_are_refused() {
        for text in ["job", "jobs.*", "job.exploded", "", "*.*", "job.c*"] {
            assert!(text.parse::<TypePattern>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_matches_is_subscribed_and_no_two_subjects_overlap(
            types in prop::collection::vec(prop::sample::select(EventType::ALL), 0..8),
            users in prop::collection::vec("[a-c.]{1,2}", 0..6),
            partitions in prop::collection::vec("[p-r]", 0..3),
            kind in prop::sample::select(EventType::ALL),
            user in "[a-c.]{1,2}",
            partition in "[p-r](,[p-r])?",
        ) {
            let patterns: Vec<_> = types.into_iter().map(TypePattern::One).collect();
            let filter = Filter::new(&patterns, &users, &partitions);
            let subjects = filter.subjects(TypeSet::default());
            for (i, a) in subjects.iter().enumerate() {
                for b in &subjects[i + 1..] {
                    prop_assert!(!covers(a, b) && !covers(b, a), "{a} and {b} overlap");
                }
            }
            prop_assume!(kind.category() == Category::Job);
            let event = job(kind, &user, &partition);
            if filter.matches(kind, &event) {
                let subject = subject::of(&event).unwrap();
                prop_assert!(subjects.iter().any(|filter| covers(filter, &subject)), "{subject} is not in {subjects:?}");
            }
        }
    }
}
