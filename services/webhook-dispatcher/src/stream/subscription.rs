//! Which endpoints an event concerns, without asking each of them.
//!
//! The index has an endpoint under its users, or else under its accounts, or else among those for everybody's events. What
//! it finds is a superset: [`Subscription::takes`] decides.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use event_filter::TypeSet;
use event_filter::filter::{Filter, account_of, user_of};
use mesh_events::{Event, EventType};

/// The events that an endpoint needs.
#[derive(Clone, Debug)]
pub struct Subscription {
    filter: Arc<Filter>,
    types: TypeSet,
    /// Types that it needs besides those of its filter, whoever and whatever they concern except their user.
    companions: TypeSet,
    /// Events stored before its creation are not for it.
    since: DateTime<Utc>,
}

impl Subscription {
    /// The events of a filter, and companions.
    pub fn new(filter: Arc<Filter>, companions: TypeSet, since: DateTime<Utc>) -> Self {
        Self {
            types: filter.types() | companions,
            filter,
            companions,
            since,
        }
    }

    /// Subjects that cover these events.
    pub fn subjects(&self) -> Vec<String> {
        self.filter.subjects(self.companions)
    }

    /// True if the endpoint needs an event that was stored at this time.
    pub fn takes(&self, kind: EventType, event: &Event, stored: DateTime<Utc>) -> bool {
        if !self.types.contains(kind) || stored < self.since {
            return false;
        }
        // A companion ends or completes what came before: the job may have changed its partition since.
        if self.companions.contains(kind) {
            self.filter.is_of_users(kind, event)
        } else {
            self.filter.concerns(kind, event)
        }
    }
}

/// Endpoints by what their filters select.
#[derive(Debug)]
pub struct Index<T> {
    users: HashMap<String, BTreeMap<u64, Arc<T>>>,
    accounts: HashMap<String, BTreeMap<u64, Arc<T>>>,
    others: BTreeMap<u64, Arc<T>>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self {
            users: HashMap::new(),
            accounts: HashMap::new(),
            others: BTreeMap::new(),
        }
    }
}

impl<T> Index<T> {
    /// Adds an endpoint under a key of its own.
    pub fn insert(&mut self, key: u64, subscription: &Subscription, endpoint: &Arc<T>) {
        let filter = &subscription.filter;
        let (by, words) = if !filter.users().is_empty() {
            (&mut self.users, filter.users())
        } else if !filter.accounts().is_empty() && subscription.companions.is_empty() {
            (&mut self.accounts, filter.accounts())
        } else {
            self.others.insert(key, Arc::clone(endpoint));
            return;
        };
        for word in words {
            let endpoints = by.entry(word.clone()).or_default();
            endpoints.insert(key, Arc::clone(endpoint));
        }
    }

    /// Removes an endpoint.
    pub fn remove(&mut self, key: u64, subscription: &Subscription) {
        self.others.remove(&key);
        let filter = &subscription.filter;
        for (by, words) in [
            (&mut self.users, filter.users()),
            (&mut self.accounts, filter.accounts()),
        ] {
            for word in words {
                if let Some(endpoints) = by.get_mut(word) {
                    endpoints.remove(&key);
                    if endpoints.is_empty() {
                        by.remove(word);
                    }
                }
            }
        }
    }

    /// The endpoints that an event may concern, each once.
    pub fn candidates(&self, kind: EventType, event: &Event) -> impl Iterator<Item = &Arc<T>> {
        let by_user = user_of(kind, event).and_then(|user| self.users.get(user));
        let by_account = account_of(event).and_then(|account| self.accounts.get(account));
        let named = by_user.into_iter().chain(by_account);
        named.flat_map(BTreeMap::values).chain(self.others.values())
    }

    /// Every endpoint, perhaps more than once.
    pub fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        let named = self.users.values().chain(self.accounts.values());
        named.flat_map(BTreeMap::values).chain(self.others.values())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use chrono::TimeDelta;
    use event_filter::{TypePattern, sample};
    use mesh_events::proto::mesh::event::v1::Owner;
    use proptest::prelude::*;

    use super::*;

    const TYPES: [&str; 4] = ["job.started", "job.*", "node.*", "cost.finalized"];

    fn event(kind: EventType, user: &str, account: &str) -> Event {
        let mut event = sample::event(kind);
        event.owner = Some(Owner {
            user: user.to_owned(),
            account: account.to_owned(),
            ..event.owner.unwrap_or_default()
        });
        event
    }

    proptest! {
        /// The index finds the same endpoints as asking each of them, also after some were removed.
        #[test]
        fn the_index_finds_every_endpoint_that_takes_an_event(
            endpoints in prop::collection::vec((
                prop::sample::select(TYPES.to_vec()), prop::collection::btree_set("[ab]", 0..3),
                prop::collection::btree_set("[xy]", 0..2), any::<bool>(), any::<bool>(),
            ), 0..20),
            user in "[abc]", account in "[xyz]",
            kind in prop::sample::select(vec![EventType::JobStarted, EventType::JobCompleted, EventType::CostFinalized, EventType::NodeDown]),
        ) {
            let now = Utc::now();
            let event = event(kind, &user, &account);
            let mut index = Index::default();
            let mut expected = BTreeSet::new();
            let mut removed = Vec::new();
            for (key, (types, users, accounts, has_companions, is_removed)) in (0..).zip(&endpoints) {
                let pattern: TypePattern = types.parse().unwrap();
                let users: Vec<String> = users.iter().cloned().collect();
                let accounts: Vec<String> = accounts.iter().cloned().collect();
                let filter = Filter::new(&[pattern], &users, &[]).of_accounts(&accounts);
                let companions = has_companions.then_some(EventType::CostFinalized).into_iter().collect();
                let subscription = Subscription::new(Arc::new(filter), companions, now - TimeDelta::hours(1));
                index.insert(key, &subscription, &Arc::new((key, subscription.clone())));
                if *is_removed {
                    removed.push((key, subscription));
                } else if subscription.takes(kind, &event, now) {
                    expected.insert(key);
                }
                prop_assert!(!index.all().any(|one| one.1.takes(kind, &event, now - TimeDelta::hours(2))), "from before");
            }
            for (key, subscription) in &removed {
                index.remove(*key, subscription);
            }
            let found: Vec<u64> = index.candidates(kind, &event)
                .filter(|one| one.1.takes(kind, &event, now)).map(|one| one.0).collect();
            prop_assert_eq!(found.len(), expected.len(), "each once");
            prop_assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }
}
