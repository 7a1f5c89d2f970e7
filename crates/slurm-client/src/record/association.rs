//! Access records: accounting's associations and users, and the log of their changes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use slurm_types::UnixTime;

use crate::{Error, metrics};

/// An account of a cluster, or a user in one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssociationRecord {
    /// Slurm's id; 0 over REST before 26.05, which does not print it.
    pub id: u32,
    /// Account.
    pub account: String,
    /// User; empty for the account itself.
    pub user: String,
    /// The only partition it applies to; empty for all.
    pub partition: String,
    /// The parent account; empty for users and for the root account.
    pub parent: String,
    /// Allowed QOS, including those inherited from the account.
    pub qos: BTreeSet<String>,
    /// Limits and other settings by Slurm's names, e.g. `MaxJobs`; unset ones are absent. Slurm repeats an account's `Max` limits at its
    /// users, but shows `Grp` limits only where they are set (22.05).
    pub settings: BTreeMap<String, String>,
    /// Comment; `None` where Slurm has none (22.05) or it was not requested.
    pub comment: Option<String>,
}

/// A user of accounting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    /// Unix user name.
    pub user: String,
    /// Account of jobs that name none.
    pub default_account: String,
    /// `None`, `Operator` or `Administrator`.
    pub admin_level: String,
    /// Accounts the user coordinates.
    pub coordinates: BTreeSet<String>,
}

/// All access records of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRecords {
    /// Accounts, and users in accounts.
    pub associations: Vec<AssociationRecord>,
    /// Users.
    pub users: Vec<UserRecord>,
}

impl AccessRecords {
    /// Refuses records that lack what every cluster has or that contradict themselves, so that access never seems revoked by mistake.
    pub(crate) fn validate(self, command: &'static str) -> Result<Self, Error> {
        match self.problem() {
            None => Ok(self),
            Some(problem) => {
                let error = Error::Suspicious { command, problem };
                metrics::failed(command, error.kind());
                Err(error)
            }
        }
    }

    fn problem(&self) -> Option<&'static str> {
        // Every cluster has `root`, which cannot be removed. With PrivateData, a user that may not see it may not see others either.
        let is_root = |one: &AssociationRecord| one.account == "root" && one.user.is_empty();
        if !self.associations.iter().any(is_root) {
            return Some(
                "the list of associations has no root account; with PrivateData in slurmdbd.conf the requesting user must be an operator",
            );
        }
        // 22.05 shows such users the accounts above their own, too.
        if matches!(self.users.as_slice(), [only] if only.user != "root") {
            return Some(
                "the list of users has only one user; with PrivateData in slurmdbd.conf the requesting user must be an operator",
            );
        }
        let known: BTreeSet<&str> = self.users.iter().map(|one| one.user.as_str()).collect();
        let is_known =
            |one: &AssociationRecord| one.user.is_empty() || known.contains(one.user.as_str());
        if !self.associations.iter().all(is_known) {
            return Some("a user of an association is missing in the list of users");
        }
        None
    }
}

/// A change made with `sacctmgr`, as slurmdbd logged it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// slurmdbd's ascending id.
    pub id: u64,
    /// When it was made.
    pub time: UnixTime,
    /// `Add Associations`, `Modify Users`, `Remove Account Coords`, …
    pub action: String,
    /// Unix user that made it.
    pub actor: String,
    /// Target and change in slurmdbd's text, mostly a fragment of SQL.
    pub text: String,
}
