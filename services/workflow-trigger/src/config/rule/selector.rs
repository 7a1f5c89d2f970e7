//! `[on]` of a rule.

use std::time::Duration;

use chrono::Utc;
use chrono_tz::Tz;
use event_filter::{Expression, Filter, TypePattern};
use mesh_events::EventType;
use serde::Deserialize;

use super::Check;
use crate::domain::rule::{
    EventOwners, EventSelector, RuleAuthor, RuleId, SourceSelector, fires_rules,
};
use crate::domain::schedule::{MissedInstants, Schedule};
use crate::domain::source::PUBLISHED;

/// A rule that fires much later would surprise its owner.
const MAX_JITTER: Duration = Duration::from_secs(3_600);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OnConfig {
    manual: bool,
    pub(super) source: String,
    cron: String,
    zone: String,
    missed: String,
    #[serde(with = "humantime_serde")]
    jitter: Duration,
    pub(super) types: Vec<String>,
    pub(super) users: Vec<String>,
    pub(super) accounts: Vec<String>,
    pub(super) partitions: Vec<String>,
    pub(super) clusters: Vec<String>,
    when: String,
}

impl Check<'_> {
    pub(super) fn selector(&mut self, on: OnConfig, rule: &RuleId) -> Option<EventSelector> {
        let owner = rule.owner.as_str();
        self.of_owner_only(&on, owner);
        let is_of_events = !on.types.is_empty() && on.source.is_empty();
        let triggers = [
            is_of_events,
            !on.source.is_empty(),
            !on.cron.is_empty(),
            on.manual,
        ];
        if triggers.iter().filter(|is_set| **is_set).count() != 1 {
            self.fault(
                "on",
                "exactly one of types (the event types that fire the rule), source, cron and manual = true",
            );
            return None;
        }
        if !on.source.is_empty() {
            self.on_only(&on, "source", &["users", "when"]);
            return Some(EventSelector::Source(self.source(on, owner)));
        }
        if is_of_events {
            self.on_only(
                &on,
                "types",
                &["users", "accounts", "partitions", "clusters", "when"],
            );
            return self.events(&on, owner);
        }
        if on.manual {
            self.on_only(&on, "manual", &["when"]);
            let when = self.when(&on.when, Expression::with_data);
            return Some(EventSelector::Manual { when });
        }
        self.on_only(&on, "cron", &["zone", "missed", "jitter"]);
        self.schedule(&on, rule).map(EventSelector::Cron)
    }

    /// Refuses what administrators may, and a rule that its owner made may not.
    fn of_owner_only(&mut self, on: &OnConfig, owner: &str) {
        if self.context.author == RuleAuthor::Administrator {
            return;
        }
        if on.users.iter().any(|user| user != owner) {
            self.fault(
                "on.users",
                "only your own events; administrators may name others",
            );
        }
        // The same name may be another person there.
        let cluster = self.context.cluster;
        if on.clusters.iter().any(|name| name != cluster) {
            self.fault(
                "on.clusters",
                format!("only {cluster:?}; administrators may name others"),
            );
        }
    }

    /// Keys that the source of events does not have.
    fn on_only(&mut self, on: &OnConfig, source: &str, allowed: &[&str]) {
        for (key, is_set) in [
            ("users", !on.users.is_empty()),
            ("accounts", !on.accounts.is_empty()),
            ("partitions", !on.partitions.is_empty()),
            ("clusters", !on.clusters.is_empty()),
            ("when", !on.when.is_empty()),
            ("zone", !on.zone.is_empty()),
            ("missed", !on.missed.is_empty()),
            ("jitter", !on.jitter.is_zero()),
        ] {
            if is_set && !allowed.contains(&key) {
                self.fault(&format!("on.{key}"), format!("not with on.{source}"));
            }
        }
    }

    fn source(&mut self, on: OnConfig, owner: &str) -> SourceSelector {
        let sources = self.context.sources;
        if on.source != PUBLISHED && !sources.contains(&on.source.as_str()) {
            let names = [&[PUBLISHED][..], sources].concat().join(", ");
            self.fault(
                "on.source",
                format!("no source {:?}; there are {names}", on.source),
            );
        }
        SourceSelector {
            owners: owners(&on.users, owner),
            when: self.when(&on.when, Expression::with_data),
            source: on.source,
            types: on.types,
        }
    }

    fn events(&mut self, on: &OnConfig, owner: &str) -> Option<EventSelector> {
        let mut patterns = Vec::new();
        for text in &on.types {
            if let Ok(kind) = text.parse::<EventType>()
                && !fires_rules(kind)
            {
                self.fault(
                    "on.types",
                    format!("no rule fires on {kind}, which rules publish"),
                );
            }
            match text.parse::<TypePattern>() {
                Ok(pattern) => patterns.push(pattern),
                Err(error) => self.fault("on.types", error),
            }
        }
        let clusters = match on.clusters.as_slice() {
            [] => vec![self.context.cluster.to_owned()],
            clusters => clusters.to_vec(),
        };
        let filter = Filter::new(&patterns, &[], &on.partitions)
            .of_accounts(&on.accounts)
            .in_clusters(&clusters);
        let filter = match self.when(&on.when, Expression::new) {
            Some(when) => filter
                .when(when)
                .map_err(|error| self.fault("on.when", error))
                .ok()?,
            None => filter,
        };
        let owners = match (owners(&on.users, owner), self.context.author) {
            (EventOwners::Users(users), RuleAuthor::Owner) => EventOwners::Only(users),
            (owners, _) => owners,
        };
        Some(EventSelector::Bus { filter, owners })
    }

    fn schedule(&mut self, on: &OnConfig, rule: &RuleId) -> Option<Schedule> {
        let zone = match on.zone.as_str() {
            "" => Ok(Tz::UTC),
            zone => zone.parse::<Tz>(),
        };
        if zone.is_err() {
            self.fault(
                "on.zone",
                "a zone of the IANA database such as Europe/Berlin",
            );
        }
        let missed = match on.missed.as_str() {
            "" => Ok(MissedInstants::default()),
            missed => missed.parse(),
        };
        let missed = missed
            .map_err(|error| self.fault("on.missed", error))
            .ok()?;
        let jitter = Some(on.jitter).filter(|jitter| *jitter <= MAX_JITTER);
        let jitter = jitter.and_then(|jitter| u32::try_from(jitter.as_secs()).ok());
        if jitter.is_none() {
            self.fault("on.jitter", "at most 1h");
        }
        let schedule = Schedule::new(&on.cron, zone.ok()?, missed, Utc::now());
        let schedule = schedule
            .map_err(|error| self.fault("on.cron", error))
            .ok()?;
        let seed = format!("{}/{}/{}", self.context.cluster, rule.owner, rule.name);
        Some(schedule.with_jitter(jitter?, &seed))
    }

    fn when(
        &mut self,
        text: &str,
        parse: fn(&str) -> Result<Expression, event_filter::InvalidExpression>,
    ) -> Option<Expression> {
        if text.is_empty() {
            return None;
        }
        parse(text)
            .map_err(|error| self.fault("on.when", error))
            .ok()
    }
}

fn owners(users: &[String], owner: &str) -> EventOwners {
    match users {
        [] => EventOwners::Users([owner.to_owned()].into()),
        [all] if all == "*" => EventOwners::All,
        users => EventOwners::Users(users.iter().cloned().collect()),
    }
}
