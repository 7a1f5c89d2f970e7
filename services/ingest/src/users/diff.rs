//! Changes between two readings of all access, in the order of publication.
//!
//! - A new association is one grant of its account. Its initial QOS and limits are part of that event. A removed association is one
//!   revocation.
//! - Each added or removed QOS, each gained or lost coordination, and each changed setting is a change.
//! - A setting that a user only inherits is published once, for the account where it was changed. Otherwise a limit at the root account
//!   would be published for every user of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use super::access::{Access, AccessByEntity, Association, Entity};

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Access was added.
    Granted,
    /// Access is different.
    Changed,
    /// Access was removed.
    Revoked,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Kind of the change.
    pub kind: Kind,
    /// User or account.
    pub entity: Entity,
    /// Changed attribute: `Account`, `QOS`, `Coordinator`, `AdminLevel`, `DefaultAccount`, or the name of a limit.
    pub attribute: String,
    /// Value before; empty if there was none.
    pub before: String,
    /// Value after; empty if there is none.
    pub after: String,
    /// Account concerned; empty if none.
    pub account: String,
    /// Association concerned, in its current or last state.
    pub association: Option<Association>,
    /// For `DefaultAccount`: Slurm's id of the association that is the new default.
    pub default_id: Option<u32>,
}

/// Returns all changes, accounts first.
pub fn diff(before: &AccessByEntity, after: &AccessByEntity) -> Vec<Change> {
    let nothing = Access::default();
    let entities: BTreeSet<&Entity> = before.keys().chain(after.keys()).collect();
    let inherited = Inherited::between(before, after);
    let mut changes = Vec::new();
    for entity in entities {
        let old = before.get(entity).unwrap_or(&nothing);
        let new = after.get(entity).unwrap_or(&nothing);
        of_one(entity, old, new, &inherited, &mut changes);
    }
    changes
}

fn of_one(
    entity: &Entity,
    old: &Access,
    new: &Access,
    inherited: &Inherited<'_>,
    changes: &mut Vec<Change>,
) {
    let change = |kind, attribute: &str, before: &str, after: &str, account: &str| Change {
        kind,
        entity: entity.clone(),
        attribute: attribute.to_owned(),
        before: before.to_owned(),
        after: after.to_owned(),
        account: account.to_owned(),
        association: None,
        default_id: None,
    };
    let about =
        |association: &Association, kind, attribute: &str, before: &str, after: &str| Change {
            association: Some(association.clone()),
            ..change(kind, attribute, before, after, &association.account)
        };
    for new in &new.associations {
        let account = new.account.as_str();
        let Some(old) = find(&old.associations, new) else {
            changes.push(about(new, Kind::Granted, "Account", "", account));
            continue;
        };
        let above = match entity {
            Entity::User(_) => Some(account),
            Entity::Account(_) => new.settings.get("Parent").map(String::as_str),
        };
        let (gained, lost) = (new.qos.difference(&old.qos), old.qos.difference(&new.qos));
        for qos in gained.filter(|qos| !inherited.gained(above, qos)) {
            changes.push(about(new, Kind::Granted, "QOS", "", qos));
        }
        for qos in lost.filter(|qos| !inherited.lost(above, qos)) {
            changes.push(about(new, Kind::Revoked, "QOS", qos, ""));
        }
        for (name, before, after) in settings(&old.settings, &new.settings) {
            if !inherited.set(above, name, before, after) {
                changes.push(about(new, Kind::Changed, name, before, after));
            }
        }
    }
    for (name, before, after) in settings(&old.settings, &new.settings) {
        // A default that comes with the first account, or goes with the last, is no change of its own.
        if name == "DefaultAccount" && (before.is_empty() || after.is_empty()) {
            continue;
        }
        let kind = match (before, after) {
            ("", _) => Kind::Granted,
            (_, "") => Kind::Revoked,
            _ => Kind::Changed,
        };
        let of_default = |one: &&Association| name == "DefaultAccount" && one.account == after;
        changes.push(Change {
            default_id: new.associations.iter().find(of_default).map(|one| one.id),
            ..change(kind, name, before, after, "")
        });
    }
    for account in new.coordinates.difference(&old.coordinates) {
        changes.push(change(Kind::Granted, "Coordinator", "", account, account));
    }
    for account in old.coordinates.difference(&new.coordinates) {
        changes.push(change(Kind::Revoked, "Coordinator", account, "", account));
    }
    for old in &old.associations {
        if find(&new.associations, old).is_none() {
            changes.push(about(old, Kind::Revoked, "Account", &old.account, ""));
        }
    }
}

fn find<'a>(associations: &'a [Association], key: &Association) -> Option<&'a Association> {
    associations
        .iter()
        .find(|one| one.account == key.account && one.partition == key.partition)
}

/// Returns the settings that differ: name, before, after.
fn settings<'a>(
    old: &'a BTreeMap<String, String>,
    new: &'a BTreeMap<String, String>,
) -> Vec<(&'a str, &'a str, &'a str)> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let value =
        |of: &'a BTreeMap<String, String>, name: &String| of.get(name).map_or("", |value| value);
    names
        .into_iter()
        .map(|name| (name.as_str(), value(old, name), value(new, name)))
        .filter(|(_, before, after)| before != after)
        .collect()
}

/// Accounts before and after, for the settings inherited from them.
struct Inherited<'a> {
    accounts: BTreeMap<&'a str, (&'a Association, &'a Association)>,
}

impl<'a> Inherited<'a> {
    fn between(before: &'a AccessByEntity, after: &'a AccessByEntity) -> Self {
        let accounts = after.iter().filter_map(|(entity, new)| {
            let Entity::Account(name) = entity else {
                return None;
            };
            let old = before.get(entity)?.associations.first()?;
            Some((name.as_str(), (old, new.associations.first()?)))
        });
        Self {
            accounts: accounts.collect(),
        }
    }

    fn above(&self, account: Option<&str>) -> Option<&(&Association, &Association)> {
        self.accounts.get(account?)
    }

    fn gained(&self, account: Option<&str>, qos: &str) -> bool {
        self.above(account)
            .is_some_and(|(old, new)| !old.qos.contains(qos) && new.qos.contains(qos))
    }

    fn lost(&self, account: Option<&str>, qos: &str) -> bool {
        self.above(account)
            .is_some_and(|(old, new)| old.qos.contains(qos) && !new.qos.contains(qos))
    }

    fn set(&self, account: Option<&str>, name: &str, before: &str, after: &str) -> bool {
        let is = |of: &Association, value: &str| of.settings.get(name).map_or("", |v| v) == value;
        inherits(name)
            && self
                .above(account)
                .is_some_and(|(old, new)| is(old, before) && is(new, after))
    }
}

/// Whether sacctmgr shows this setting for a user although it is set at the account (22.05).
fn inherits(name: &str) -> bool {
    name.starts_with("Max") || name == "DefaultQOS" || name == "Priority"
}

#[cfg(test)]
mod tests;
