//! Who may do what: accounting's associations, users, and the log of who changed them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use slurm_types::UnixTime;

use crate::{Error, metrics};

/// An account of a cluster, or a user in one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssociationRecord {
    /// Slurm's id of it; 0 over REST before 26.05, which does not print it.
    pub id: u32,
    /// Account.
    pub account: String,
    /// User; empty for the account itself.
    pub user: String,
    /// The only partition it is good for; empty for all.
    pub partition: String,
    /// The account above; empty for users and for the root account.
    pub parent: String,
    /// QOS that may be used, those inherited from the account included.
    pub qos: BTreeSet<String>,
    /// RequestLimits and the like by Slurm's names, e.g. `MaxJobs`; what is not set is absent. Slurm shows `Max` limits of an account at
    /// its users, too, `Grp` limits only where they are set (22.05).
    pub settings: BTreeMap<String, String>,
    /// Comment; `None` where Slurm has none (22.05) or it was not asked for.
    pub comment: Option<String>,
}

/// A user as accounting knows them.
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

/// Everything accounting says about access to one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRecords {
    /// Accounts and users in them.
    pub associations: Vec<AssociationRecord>,
    /// Users.
    pub users: Vec<UserRecord>,
}

impl AccessRecords {
    /// The records, unless they lack what every cluster has or contradict themselves: nobody lost access then.
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
        // `root` is made with the cluster and cannot be removed. With PrivateData, who may not see it may not see others, either.
        let is_root = |one: &AssociationRecord| one.account == "root" && one.user.is_empty();
        if !self.associations.iter().any(is_root) {
            return Some(
                "the list of associations has no root account; with PrivateData in slurmdbd.conf it must be an operator who asks",
            );
        }
        // 22.05 shows them the accounts above their own, too.
        if matches!(self.users.as_slice(), [only] if only.user != "root") {
            return Some(
                "the list of users has one user only; with PrivateData in slurmdbd.conf it must be an operator who asks",
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

/// A change that was made with `sacctmgr`, as slurmdbd logged it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// slurmdbd's id of it, counted upwards.
    pub id: u64,
    /// When.
    pub time: UnixTime,
    /// `Add Associations`, `Modify Users`, `Remove Account Coords`, …
    pub action: String,
    /// Unix user who did it.
    pub actor: String,
    /// Where it was done and what, in slurmdbd's words: a piece of SQL, for the most part.
    pub text: String,
}
