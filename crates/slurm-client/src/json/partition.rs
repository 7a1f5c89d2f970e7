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
    (!partition.name.is_empty() && fields.oddities == 0).then_some(partition)
}

fn limit(fields: &mut Fields, paths: &[&str], unset: &str) -> String {
    let minutes: Option<u32> = paths.iter().find_map(|path| fields.number(path));
    match minutes {
        Some(minutes) => minutes_text(minutes),
        None if paths.iter().any(|path| fields.infinite(path)) => "UNLIMITED".to_owned(),
        None => unset.to_owned(),
    }
}
