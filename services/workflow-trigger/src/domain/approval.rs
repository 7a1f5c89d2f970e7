//! Approval: a run waits until a person with the right decides, for some time.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// Who approves the runs of a rule. Administrators may, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Unix users, at least one.
    pub by: BTreeSet<String>,
    /// How long a run waits.
    pub within: Duration,
    /// Whether whoever caused a run may not approve it, administrators neither.
    pub not_requester: bool,
}

/// The approval that a run needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunApproval {
    /// How long it waits.
    pub within: TimeDelta,
    /// When the request ends. `None` before the first.
    pub until: Option<DateTime<Utc>>,
    /// The approvers who were asked.
    pub asked: BTreeSet<String>,
    /// Who approved it. Empty: nobody yet.
    pub approved_by: String,
}

/// A person who wants to approve or reject.
pub struct Decider<'a> {
    /// Their name and Unix users.
    pub names: BTreeSet<&'a str>,
    /// Their Unix users, as which they may decide.
    pub users: &'a BTreeSet<String>,
    /// Whether they are administrators.
    pub is_admin: bool,
}

/// Why somebody may not approve a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRight {
    /// They are no approver of the rule.
    #[error("only the approvers of the rule and administrators may approve its runs")]
    NoApprover,
    /// They caused the run.
    #[error("whoever caused a run of this rule may not approve it")]
    Requester,
}

impl Approval {
    /// True if one of these users approves.
    pub fn is_by(&self, users: &BTreeSet<String>) -> bool {
        !self.by.is_disjoint(users)
    }

    /// Checks whether somebody may approve a run that these people caused.
    ///
    /// # Errors
    /// Why not.
    pub fn check(
        &self,
        decider: &Decider<'_>,
        requesters: &BTreeSet<String>,
    ) -> Result<(), NoRight> {
        if !decider.is_admin && !self.is_by(decider.users) {
            return Err(NoRight::NoApprover);
        }
        let is_requester = requesters
            .iter()
            .any(|name| decider.names.contains(name.as_str()));
        match self.not_requester && is_requester {
            true => Err(NoRight::Requester),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        approval: &Approval,
        user: &str,
        is_admin: bool,
        requester: &str,
    ) -> Result<(), NoRight> {
        let users = BTreeSet::from([user.to_owned()]);
        let decider = Decider {
            names: users
                .iter()
                .map(String::as_str)
                .chain(["token:ci"])
                .collect(),
            users: &users,
            is_admin,
        };
        approval.check(&decider, &BTreeSet::from([requester.to_owned()]))
    }

    #[test]
    fn approvers_and_administrators_approve_what_others_caused() {
        let mut approval = Approval {
            by: BTreeSet::from(["carol".to_owned()]),
            within: Duration::from_secs(60),
            not_requester: false,
        };
        assert_eq!(check(&approval, "carol", false, "alice"), Ok(()));
        assert_eq!(
            check(&approval, "alice", false, "bob"),
            Err(NoRight::NoApprover)
        );
        assert_eq!(check(&approval, "root", true, "root"), Ok(()));
        approval.not_requester = true;
        assert_eq!(check(&approval, "carol", false, "alice"), Ok(()));
        assert_eq!(
            check(&approval, "carol", false, "carol"),
            Err(NoRight::Requester)
        );
        // By another of their names.
        assert_eq!(
            check(&approval, "carol", false, "token:ci"),
            Err(NoRight::Requester)
        );
        assert_eq!(
            check(&approval, "root", true, "root"),
            Err(NoRight::Requester)
        );
    }
}
