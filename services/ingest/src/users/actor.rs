//! Determines which entry of slurmdbd's log explains a change.
//!
//! slurmdbd logs the changes of `sacctmgr` as pieces of SQL (22.05.8, `sacctmgr show transactions`):
//!
//! | action | where and what |
//! | --- | --- |
//! | `Add Associations` | `id_assoc=13`, then the columns |
//! | `Modify Associations` | `(id_assoc=14 \|\| id_assoc=13)`, then the columns that were set; an account's own id for those below it |
//! | `Remove Associations` | `id_assoc=14` |
//! | `Add Users`, `Modify Users`, `Remove Users` | `dave`, `(name='dave')`, `name='dave' \|\| name='erin'` |
//! | `Add Account Coord`, `Remove Account Coords` | `dave` and `ml`; `(user='dave') && (acct='ml')`, either alone for all |
//! | `Remove Accounts` | `name='eta' \|\| name='zeta'` |
//!
//! Not logged, or not by name: an account that moves below another one, and a deleted QOS. Then the actor is unknown.

use slurm_client::Transaction;

use super::diff::{Change, Kind};

/// Returns the latest log entry that made this change, among entries without an event.
pub fn find_transaction<'a>(change: &Change, log: &'a [Transaction]) -> Option<&'a Transaction> {
    log.iter()
        .filter(|entry| explains(change, entry))
        .max_by_key(|entry| (entry.time, entry.id))
}

fn explains(change: &Change, entry: &Transaction) -> bool {
    let (action, text) = (entry.action.as_str(), entry.text.as_str());
    let user = change.entity.user();
    let names_user = || !user.is_empty() && names(text, user);
    let names_account = || names(text, &change.account);
    let id = change.association.as_ref().map(|one| one.id);
    let is_about = || id.is_some_and(|id| has(text, &format!("id_assoc={id}")));
    match (change.attribute.as_str(), change.kind) {
        ("Account", Kind::Granted) => action == "Add Associations" && is_about(),
        ("Account", _) => match action {
            "Remove Associations" => is_about(),
            "Remove Users" => names_user(),
            "Remove Accounts" => names_account(),
            _ => false,
        },
        ("AdminLevel", _) => match action {
            "Add Users" | "Modify Users" => names_user() && text.contains("admin_level"),
            "Remove Users" => change.kind == Kind::Revoked && names_user(),
            _ => false,
        },
        ("Coordinator", Kind::Granted) => {
            action == "Add Account Coord" && names_user() && names_account()
        }
        ("Coordinator", _) => match action {
            // Without an account it covers all accounts of the user, without a user all users of the account.
            "Remove Account Coords" => {
                (names_user() || !text.contains("user="))
                    && (names_account() || !text.contains("acct="))
            }
            "Remove Users" => names_user(),
            "Remove Accounts" => names_account(),
            _ => false,
        },
        // The entry names associations by id, but the change is about the user and has none.
        ("DefaultAccount", _) => {
            matches!(action, "Add Associations" | "Modify Associations")
                && has(text, "is_def=1")
                && change
                    .default_id
                    .is_some_and(|id| has(text, &format!("id_assoc={id}")))
        }
        (attribute, _) => {
            action == "Modify Associations"
                && is_about()
                && column(attribute).is_some_and(|column| {
                    has(text, &format!("{column}=")) || has(text, &format!("{column} ="))
                })
        }
    }
}

/// Returns slurmdbd's column for a name of sacctmgr.
fn column(attribute: &str) -> Option<&'static str> {
    Some(match attribute {
        "QOS" => "qos",
        "DefaultQOS" => "def_qos_id",
        "Fairshare" => "shares",
        "Priority" => "priority",
        "GrpTRES" => "grp_tres",
        "GrpTRESMins" => "grp_tres_mins",
        "GrpTRESRunMins" => "grp_tres_run_mins",
        "GrpJobs" => "grp_jobs",
        "GrpJobsAccrue" => "grp_jobs_accrue",
        "GrpSubmitJobs" => "grp_submit_jobs",
        "GrpWall" => "grp_wall",
        "MaxTRES" => "max_tres_pj",
        "MaxTRESPerNode" => "max_tres_pn",
        "MaxTRESMins" => "max_tres_mins_pj",
        "MaxTRESRunMins" => "max_tres_run_mins",
        "MaxJobs" => "max_jobs",
        "MaxJobsAccrue" => "max_jobs_accrue",
        "MaxSubmitJobs" => "max_submit_jobs",
        "MaxWall" => "max_wall_pj",
        "Parent" => "parent_acct",
        _ => return None,
    })
}

/// Whether the text contains a name: in quotes, or alone between the log's separators.
fn names(text: &str, name: &str) -> bool {
    text.contains(&format!("'{name}'")) || text.split(['|', ',']).any(|item| item.trim() == name)
}

/// Whether the text contains a whole piece of SQL: `id_assoc=1` is not in `id_assoc=14`, nor `qos=` in `delta_qos=`.
fn has(text: &str, piece: &str) -> bool {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let ends_open = piece.ends_with('=');
    text.match_indices(piece).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + piece.len()..]);
        !before.ends_with(is_name_char) && (ends_open || !after.starts_with(is_name_char))
    })
}

#[cfg(test)]
mod tests {
    use slurm_types::UnixTime;

    use super::*;
    use crate::users::access::{Association, Entity};

    /// Log of slurmdbd 22.05.8, without columns that were not set.
    const LOG: [(u64, &str, &str); 12] = [
        (31, "Add Users", "dave|admin_level=1"),
        (
            32,
            "Add Associations",
            "id_assoc=13|acct='ml', user='dave', `partition`='', is_def=1, max_jobs=NULL",
        ),
        (
            33,
            "Add Associations",
            "id_assoc=14|acct='ml', user='dave', `partition`='cpu', max_jobs=NULL",
        ),
        (
            34,
            "Modify Associations",
            "(id_assoc=14 || id_assoc=13)|max_jobs=3, grp_tres = if (id_assoc=14, '1=8', grp_tres), qos=if (qos='', '', ''), delta_qos=''",
        ),
        (
            35,
            "Modify Associations",
            "(id_assoc=5)|shares=7, max_submit_jobs=9",
        ),
        (36, "Modify Users", "(name='dave')|admin_level=2"),
        (37, "Add Account Coord", "dave|ml"),
        (38, "Modify Associations", "(id_assoc=15)|is_def=1"),
        (39, "Remove Account Coords", "(user='dave') && (acct='ml')|"),
        (40, "Remove Associations", "id_assoc=14|"),
        (41, "Remove Account Coords", "(user='erin')|"),
        (42, "Remove Users", "name='dave' || name='erin'|"),
    ];

    fn log() -> Vec<Transaction> {
        LOG.map(|(id, action, text)| Transaction {
            id,
            time: UnixTime::from_secs(1_000),
            action: action.to_owned(),
            actor: "root".to_owned(),
            text: text.to_owned(),
        })
        .to_vec()
    }

    fn change(kind: Kind, user: &str, account: &str, attribute: &str, id: u32) -> Change {
        Change {
            kind,
            entity: match user {
                "" => Entity::Account(account.to_owned()),
                user => Entity::User(user.to_owned()),
            },
            attribute: attribute.to_owned(),
            before: String::new(),
            after: String::new(),
            account: account.to_owned(),
            association: (id > 0 && attribute != "DefaultAccount").then(|| Association {
                id,
                ..Association::default()
            }),
            default_id: (attribute == "DefaultAccount").then_some(id),
        }
    }

    #[test]
    fn each_change_has_its_entry() {
        let log = log();
        for (kind, user, account, attribute, id, expected) in [
            (Kind::Granted, "dave", "ml", "Account", 13, Some(32)),
            (Kind::Granted, "dave", "ml", "Account", 1, None),
            (Kind::Changed, "dave", "ml", "MaxJobs", 13, Some(34)),
            (Kind::Changed, "dave", "ml", "GrpTRES", 13, Some(34)),
            (Kind::Granted, "dave", "ml", "QOS", 14, Some(34)),
            (Kind::Granted, "", "ml", "QOS", 5, None),
            (Kind::Changed, "dave", "ml", "MaxSubmitJobs", 13, None),
            (Kind::Changed, "", "ml", "Fairshare", 5, Some(35)),
            (Kind::Granted, "dave", "", "AdminLevel", 0, Some(36)),
            (Kind::Granted, "dave", "ml", "Coordinator", 0, Some(37)),
            (Kind::Granted, "erin", "ml", "Coordinator", 0, None),
            (Kind::Changed, "dave", "", "DefaultAccount", 15, Some(38)),
            (Kind::Revoked, "erin", "tiny", "Coordinator", 0, Some(42)),
            (Kind::Revoked, "carol", "ml", "Coordinator", 0, None),
            (Kind::Revoked, "erin", "ml", "Account", 22, Some(42)),
            (Kind::Revoked, "carol", "ml", "Account", 23, None),
        ] {
            let found = find_transaction(&change(kind, user, account, attribute, id), &log);
            assert_eq!(
                found.map(|entry| entry.id),
                expected,
                "{kind:?} {user} {account} {attribute}"
            );
        }
        let until_40: Vec<Transaction> = log.into_iter().filter(|entry| entry.id <= 40).collect();
        let found = |change: &Change| find_transaction(change, &until_40).map(|entry| entry.id);
        assert_eq!(
            found(&change(Kind::Revoked, "dave", "ml", "Account", 14)),
            Some(40)
        );
        assert_eq!(
            found(&change(Kind::Revoked, "dave", "ml", "Coordinator", 0)),
            Some(39)
        );
    }
}
