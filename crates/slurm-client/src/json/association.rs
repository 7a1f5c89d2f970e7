//! Access records: `associations` and `users` of `/slurmdb/v0.0.NN/`, converted to the words of `sacctmgr -P`.
//!
//! The names of limits are swapped here: `max.jobs.per.count` is GrpJobs, `max.jobs.active` MaxJobs (set one by one and compared with
//! sacctmgr on 22.05.8 and 24.11.5). A record that lacks a field of every version from v0.0.38 on, or contains an unknown one, is rejected:
//! parsed as it is, it would remove limits and QOS.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Fields;
use crate::record::{AssociationRecord, UserRecord};

/// How sacctmgr prints a value.
#[derive(Clone, Copy)]
enum Printed {
    Number,
    Text,
    /// Minutes, as `1-02:03:00`.
    Wall,
    Tres,
    /// `SLURMDB_FS_USE_PARENT` (slurmdb.h) is `parent`.
    Shares,
}

/// sacctmgr's name of each setting, its path here, and its format.
const SETTINGS: [(&str, &str, Printed); 18] = [
    ("Fairshare", "shares_raw", Printed::Shares),
    ("DefaultQOS", "default.qos", Printed::Text),
    ("Priority", "priority", Printed::Number),
    ("GrpTRES", "max.tres.total", Printed::Tres),
    ("GrpTRESMins", "max.tres.group.minutes", Printed::Tres),
    ("GrpTRESRunMins", "max.tres.group.active", Printed::Tres),
    ("GrpJobs", "max.jobs.per.count", Printed::Number),
    ("GrpJobsAccrue", "max.jobs.per.accruing", Printed::Number),
    ("GrpSubmitJobs", "max.jobs.per.submitted", Printed::Number),
    ("GrpWall", "max.per.account.wall_clock", Printed::Wall),
    ("MaxTRES", "max.tres.per.job", Printed::Tres),
    ("MaxTRESPerNode", "max.tres.per.node", Printed::Tres),
    ("MaxTRESMins", "max.tres.minutes.per.job", Printed::Tres),
    ("MaxTRESRunMins", "max.tres.minutes.total", Printed::Tres),
    ("MaxJobs", "max.jobs.active", Printed::Number),
    ("MaxJobsAccrue", "max.jobs.accruing", Printed::Number),
    ("MaxSubmitJobs", "max.jobs.total", Printed::Number),
    ("MaxWall", "max.jobs.per.wall_clock", Printed::Wall),
];

/// An association, its cluster, and whether it is its user's default there.
#[derive(Clone, Debug)]
pub(crate) struct Association {
    pub(crate) record: AssociationRecord,
    pub(crate) cluster: String,
    pub(crate) is_default: bool,
}

/// One association; `None` if it is incomplete.
pub(crate) fn association(value: &Value) -> Option<Association> {
    let mut fields = Fields::new(value);
    let around = ["qos", "max.jobs.per", "max.per.account"];
    // Always present, empty if not set; numbers that are not set may be null.
    let lists = SETTINGS
        .iter()
        .filter(|(_, _, printed)| matches!(printed, Printed::Tres | Printed::Shares))
        .map(|(_, path, _)| *path);
    if !around.into_iter().chain(lists).all(|path| fields.has(path)) {
        return None;
    }
    let settings: BTreeMap<String, String> = SETTINGS
        .iter()
        .filter_map(|&(name, path, printed)| {
            Some((name.to_owned(), setting(&mut fields, path, printed)?))
        })
        .collect();
    // v0.0.40 has an object of keys; others have 0 where they do not report it (24.11).
    let id = match fields.get("id") {
        Some(Value::Object(_)) => fields.positive("id.id"),
        _ => fields.positive("id"),
    };
    let association = Association {
        record: AssociationRecord {
            id: id.unwrap_or(0),
            account: fields.raw("account"),
            user: fields.raw("user"),
            partition: fields.raw("partition"),
            parent: fields.raw("parent_account"),
            qos: fields.strings("qos").into_iter().collect(),
            settings,
            comment: fields.has("comment").then(|| fields.raw("comment")),
        },
        cluster: fields.raw("cluster"),
        // Accounts are "default" on 24.11.
        is_default: fields.flag("is_default"),
    };
    let whole = fields.oddities.count() == 0 && !association.record.account.is_empty();
    whole.then_some(association)
}

/// One user, without the default account, which only associations report in every version; `None` if it is incomplete.
pub(crate) fn user(value: &Value) -> Option<UserRecord> {
    let mut fields = Fields::new(value);
    let coordinators = fields.get("coordinators")?.as_array()?;
    let coordinates: Option<BTreeSet<String>> = coordinators
        .iter()
        .map(|account| Some(account.get("name")?.as_str()?.to_owned()))
        .collect();
    let user = UserRecord {
        user: fields.raw("name"),
        default_account: String::new(),
        // A word (22.05), or a list with one.
        admin_level: fields.strings("administrator_level").join(","),
        coordinates: coordinates?,
    };
    let whole =
        fields.oddities.count() == 0 && !user.user.is_empty() && !user.admin_level.is_empty();
    whole.then_some(user)
}

fn setting(fields: &mut Fields, path: &str, printed: Printed) -> Option<String> {
    const USE_PARENT: u32 = 0x7FFF_FFFF;
    match printed {
        Printed::Text => Some(fields.raw(path)).filter(|text| !text.is_empty()),
        Printed::Number => fields.number::<u32>(path).map(|number| number.to_string()),
        Printed::Wall => fields.number::<u32>(path).map(wall),
        Printed::Shares => fields.number::<u32>(path).map(|shares| match shares {
            USE_PARENT => "parent".to_owned(),
            shares => shares.to_string(),
        }),
        Printed::Tres => {
            let tres = fields.tres_list(path);
            let mut amounts: Vec<String> = tres
                .iter()
                .map(|(name, amount)| format!("{name}={}", exact(name, amount)))
                .collect();
            // By the whole text (`slurm_sort_char_list_asc`): `gres/gpu:a100=1` before `gres/gpu=2`.
            amounts.sort();
            Some(amounts.join(",")).filter(|text| !text.is_empty())
        }
    }
}

/// `mins2time_str` (parse_time.c).
fn wall(minutes: u32) -> String {
    let (days, hours, minutes) = (minutes / 1_440, minutes / 60 % 24, minutes % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:00"),
        days => format!("{days}-{hours:02}:{minutes:02}:00"),
    }
}

/// An amount with the largest unit that loses nothing: 4096 MiB is `4G`, 5000 MiB `5000M` (`CONVERT_NUM_UNIT_EXACT`).
fn exact(name: &str, amount: u64) -> String {
    const UNITS: [&str; 4] = ["M", "G", "T", "P"];
    if amount == 0 || !(name == "mem" || name.starts_with("bb/")) {
        return amount.to_string();
    }
    let (mut amount, mut unit) = (amount, 0);
    while amount % 1_024 == 0 && unit + 1 < UNITS.len() {
        (amount, unit) = (amount / 1_024, unit + 1);
    }
    format!("{amount}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_sacctmgr_prints_them() {
        assert_eq!(
            [0, 124, 1_563].map(wall),
            ["00:00:00", "02:04:00", "1-02:03:00"]
        );
        let printed = |name, amount| exact(name, amount);
        assert_eq!(printed("mem", 4_096), "4G");
        assert_eq!(printed("mem", 5_000), "5000M");
        assert_eq!(printed("mem", 1 << 20), "1T");
        assert_eq!(printed("mem", 0), "0");
        assert_eq!(printed("vmem", 2_048), "2048");
    }

    #[test]
    fn incomplete_files_are_ignored() {
        let whole: Value = serde_json::from_str(include_str!(
            "../../tests/captures/24.11/access/associations.json"
        ))
        .unwrap();
        let one = &whole["associations"][0];
        assert!(association(one).is_some());
        for path in ["/qos", "/max/tres/total", "/max/jobs/per", "/shares_raw"] {
            let mut cut = one.clone();
            *cut.pointer_mut(path).unwrap() = Value::Null;
            assert!(association(&cut).is_none(), "{path}");
        }
        for (path, odd) in [
            ("/account", serde_json::json!("")),
            ("/qos", serde_json::json!([1])),
            ("/max/tres/total", serde_json::json!("cpu=1")),
        ] {
            let mut cut = one.clone();
            *cut.pointer_mut(path).unwrap() = odd;
            assert!(association(&cut).is_none(), "{path}");
        }
        let user_of = |json| user(&json);
        let level =
            serde_json::json!({"name": "eve", "administrator_level": [], "coordinators": []});
        assert!(user_of(level).is_none());
        let unasked = serde_json::json!({"name": "eve", "administrator_level": ["None"]});
        assert!(user_of(unasked).is_none());
    }
}
