//! Who lost something although slurmdbd's log does not say so: an answer may leave somebody out. They are believed to have lost it if it
//! stays so; of everybody else is told meanwhile what there is to tell.

use std::collections::{BTreeMap, BTreeSet};

use super::access::{Access, AccessByEntity, Entity};
use super::access_changes::AccessDiff;

/// What is doubted is believed after so many looks in a row.
const LOOKS: u32 = 10;

/// Who is doubted: what they seem to have, and how often that was seen.
#[derive(Debug, Default)]
pub(super) struct SuspectedRemovals(BTreeMap<Entity, (Access, u32)>);

impl SuspectedRemovals {
    /// Takes those whose loss is not believed yet out of the news, as if they had what was told last. Returns the entries of the log that
    /// will be needed when it is.
    pub(super) fn withhold(
        &mut self,
        told: &AccessByEntity,
        news: &mut AccessDiff<'_>,
    ) -> BTreeSet<u64> {
        let before = std::mem::take(&mut self.0);
        for entity in news.doubtful() {
            let seems = news.now.get(&entity).cloned().unwrap_or_default();
            let seen = match before.get(&entity) {
                Some((before, seen)) if *before == seems => seen + 1,
                _ => 1,
            };
            if seen < LOOKS {
                self.0.insert(entity, (seems, seen));
            }
        }
        if before.is_empty() && !self.0.is_empty() {
            tracing::warn!(
                who = self.0.len(),
                "accounting shows less than before, and its log does not say why; not believed yet"
            );
        }
        for entity in self.0.keys() {
            match told.get(entity) {
                Some(access) => news.now.insert(entity.clone(), access.clone()),
                None => news.now.remove(entity),
            };
        }
        let mut needed = BTreeSet::new();
        news.changes.retain(|(change, by)| {
            let withheld = self.0.contains_key(&change.entity);
            needed.extend(by.filter(|_| withheld).map(|entry| entry.id));
            !withheld
        });
        needed
    }

    /// Whether nobody is doubted.
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
    use crate::users::actor::who_did;
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

    fn news<'a>(
        told: &AccessByEntity,
        now: &AccessByEntity,
        log: &'a [Transaction],
    ) -> AccessDiff<'a> {
        let explained = |change| {
            let by = who_did(&change, log);
            (change, by)
        };
        AccessDiff {
            now: now.clone(),
            changes: diff(told, now).into_iter().map(explained).collect(),
        }
    }

    fn words(news: &AccessDiff<'_>) -> Vec<(String, Kind)> {
        let word = |(change, _): &(crate::users::diff::Change, _)| {
            (change.entity.to_string(), change.kind)
        };
        news.changes.iter().map(word).collect()
    }

    #[test]
    fn only_who_is_doubted_waits() {
        let told = AccessByEntity::from([
            (user("alice"), of(&[("ml", 1), ("tiny", 2)])),
            (user("bob"), of(&[("ml", 3)])),
        ]);
        // Alice lost both accounts, one of them by the log; bob got one more.
        let now = AccessByEntity::from([(user("bob"), of(&[("ml", 3), ("tiny", 4)]))]);
        let log = [Transaction {
            id: 70,
            time: UnixTime::from_secs(1_000),
            action: "Remove Associations".to_owned(),
            actor: "root".to_owned(),
            text: "id_assoc=2|".to_owned(),
        }];
        let (mut doubts, mut told) = (SuspectedRemovals::default(), told);
        let mut seen = news(&told, &now, &log);
        assert_eq!(doubts.withhold(&told, &mut seen), BTreeSet::from([70]));
        assert_eq!(words(&seen), [("user/bob".to_owned(), Kind::Granted)]);
        assert_eq!(seen.now[&user("alice")], told[&user("alice")]);
        told = seen.now;
        for look in 2..=LOOKS {
            assert!(!doubts.is_empty(), "{look}");
            let mut seen = news(&told, &now, &log);
            let needed = doubts.withhold(&told, &mut seen);
            assert_eq!(needed.is_empty(), look == LOOKS);
            assert_eq!(seen.changes.is_empty(), look < LOOKS);
            if look == LOOKS {
                let both = vec![("user/alice".to_owned(), Kind::Revoked); 2];
                assert_eq!(words(&seen), both);
                assert_eq!(seen.now, now);
            }
        }
        assert!(doubts.is_empty());
    }

    #[test]
    fn who_is_back_was_never_away() {
        let told = AccessByEntity::from([(user("alice"), of(&[("ml", 1)]))]);
        let mut doubts = SuspectedRemovals::default();
        for _ in 0..2 {
            for _ in 1..LOOKS {
                let mut seen = news(&told, &AccessByEntity::new(), &[]);
                doubts.withhold(&told, &mut seen);
                assert_eq!((words(&seen).len(), &seen.now), (0, &told));
            }
            let mut seen = news(&told, &told, &[]);
            doubts.withhold(&told, &mut seen);
            assert!(doubts.is_empty());
        }
    }
}
