//! Losses of access that slurmdbd's log does not explain: an answer may lack a user by mistake. A loss is accepted if it persists.
//! Meanwhile the changes of all others are published.

use std::collections::{BTreeMap, BTreeSet};

use super::access::{Access, AccessByEntity, Entity};
use super::access_changes::AccessDiff;

/// Number of consecutive polls after which a suspected loss is accepted.
const CONFIRMATIONS: u32 = 10;

/// Suspected users and accounts: the access they seem to have, and how often that was seen.
#[derive(Debug, Default)]
pub(super) struct SuspectedRemovals(BTreeMap<Entity, (Access, u32)>);

impl SuspectedRemovals {
    /// Removes losses that are not accepted yet from the diff, as if the published access were current. Returns the log entries that are
    /// needed once they are accepted.
    pub(super) fn withhold(
        &mut self,
        published: &AccessByEntity,
        access_diff: &mut AccessDiff<'_>,
    ) -> BTreeSet<u64> {
        let before = std::mem::take(&mut self.0);
        for entity in access_diff.suspected() {
            let seems = access_diff.now.get(&entity).cloned().unwrap_or_default();
            let seen = match before.get(&entity) {
                Some((before, seen)) if *before == seems => seen + 1,
                _ => 1,
            };
            if seen < CONFIRMATIONS {
                self.0.insert(entity, (seems, seen));
            }
        }
        if before.is_empty() && !self.0.is_empty() {
            tracing::warn!(
                entities = self.0.len(),
                "suspected removal of access, waiting for confirmation"
            );
        }
        for entity in self.0.keys() {
            match published.get(entity) {
                Some(access) => access_diff.now.insert(entity.clone(), access.clone()),
                None => access_diff.now.remove(entity),
            };
        }
        let mut needed = BTreeSet::new();
        access_diff.changes.retain(|(change, by)| {
            let withheld = self.0.contains_key(&change.entity);
            needed.extend(by.filter(|_| withheld).map(|entry| entry.id));
            !withheld
        });
        needed
    }

    /// Whether there is no suspected loss.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use slurm_client::Transaction;
    use slurm_types::UnixTime;

    use super::*;
    use crate::users::access::Association;
    use crate::users::actor::find_transaction;
    use crate::users::diff::{Kind, diff};

    fn of(accounts: &[(&str, u32)]) -> Access {
        let association = |(account, id): &(&str, u32)| Association {
            id: *id,
            account: (*account).to_owned(),
            ..Association::default()
        };
        Access {
            associations: accounts.iter().map(association).collect(),
            ..Access::default()
        }
    }

    fn user(name: &str) -> Entity {
        Entity::User(name.to_owned())
    }

    fn access_diff<'a>(
        published: &AccessByEntity,
        now: &AccessByEntity,
        log: &'a [Transaction],
    ) -> AccessDiff<'a> {
        let explained = |change| {
            let by = find_transaction(&change, log);
            (change, by)
        };
        AccessDiff {
            now: now.clone(),
            changes: diff(published, now).into_iter().map(explained).collect(),
        }
    }

    fn summaries(access_diff: &AccessDiff<'_>) -> Vec<(String, Kind)> {
        let summary = |(change, _): &(crate::users::diff::Change, _)| {
            (change.entity.to_string(), change.kind)
        };
        access_diff.changes.iter().map(summary).collect()
    }

    #[test]
    fn only_suspected_removals_wait() {
        let published = AccessByEntity::from([
            (user("alice"), of(&[("ml", 1), ("tiny", 2)])),
            (user("bob"), of(&[("ml", 3)])),
        ]);
        // Alice lost both accounts, one of them according to the log; bob gained one.
        let now = AccessByEntity::from([(user("bob"), of(&[("ml", 3), ("tiny", 4)]))]);
        let log = [Transaction {
            id: 70,
            time: UnixTime::from_secs(1_000),
            action: "Remove Associations".to_owned(),
            actor: "root".to_owned(),
            text: "id_assoc=2|".to_owned(),
        }];
        let (mut suspected_removals, mut published) = (SuspectedRemovals::default(), published);
        let mut seen = access_diff(&published, &now, &log);
        assert_eq!(
            suspected_removals.withhold(&published, &mut seen),
            BTreeSet::from([70])
        );
        assert_eq!(summaries(&seen), [("user/bob".to_owned(), Kind::Granted)]);
        assert_eq!(seen.now[&user("alice")], published[&user("alice")]);
        published = seen.now;
        for poll in 2..=CONFIRMATIONS {
            assert!(!suspected_removals.is_empty(), "{poll}");
            let mut seen = access_diff(&published, &now, &log);
            let needed = suspected_removals.withhold(&published, &mut seen);
            assert_eq!(needed.is_empty(), poll == CONFIRMATIONS);
            assert_eq!(seen.changes.is_empty(), poll < CONFIRMATIONS);
            if poll == CONFIRMATIONS {
                let both = vec![("user/alice".to_owned(), Kind::Revoked); 2];
                assert_eq!(summaries(&seen), both);
                assert_eq!(seen.now, now);
            }
        }
        assert!(suspected_removals.is_empty());
    }

    #[test]
    fn a_user_who_reappears_lost_nothing() {
        let published = AccessByEntity::from([(user("alice"), of(&[("ml", 1)]))]);
        let mut suspected_removals = SuspectedRemovals::default();
        for _ in 0..2 {
            for _ in 1..CONFIRMATIONS {
                let mut seen = access_diff(&published, &AccessByEntity::new(), &[]);
                suspected_removals.withhold(&published, &mut seen);
                assert_eq!((summaries(&seen).len(), &seen.now), (0, &published));
            }
            let mut seen = access_diff(&published, &published, &[]);
            suspected_removals.withhold(&published, &mut seen);
            assert!(suspected_removals.is_empty());
        }
    }
}
