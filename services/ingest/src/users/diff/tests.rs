//! Which change gives which events, as data.

use proptest::prelude::*;
use slurm_client::{AccessRecords, AssociationRecord, UserRecord};

use super::*;
use crate::users::access::access_by_entity;

/// Parses `account NAME …`, `user NAME ACCOUNT[:PARTITION] …` and `login NAME …`, separated by `;`. Further words are `qos=a,b`,
/// `LIMIT=value`.
fn reading(text: &str) -> AccessByEntity {
    let mut records = AccessRecords::default();
    for line in text
        .split(';')
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let mut tokens = line.split(' ');
        let (entity_kind, name) = (tokens.next().unwrap(), tokens.next().unwrap());
        if entity_kind == "login" {
            let mut user = UserRecord {
                user: name.to_owned(),
                admin_level: "None".to_owned(),
                ..UserRecord::default()
            };
            for (key, value) in tokens.map(|token| token.split_once('=').unwrap()) {
                match key {
                    "level" => user.admin_level = value.to_owned(),
                    "default" => user.default_account = value.to_owned(),
                    _ => user.coordinates = list(value),
                }
            }
            records.users.push(user);
            continue;
        }
        let mut record = AssociationRecord {
            id: u32::try_from(records.associations.len()).unwrap() + 1,
            account: name.to_owned(),
            ..AssociationRecord::default()
        };
        if entity_kind == "user" {
            let (account, partition) = match tokens.next().unwrap().split_once(':') {
                Some((account, partition)) => (account, partition),
                None => (line.split(' ').nth(2).unwrap(), ""),
            };
            record.user = name.to_owned();
            record.account = account.to_owned();
            record.partition = partition.to_owned();
        }
        for (key, value) in tokens.map(|token| token.split_once('=').unwrap()) {
            match key {
                "qos" => record.qos = list(value),
                "parent" => record.parent = value.to_owned(),
                _ => {
                    record.settings.insert(key.to_owned(), value.to_owned());
                }
            }
        }
        records.associations.push(record);
    }
    access_by_entity(&records)
}

fn list(text: &str) -> BTreeSet<String> {
    text.split(',').map(str::to_owned).collect()
}

fn tokens(change: &Change) -> String {
    let sign = match change.kind {
        Kind::Granted => '+',
        Kind::Changed => '~',
        Kind::Revoked => '-',
    };
    let Change {
        entity,
        attribute,
        before,
        after,
        ..
    } = change;
    let partition = change.association.as_ref().map_or(String::new(), |one| {
        format!("@{}:{}", one.account, one.partition)
    });
    format!("{sign}{entity}{partition} {attribute} {before}>{after}")
}

#[track_caller]
fn check(before: &str, after: &str, expected: &[&str]) {
    let changes = diff(&reading(before), &reading(after));
    assert_eq!(changes.iter().map(tokens).collect::<Vec<_>>(), expected);
}

#[test]
fn memberships_come_and_go() {
    let both = "account ml; user bob ml; user bob tiny:cpu; login bob default=ml";
    check(
        "account ml",
        both,
        &[
            "+user/bob@ml: Account >ml",
            "+user/bob@tiny:cpu Account >tiny",
        ],
    );
    check(
        both,
        "account ml; login bob",
        &[
            "-user/bob@ml: Account ml>",
            "-user/bob@tiny:cpu Account tiny>",
        ],
    );
    // An account for all partitions and the same one for a single partition are two associations.
    check(
        "user bob ml",
        "user bob ml:gpu",
        &["+user/bob@ml:gpu Account >ml", "-user/bob@ml: Account ml>"],
    );
}

#[test]
fn qos_and_limits_are_published_one_by_one() {
    check(
        "user bob ml qos=normal,low MaxJobs=3",
        "user bob ml qos=normal,high MaxJobs=5 GrpTRES=cpu=8",
        &[
            "+user/bob@ml: QOS >high",
            "-user/bob@ml: QOS low>",
            "~user/bob@ml: GrpTRES >cpu=8",
            "~user/bob@ml: MaxJobs 3>5",
        ],
    );
    check(
        "user bob ml MaxJobs=3",
        "user bob ml",
        &["~user/bob@ml: MaxJobs 3>"],
    );
}

#[test]
fn inherited_values_are_published_for_the_account() {
    check(
        "account a qos=n; account b parent=a qos=n; user bob b qos=n",
        "account a qos=n,h MaxJobs=9; account b parent=a qos=n,h MaxJobs=9; user bob b qos=n,h MaxJobs=9",
        &["+account/a@a: QOS >h", "~account/a@a: MaxJobs >9"],
    );
    // Fairshare is not inherited.
    check(
        "account a Fairshare=1; user bob a Fairshare=1",
        "account a Fairshare=7; user bob a Fairshare=7",
        &["~account/a@a: Fairshare 1>7", "~user/bob@a: Fairshare 1>7"],
    );
    // Moved below another account, whose settings it now inherits.
    check(
        "account a; account c MaxJobs=2; account b parent=a",
        "account a; account c MaxJobs=2; account b parent=c MaxJobs=2",
        &["~account/b@b: MaxJobs >2", "~account/b@b: Parent a>c"],
    );
}

#[test]
fn levels_defaults_and_coordination() {
    check(
        "user bob a; user bob b; login bob default=a",
        "user bob a; user bob b; login bob default=b level=Operator coord=a",
        &[
            "+user/bob AdminLevel >Operator",
            "~user/bob DefaultAccount a>b",
            "+user/bob Coordinator >a",
        ],
    );
    check(
        "login bob level=Operator coord=a",
        "login bob level=Administrator",
        &[
            "~user/bob AdminLevel Operator>Administrator",
            "-user/bob Coordinator a>",
        ],
    );
    check(
        "login bob level=Administrator",
        "login bob",
        &["-user/bob AdminLevel Administrator>"],
    );
}

fn readings() -> impl Strategy<Value = AccessByEntity> {
    let line = prop_oneof![
        ("[ab]", "[nhl]", 0..3_u8).prop_map(|(a, q, n)| format!("account {a} qos={q} MaxJobs={n}")),
        ("[xy]", "[ab]", "[nhl]", 0..3_u8)
            .prop_map(|(u, a, q, n)| format!("user {u} {a} qos={q} MaxJobs={n} Fairshare={n}")),
    ];
    proptest::collection::btree_map(0..4_u8, line, 0..4).prop_map(|lines| {
        // One row per association, as in Slurm.
        let mut seen = BTreeSet::new();
        let lines: Vec<String> = lines
            .into_values()
            .filter(|line| seen.insert(line.split(" qos").next().unwrap().to_owned()))
            .collect();
        reading(&lines.join(";"))
    })
}

proptest! {
    #[test]
    fn equals_differ_in_nothing(one in readings()) {
        prop_assert_eq!(diff(&one, &one), vec![]);
    }

    /// Each membership that differs is published, in both directions.
    #[test]
    fn every_changed_membership_is_published(one in readings(), other in readings()) {
        let memberships = |of: &AccessByEntity| -> BTreeSet<(Entity, String)> {
            of.iter().flat_map(|(entity, access)| {
                access.associations.iter().map(|one| (entity.clone(), one.account.clone()))
            }).collect()
        };
        let (before, after) = (memberships(&one), memberships(&other));
        let emitted = |kind| -> BTreeSet<(Entity, String)> {
            diff(&one, &other).into_iter()
                .filter(|change| change.kind == kind && change.attribute == "Account")
                .map(|change| (change.entity, change.account))
                .collect()
        };
        prop_assert_eq!(emitted(Kind::Granted), after.difference(&before).cloned().collect());
        prop_assert_eq!(emitted(Kind::Revoked), before.difference(&after).cloned().collect());
    }
}
