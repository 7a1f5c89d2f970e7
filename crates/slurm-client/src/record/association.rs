//! Who may do what: accounting's associations, users, and the log of who changed them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use slurm_types::UnixTime;

/// An account of a cluster, or a user in one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssociationRecord {
    /// Slurm's id of it.
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
    /// Limits and the like by Slurm's names, e.g. `MaxJobs`; what is not set is absent. Slurm shows `Max` limits of an account at
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
