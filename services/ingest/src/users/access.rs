//! Access of users and accounts as plain values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use slurm_client::AccessRecords;

/// Subject of access. Accounts sort first, because their events explain those of their users.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entity {
    /// An account.
    Account(String),
    /// A Unix user.
    User(String),
}

impl Entity {
    /// Returns `account` or `user`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Account(_) => "account",
            Self::User(_) => "user",
        }
    }

    /// Parses an entity key; `None` if it is invalid.
    pub fn parse(key: &str) -> Option<Self> {
        match key.split_once('/')? {
            ("account", name) => Some(Self::Account(name.to_owned())),
            ("user", name) => Some(Self::User(name.to_owned())),
            _ => None,
        }
    }

    /// Returns the user; empty for accounts.
    pub fn user(&self) -> &str {
        match self {
            Self::Account(_) => "",
            Self::User(user) => user,
        }
    }
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Account(name) | Self::User(name)) = self;
        write!(f, "{}/{name}", self.kind())
    }
}

/// Access of one user or account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Association of the account itself, or those of the user, by account and partition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub associations: Vec<Association>,
    /// `AdminLevel` and `DefaultAccount`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Accounts that the user coordinates.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub coordinates: BTreeSet<String>,
}

/// An association, without its user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Association {
    /// Slurm's id.
    pub id: u32,
    /// Account name.
    pub account: String,
    /// The only partition; empty for all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub partition: String,
    /// Allowed QOS.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub qos: BTreeSet<String>,
    /// Explicit settings, including `Parent`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// Access of all users and accounts.
pub type AccessByEntity = BTreeMap<Entity, Access>;

/// Groups Slurm's records by user and account. Entries without access are left out: slurmdbd also lists the users of its other clusters.
pub fn access_by_entity(records: &AccessRecords) -> AccessByEntity {
    let mut access_by_entity = AccessByEntity::new();
    for record in &records.associations {
        let entity = if record.user.is_empty() {
            Entity::Account(record.account.clone())
        } else {
            Entity::User(record.user.clone())
        };
        let mut settings = record.settings.clone();
        if !record.parent.is_empty() {
            settings.insert("Parent".to_owned(), record.parent.clone());
        }
        let access = access_by_entity.entry(entity).or_default();
        access.associations.push(Association {
            id: record.id,
            account: record.account.clone(),
            partition: record.partition.clone(),
            qos: record.qos.clone(),
            settings,
        });
    }
    for record in &records.users {
        let access = access_by_entity
            .entry(Entity::User(record.user.clone()))
            .or_default();
        // `None` is no level: a user with it alone has no access.
        if record.admin_level != "None" {
            let level = record.admin_level.clone();
            access.settings.insert("AdminLevel".to_owned(), level);
        }
        if !record.default_account.is_empty() {
            let account = record.default_account.clone();
            access.settings.insert("DefaultAccount".to_owned(), account);
        }
        access.coordinates.clone_from(&record.coordinates);
    }
    access_by_entity.retain(|_, access| *access != Access::default());
    for access in access_by_entity.values_mut() {
        access
            .associations
            .sort_by(|a, b| (&a.account, &a.partition).cmp(&(&b.account, &b.partition)));
    }
    access_by_entity
}

#[cfg(test)]
mod tests {
    use slurm_client::{AssociationRecord, UserRecord};

    use super::*;

    #[test]
    fn a_user_without_access_is_absent() {
        let user = |name: &str, level: &str| UserRecord {
            user: name.to_owned(),
            admin_level: level.to_owned(),
            ..UserRecord::default()
        };
        let records = AccessRecords {
            associations: vec![AssociationRecord {
                account: "ml".to_owned(),
                user: "alice".to_owned(),
                ..AssociationRecord::default()
            }],
            users: vec![
                user("alice", "None"),
                user("of-another-cluster", "None"),
                user("root", "Administrator"),
            ],
        };
        let users: Vec<String> = access_by_entity(&records)
            .keys()
            .map(Entity::to_string)
            .collect();
        assert_eq!(users, ["user/alice", "user/root"]);
    }
}
