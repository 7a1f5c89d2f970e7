//! Partitions: `partitions` of `/slurm/v0.0.NN/partitions` and of `scontrol show partition --json`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Fields, job::minutes_text};
use crate::record::PartitionRecord;

/// One partition; `None` if it has no name. 22.05 has flat fields, newer ones groups of them; v0.0.40 to v0.0.44 do not report the default
/// partition.
pub(crate) fn partition(value: &Value) -> Option<PartitionRecord> {
    let mut fields = Fields::new(value);
    let name = fields.text("name");
    let states = [fields.strings("state"), fields.strings("partition.state")];
    let partition = PartitionRecord {
        state: states.into_iter().flatten().next().unwrap_or_default(),
        default: fields
            .strings("flags")
            .iter()
            .any(|flag| flag.eq_ignore_ascii_case("default")),
        nodes: match fields.has("nodes.configured") {
            true => fields.text("nodes.configured"),
            false => fields.text("nodes"),
        },
        max_time: limit(
            &mut fields,
            &["max_time_limit", "maximums.time"],
            "UNLIMITED",
        ),
        default_time: limit(
            &mut fields,
            &["default_time_limit", "defaults.time"],
            "NONE",
        ),
        qos: match fields.has("qos.assigned") {
            true => fields.text("qos.assigned"),
            false if fields.get("qos").is_some_and(Value::is_object) => String::new(),
            false => fields.text("qos"),
        },
        priority_tier: fields
            .number("priority_tier")
            .or_else(|| fields.number("priority.tier")),
        min_nodes: fields
            .number("min nodes per job")
            .or_else(|| fields.number("minimums.nodes"))
            .unwrap_or(0),
        // -1 is no limit in v0.0.38 and older.
        max_nodes: fields
            .signed("maximum_nodes_per_job")
            .or_else(|| fields.signed("maximums.nodes"))
            .and_then(|most| u32::try_from(most).ok()),
        allow_accounts: names(&mut fields, ["allowed_accounts", "accounts.allowed"]),
        deny_accounts: names(&mut fields, ["denied_accounts", "accounts.deny"]),
        allow_qos: names(&mut fields, ["allowed_qos", "qos.allowed"]),
        deny_qos: names(&mut fields, ["denied_qos", "qos.deny"]),
        allow_groups: names(&mut fields, ["allowed_groups", "groups.allowed"]),
        total_cpus: fields
            .number("total_cpus")
            .or_else(|| fields.number("cpus.total")),
        total_nodes: fields
            .number("total_nodes")
            .or_else(|| fields.number("nodes.total")),
        tres: match fields.has("tres.configured") {
            true => fields.tres("tres.configured"),
            false => fields.tres("tres"),
        },
        billing_weights: fields.first(&["billing_weights", "tres.billing_weights"]),
        keys: BTreeMap::new(),
        name,
    };
    (!partition.name.is_empty() && fields.oddities.count() == 0).then_some(partition)
}

fn names(fields: &mut Fields, paths: [&str; 2]) -> Vec<String> {
    crate::parse::list(&fields.first(&paths))
}

fn limit(fields: &mut Fields, paths: &[&str], unset: &str) -> String {
    let minutes: Option<u32> = paths.iter().find_map(|path| fields.number(path));
    match minutes {
        Some(minutes) => minutes_text(minutes),
        None if paths.iter().any(|path| fields.infinite(path)) => "UNLIMITED".to_owned(),
        None => unset.to_owned(),
    }
}
