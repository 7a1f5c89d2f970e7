//! The rows of `sacctmgr -n -P`.
//!
//! sacctmgr has no other delimiter than `|`, so texts that may contain one are requested last. An account or user name with a `|` gives a
//! row of another length: it counts as unread, and the whole response proves nothing.

use std::collections::{BTreeMap, BTreeSet};

use slurm_types::UnixTime;

use crate::drift::Unread;
use crate::record::{AssociationRecord, Transaction, UserRecord};

/// Identity of an association; every version since 22.05 has these columns and those of [`SETTINGS`].
const KEYS: [&str; 6] = ["ID", "Account", "User", "Partition", "ParentName", "QOS"];
/// Settings of an association.
const SETTINGS: [&str; 18] = [
    "Fairshare",
    "DefaultQOS",
    "Priority",
    "GrpTRES",
    "GrpTRESMins",
    "GrpTRESRunMins",
    "GrpJobs",
    "GrpJobsAccrue",
    "GrpSubmitJobs",
    "GrpWall",
    "MaxTRES",
    "MaxTRESPerNode",
    "MaxTRESMins",
    "MaxTRESRunMins",
    "MaxJobs",
    "MaxJobsAccrue",
    "MaxSubmitJobs",
    "MaxWall",
];
/// Columns of users.
pub(crate) const USER_FORMAT: &str = "format=User,DefaultAccount,AdminLevel,Coordinators";
/// Columns of the log.
pub(crate) const TRANSACTION_FORMAT: &str = "format=ID,Time,Action,Actor,Where,Info";

/// Columns of associations.
pub(crate) fn association_format(comments: bool) -> String {
    let columns = [KEYS.as_slice(), SETTINGS.as_slice()].concat().join(",");
    let comment = if comments { ",Comment" } else { "" };
    format!("format={columns}{comment}")
}

/// The associations, and the rows that could not be parsed.
pub(crate) fn associations(output: &str, comments: bool) -> (Vec<AssociationRecord>, Unread) {
    read(output, |line| association(line, comments))
}

/// The users, and the rows that could not be parsed.
pub(crate) fn users(output: &str) -> (Vec<UserRecord>, Unread) {
    read(output, user)
}

/// The log. A text may contain newlines: a line that does not begin like an entry belongs to the entry before. If an id occurs twice,
/// neither entry is trusted.
pub(crate) fn transactions(output: &str) -> (Vec<Transaction>, Unread) {
    let (mut found, mut unread): (Vec<Transaction>, _) = (Vec::new(), Unread::default());
    for line in output.lines() {
        match (transaction(line), found.last_mut()) {
            (Some(entry), _) => found.push(entry),
            (None, Some(last)) => {
                last.text.push('\n');
                last.text.push_str(line);
            }
            (None, None) => unread.note(line),
        }
    }
    let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
    for entry in &found {
        *seen.entry(entry.id).or_default() += 1;
    }
    found.retain(|entry| seen.get(&entry.id) == Some(&1));
    (found, unread)
}

pub(super) fn read<T>(output: &str, record: impl Fn(&str) -> Option<T>) -> (Vec<T>, Unread) {
    let mut unread = Unread::default();
    let records = output
        .lines()
        .filter_map(|line| {
            let record = record(line);
            if record.is_none() {
                unread.note(line);
            }
            record
        })
        .collect();
    (records, unread)
}

fn association(line: &str, comments: bool) -> Option<AssociationRecord> {
    let columns = KEYS.len() + SETTINGS.len();
    let row: Vec<&str> = if comments {
        line.splitn(columns + 1, '|').collect()
    } else {
        line.split('|').collect()
    };
    let (plain, comment) = row.split_at_checked(columns)?;
    if comment.len() != usize::from(comments) {
        return None;
    }
    let (keys, settings) = plain.split_at(KEYS.len());
    let &[id, account, user, partition, parent, qos] = keys else {
        return None;
    };
    let set = SETTINGS
        .iter()
        .zip(settings)
        .filter(|(_, value)| !value.is_empty());
    (!account.is_empty()).then_some(AssociationRecord {
        id: id.parse().ok()?,
        account: account.to_owned(),
        user: user.to_owned(),
        partition: partition.to_owned(),
        parent: parent.to_owned(),
        qos: list(qos),
        settings: set
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        comment: comment.first().map(|comment| (*comment).to_owned()),
    })
}

fn user(line: &str) -> Option<UserRecord> {
    let row: Vec<&str> = line.split('|').collect();
    let &[user, default_account, admin_level, coordinates] = row.as_slice() else {
        return None;
    };
    (!user.is_empty() && !admin_level.is_empty()).then(|| UserRecord {
        user: user.to_owned(),
        default_account: default_account.to_owned(),
        admin_level: admin_level.to_owned(),
        coordinates: list(coordinates),
    })
}

fn transaction(line: &str) -> Option<Transaction> {
    let mut row = line.splitn(5, '|');
    let mut next = || row.next();
    let (id, time, action, actor) = (next()?, next()?, next()?, next()?);
    (!action.is_empty()).then_some(Transaction {
        id: id.parse().ok()?,
        time: UnixTime::parse(time)?,
        action: action.to_owned(),
        actor: actor.to_owned(),
        text: row.next()?.to_owned(),
    })
}

fn list(text: &str) -> BTreeSet<String> {
    text.split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Printed by sacctmgr 22.05.8 of a test cluster, after some changes.
    const ASSOCIATIONS: &str = include_str!("../../tests/data/22.05/sacctmgr/assoc.txt");
    const USERS: &str = include_str!("../../tests/data/22.05/sacctmgr/user.txt");
    const TRANSACTIONS: &str = include_str!("../../tests/data/22.05/sacctmgr/transactions.txt");

    #[test]
    fn associations_are_read_without_loss() {
        let (found, unread) = associations(ASSOCIATIONS, false);
        assert_eq!(
            (found.len(), unread.count),
            (ASSOCIATIONS.lines().count(), 0)
        );
        let root = found
            .iter()
            .find(|one| one.account == "root" && one.user.is_empty());
        assert_eq!(root.unwrap().id, 1);
        let dave = found
            .iter()
            .find(|one| one.user == "dave" && one.account == "tiny");
        let dave = dave.unwrap();
        assert_eq!(dave.partition, "cpu");
        assert_eq!(dave.qos, list("high,normal"));
        let settings: Vec<String> = dave
            .settings
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            settings,
            [
                "Fairshare=1",
                "GrpTRES=cpu=9,mem=4G",
                "MaxJobs=3",
                "MaxWall=1-02:03:00"
            ]
        );
        let zeta = found
            .iter()
            .find(|one| one.account == "zeta" && one.user.is_empty());
        assert_eq!(zeta.unwrap().parent, "ml");
    }

    #[test]
    fn users_are_read_without_loss() {
        let (found, unread) = users(USERS);
        assert_eq!((found.len(), unread.count), (USERS.lines().count(), 0));
        let dave = found.iter().find(|one| one.user == "dave").unwrap();
        assert_eq!(dave.admin_level, "Operator");
        assert_eq!(dave.coordinates, list("tiny,zeta"));
    }

    #[test]
    fn transactions_are_read_without_loss() {
        let (found, unread) = transactions(TRANSACTIONS);
        assert_eq!(
            (found.len(), unread.count),
            (TRANSACTIONS.lines().count(), 0)
        );
        let several = found.iter().find(|one| one.text.contains(" || ")).unwrap();
        assert_eq!(
            (several.action.as_str(), several.actor.as_str()),
            ("Modify Associations", "root")
        );
    }

    #[test]
    fn hostile_texts_do_not_pass_for_other_rows() {
        let (found, unread) = associations("7|a|b|c\n|||\nnoise\n", false);
        assert_eq!((found.len(), unread.count), (0, 3));
        let log = "1|100|Add Accounts|root|x|description='a\nb|c'\n2|100|Add Users|eve|x\n2|100|Add Users|root|x\n";
        let (found, unread) = transactions(log);
        assert_eq!(unread.count, 0);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].text, "x|description='a\nb|c'");
    }

    #[test]
    fn a_comment_may_hold_anything() {
        let line = format!(
            "7|ml|bob|||normal{}|said | this",
            "|".repeat(SETTINGS.len())
        );
        let (found, unread) = associations(&line, true);
        assert_eq!(unread.count, 0);
        assert_eq!(found[0].comment.as_deref(), Some("said | this"));
        assert_eq!(associations(&line, false).1.count, 1);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_counted(text in "(?s)[a-z0-9|=,'\n]{0,200}") {
            for (found, unread) in [
                (associations(&text, false).0.len(), associations(&text, false).1.count),
                (users(&text).0.len(), users(&text).1.count),
            ] {
                prop_assert_eq!(found + unread, text.lines().count());
            }
            prop_assert!(transactions(&text).0.len() <= text.lines().count());
        }
    }
}
