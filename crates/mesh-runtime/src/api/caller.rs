//! The caller of an API and their permissions. Every service decides by these functions only.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Role of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees their own jobs, and those of the accounts they coordinate.
    User,
    /// Reads `/metrics` and nothing else.
    Metrics,
    /// Sees everything, changes nothing.
    Auditor,
    /// Sees and does everything.
    Admin,
}

/// Accounts by Slurm's ClusterName; key `None` holds accounts that count on every cluster.
pub type AccountsByCluster = BTreeMap<Option<String>, BTreeSet<String>>;

/// How a caller was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthMethod {
    /// By the kernel's peer credentials of the Unix socket.
    Peer {
        /// Their uid.
        uid: u32,
    },
    /// By a service token of the configuration.
    Token,
    /// By a token of an OIDC provider.
    Oidc {
        /// `iss`.
        issuer: String,
        /// `sub`.
        subject: String,
    },
}

impl AuthMethod {
    /// `unix`, `token` or `oidc`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Peer { .. } => "unix",
            Self::Token => "token",
            Self::Oidc { .. } => "oidc",
        }
    }
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Display name: a Unix user, `token:<name>`, or the name or subject of an OIDC identity.
    pub name: String,
    /// Their role.
    pub role: Role,
    /// Their Unix users: one over the Unix socket, any number otherwise.
    pub users: BTreeSet<String>,
    /// Accounts whose jobs they may see: as coordinators, or granted by a token.
    pub accounts: AccountsByCluster,
    /// How they were authenticated.
    pub auth_method: AuthMethod,
    /// Their request, as `GET /v1/events?user=alice`.
    pub request: String,
}

/// The data that a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Everything, including data without an owner.
    All,
    /// Data of these users or accounts; nothing if both are empty.
    Restricted {
        /// Unix users.
        users: BTreeSet<String>,
        /// Accounts.
        accounts: AccountsByCluster,
    },
}

impl Caller {
    /// A caller authenticated by the Unix socket.
    pub fn peer(user: impl Into<String>, uid: u32, role: Role) -> Self {
        let user = user.into();
        Self {
            name: user.clone(),
            role,
            users: [user].into(),
            accounts: AccountsByCluster::new(),
            auth_method: AuthMethod::Peer { uid },
            request: String::new(),
        }
    }

    /// The same caller, who also coordinates an account of a cluster.
    #[must_use]
    pub fn coordinating(mut self, cluster: &str, account: &str) -> Self {
        self.accounts
            .entry(Some(cluster.to_owned()))
            .or_default()
            .insert(account.to_owned());
        self
    }

    /// The data that the caller may see.
    pub fn visibility(&self) -> Visibility {
        match self.role {
            Role::Admin | Role::Auditor => Visibility::All,
            // Metrics callers see no jobs: they have no users and no accounts.
            Role::User | Role::Metrics => Visibility::Restricted {
                users: self.users.clone(),
                accounts: self.accounts.clone(),
            },
        }
    }

    /// True if the caller may see everything, including data without an owner.
    pub const fn sees_everything(&self) -> bool {
        matches!(self.role, Role::Admin | Role::Auditor)
    }

    /// True if the caller may see data of a user and an account of a cluster. An empty user or account matches no caller's.
    pub fn may_see(&self, cluster: &str, user: &str, account: &str) -> bool {
        self.sees_everything() || self.is(user) || self.coordinates(cluster, account)
    }

    /// True if the caller may query a user's data. The answer may contain only part of it.
    pub fn may_ask_about(&self, user: &str) -> bool {
        self.sees_everything() || self.is(user) || !self.accounts.is_empty()
    }

    /// True if the caller is this user, whose own data may be read without an audit entry.
    pub fn is(&self, user: &str) -> bool {
        !user.is_empty() && self.users.contains(user)
    }

    /// True if the caller may read the metrics, whose labels name endpoints and the like.
    pub const fn may_read_metrics(&self) -> bool {
        self.sees_everything() || matches!(self.role, Role::Metrics)
    }

    /// True if the caller may change something or make the mesh act.
    pub const fn may_write(&self) -> bool {
        matches!(self.role, Role::Admin)
    }

    /// `user`, `coordinator`, `metrics`, `auditor` or `admin`.
    pub fn role_name(&self) -> &'static str {
        match self.role {
            Role::User if self.accounts.is_empty() => "user",
            Role::User => "coordinator",
            Role::Metrics => "metrics",
            Role::Auditor => "auditor",
            Role::Admin => "admin",
        }
    }

    fn coordinates(&self, cluster: &str, account: &str) -> bool {
        !account.is_empty()
            && self.accounts.iter().any(|(of, accounts)| {
                of.as_deref().is_none_or(|of| of == cluster) && accounts.contains(account)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_their_own_and_coordinators_their_accounts_on_their_cluster() {
        let alice = Caller::peer("alice", 1000, Role::User);
        let carol = Caller::peer("carol", 1001, Role::User).coordinating("c1", "physics");
        for (caller, cluster, user, account, seen) in [
            (&alice, "c1", "alice", "physics", true),
            (&alice, "c2", "alice", "", true),
            (&alice, "c1", "bob", "physics", false),
            (&alice, "c1", "", "", false),
            (&carol, "c1", "bob", "physics", true),
            (&carol, "c1", "", "physics", true),
            (&carol, "c2", "bob", "physics", false),
            (&carol, "c1", "bob", "chemistry", false),
            (&carol, "c1", "bob", "", false),
        ] {
            let asked = (&caller.name, cluster, user, account);
            assert_eq!(caller.may_see(cluster, user, account), seen, "{asked:?}");
        }
        assert!(carol.may_ask_about("bob") && !alice.may_ask_about("bob"));
        assert_eq!(
            (alice.role_name(), carol.role_name()),
            ("user", "coordinator")
        );
    }

    #[test]
    fn a_caller_without_users_sees_no_ownerless_events() {
        let mut no_access = Caller::peer("x", 1, Role::User);
        no_access.users.clear();
        assert!(!no_access.may_see("c", "", ""));
        no_access.users.insert(String::new());
        no_access.accounts.insert(None, [String::new()].into());
        assert!(!no_access.may_see("c", "", ""));
    }

    #[test]
    fn auditors_see_everything_and_change_nothing() {
        let auditor = Caller::peer("eve", 2, Role::Auditor);
        let admin = Caller::peer("root", 0, Role::Admin);
        for caller in [&auditor, &admin] {
            assert_eq!(caller.visibility(), Visibility::All);
            assert!(caller.may_see("c", "", "") && !caller.is("alice"));
        }
        assert!(!auditor.may_write() && admin.may_write());
    }
}
