//! Nodes: `nodes` of `/slurm/v0.0.NN/nodes`, of `scontrol show node --json` and of 22.05's `sinfo --json`.

use serde_json::Value;
use slurm_types::NodeState;

use super::Fields;
use crate::record::{NodeRecord, Oddities};

/// One node; `None` if it has no name or no state.
pub(crate) fn node(value: &Value) -> Option<NodeRecord> {
    let mut fields = Fields::new(value);
    // 22.05: a word in lower case, with the flags beside it. v0.0.36 has no flags: see `rest`.
    let mut strings = fields.strings("state");
    strings.extend(fields.strings("state_flags"));
    let cpus_total = fields.number("cpus")?;
    let mut node = NodeRecord {
        name: fields.text("name"),
        state: NodeState::from_names(strings.iter().map(String::as_str)),
        cpus_total,
        cpus_alloc: fields.number("alloc_cpus").unwrap_or(0),
        cpus_effective: fields.number("effective_cpus").unwrap_or(cpus_total),
        real_memory_mib: fields.number("real_memory").unwrap_or(0),
        alloc_memory_mib: fields.number("alloc_memory").unwrap_or(0),
        free_memory_mib: fields
            .number("free_mem")
            .or_else(|| fields.number("free_memory")),
        reserved_memory_mib: fields.number("specialized_memory").unwrap_or(0),
        // In hundredths.
        cpu_load: fields.number("cpu_load").map(hundredths),
        gres: fields.text("gres"),
        available_features: fields.strings("features"),
        active_features: fields.strings("active_features"),
        partitions: fields.strings("partitions"),
        reason: fields.text("reason"),
        reason_user: fields.text("reason_set_by_user"),
        reason_time: fields.time("reason_changed_at"),
        boot_time: fields.time("boot_time"),
        slurmd_start_time: fields.time("slurmd_start_time"),
        last_busy_time: fields.time("last_busy"),
        instance_id: fields.text("instance_id"),
        instance_type: fields.text("instance_type"),
        weight: fields.number("weight"),
        comment: fields.text("comment"),
        extra: fields.text("extra"),
        addr: fields.text("address"),
        hostname: fields.text("hostname"),
        version: fields.first(&["version", "slurmd_version"]),
        cfg_tres: fields.tres("tres"),
        alloc_tres: fields.tres("tres_used"),
        oddities: Oddities::default(),
    };
    if node.reason.is_empty() {
        // Left over from an earlier reason (24.11).
        (node.reason_user, node.reason_time) = (String::new(), None);
    }
    node.oddities = fields.oddities;
    (!node.name.is_empty() && node.state != NodeState::default()).then_some(node)
}

fn hundredths(value: u32) -> f64 {
    f64::from(value) / 100.0
}
