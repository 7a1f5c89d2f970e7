//! `scontrol -o show node`, `show partition` and `show config`. Only administrators write here; the reason and the comments are free text.

use std::collections::BTreeMap;

use slurm_types::{NodeState, Tres, UnixTime};

use super::{keys::pairs, leading, list, text};
use crate::drift::Unread;
use crate::record::{NodeRecord, Oddities, PartitionRecord};

/// The nodes, and the lines that could not be parsed.
pub(crate) fn nodes(output: &str) -> (Vec<NodeRecord>, Unread) {
    each_record(output, "NodeName=", node)
}

/// The partitions, and the lines that could not be parsed.
pub(crate) fn partitions(output: &str) -> (Vec<PartitionRecord>, Unread) {
    each_record(output, "PartitionName=", partition)
}

/// Parses records that begin with a key at the start of a line. A free text with a newline stays in its record, unless it forges the key:
/// names that occur twice are then dropped and counted.
fn each_record<T>(
    output: &str,
    first_key: &str,
    read: impl Fn(&str) -> Option<(String, T)>,
) -> (Vec<T>, Unread) {
    let mut records: Vec<String> = Vec::new();
    let mut unread = Unread::default();
    for line in output.lines().filter(|line| !line.trim().is_empty()) {
        match records.last_mut() {
            _ if line.starts_with(first_key) => records.push(line.to_owned()),
            Some(record) => {
                record.push(' ');
                record.push_str(line);
            }
            None => unread.note(line),
        }
    }
    let mut named: BTreeMap<String, Vec<T>> = BTreeMap::new();
    for record in &records {
        match read(record) {
            Some((name, value)) => named.entry(name).or_default().push(value),
            None => unread.note(record),
        }
    }
    let mut values = Vec::with_capacity(named.len());
    for (name, mut same) in named {
        match (same.pop(), same.len()) {
            (Some(value), 0) => values.push(value),
            (_, others) => (0..=others).for_each(|_| unread.note(&format!("{first_key}{name}"))),
        }
    }
    (values, unread)
}

fn node(record: &str) -> Option<(String, NodeRecord)> {
    let mut node = NodeRecord::default();
    let mut effective = None;
    let (own, tail) = record.split_at(own_end(record));
    for (key, value) in pairs(own) {
        match key {
            "NodeName" => node.name = text(value),
            "State" => node.state = NodeState::parse(value),
            "CPUTot" => node.cpus_total = leading(value)?,
            "CPUAlloc" => node.cpus_alloc = leading(value).unwrap_or(0),
            "CPUEfctv" => effective = leading(value),
            "RealMemory" => node.real_memory_mib = leading(value).unwrap_or(0),
            "AllocMem" => node.alloc_memory_mib = leading(value).unwrap_or(0),
            "FreeMem" => node.free_memory_mib = leading(value),
            "MemSpecLimit" => node.reserved_memory_mib = leading(value).unwrap_or(0),
            "CPULoad" => node.cpu_load = value.parse().ok(),
            "Gres" => node.gres = text(value),
            "AvailableFeatures" => node.available_features = list(value),
            "ActiveFeatures" => node.active_features = list(value),
            "Partitions" => node.partitions = list(value),
            "BootTime" => node.boot_time = UnixTime::parse(value),
            "SlurmdStartTime" => node.slurmd_start_time = UnixTime::parse(value),
            "LastBusyTime" => node.last_busy_time = UnixTime::parse(value),
            "InstanceId" => node.instance_id = text(value),
            "InstanceType" => node.instance_type = text(value),
            "Weight" => node.weight = leading(value),
            "NodeAddr" => node.addr = text(value),
            "NodeHostName" => node.hostname = text(value),
            "Version" => node.version = text(value),
            "CfgTRES" => node.cfg_tres = tres(key, value, &mut node.oddities),
            "AllocTRES" => node.alloc_tres = tres(key, value, &mut node.oddities),
            _ => {}
        }
    }
    free_texts(&mut node, tail);
    node.cpus_effective = effective.unwrap_or(node.cpus_total);
    (!node.name.is_empty() && node.state != NodeState::default()).then(|| (node.name.clone(), node))
}

/// Where Slurm's own fields of a record end. Free texts follow: `Comment`, `Extra`, `Reason`.
pub(crate) fn own_end(record: &str) -> usize {
    let keys = [" Comment=", " Extra=", " Reason="];
    let ends = keys.iter().filter_map(|key| record.find(key));
    ends.min().unwrap_or(record.len())
}

fn free_texts(node: &mut NodeRecord, tail: &str) {
    let mut end = tail.len();
    // `Reason=bad disk [root@1795305073]` is always written last of the three, except for the instance keys of 23.11 and later.
    for key in [
        " InstanceType=",
        " InstanceId=",
        " Reason=",
        " Extra=",
        " Comment=",
    ] {
        let Some(at) = tail[..end].rfind(key) else {
            continue;
        };
        let value = text(&tail[at + key.len()..end]);
        end = at;
        match key {
            " InstanceType=" => node.instance_type = value,
            " InstanceId=" => node.instance_id = value,
            " Extra=" => node.extra = value,
            " Comment=" => node.comment = value,
            _ => (node.reason, node.reason_user, node.reason_time) = split_reason(&value),
        }
    }
}

/// `bad disk [root@1795305073]`; without the bracket the author is unknown.
fn split_reason(value: &str) -> (String, String, Option<UnixTime>) {
    let by = value
        .rsplit_once(" [")
        .and_then(|(reason, by)| Some((reason, by.strip_suffix(']')?.rsplit_once('@')?)));
    match by {
        Some((reason, (user, time))) => (reason.to_owned(), user.to_owned(), UnixTime::parse(time)),
        None => (value.to_owned(), String::new(), None),
    }
}

fn partition(record: &str) -> Option<(String, PartitionRecord)> {
    let keys: BTreeMap<String, String> = pairs(record)
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let get = |key: &str| keys.get(key).map(|value| text(value)).unwrap_or_default();
    // `ALL` stands for no restriction.
    let names = |key: &str| match get(key).as_str() {
        "ALL" => Vec::new(),
        names => list(names),
    };
    let name = get("PartitionName");
    let partition = PartitionRecord {
        name: name.clone(),
        state: get("State"),
        default: get("Default") == "YES",
        nodes: get("Nodes"),
        max_time: get("MaxTime"),
        default_time: get("DefaultTime"),
        qos: get("QoS"),
        priority_tier: leading(&get("PriorityTier")),
        min_nodes: leading(&get("MinNodes")).unwrap_or(0),
        max_nodes: leading(&get("MaxNodes")),
        allow_accounts: names("AllowAccounts"),
        deny_accounts: names("DenyAccounts"),
        allow_qos: names("AllowQos"),
        deny_qos: names("DenyQos"),
        allow_groups: names("AllowGroups"),
        total_cpus: leading(&get("TotalCPUs")),
        total_nodes: leading(&get("TotalNodes")),
        tres: Tres::parse_lossy(&get("TRES")).0,
        billing_weights: get("TRESBillingWeights"),
        keys: BTreeMap::new(),
    };
    (!name.is_empty()).then_some((name, PartitionRecord { keys, ..partition }))
}

/// `Key = value` lines of `scontrol show config`. Multi-valued keys and the ping lines at the end are left as they are. The heading is the
/// controller's clock (seen on 22.05: it changes with every call) and becomes the key `AsOf`, in Unix seconds like all times.
pub(crate) fn config(output: &str) -> BTreeMap<String, String> {
    let heading = output
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("Configuration data as of "))
        .map(|time| ("AsOf".to_owned(), time.trim().to_owned()));
    output
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), text(value)))
        .filter(|(key, _)| !key.is_empty() && !key.contains(' '))
        .chain(heading)
        .collect()
}

fn tres(field: &str, value: &str, oddities: &mut Oddities) -> Tres {
    let (tres, odd) = Tres::parse_lossy(value);
    oddities.note_tres(field, &odd);
    tres
}
