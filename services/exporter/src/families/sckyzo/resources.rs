//! Generic resources of each node.

use std::collections::BTreeMap;

use slurm_types::Tres;

use crate::domain::exposition::{Exposition, Kind};
use crate::domain::nodes::Nodes;
use crate::families::float;
use crate::families::vpenso::state_name;

/// Generic resources by type: `gpu:a100`.
pub(super) fn resources(nodes: &Nodes, fits: usize, page: &mut Exposition) {
    for (name, is_total) in [
        ("slurm_node_gres_total", true),
        ("slurm_node_gres_used", false),
    ] {
        page.metric(name, Kind::Gauge, "Generic resources of the node");
        for node in nodes.nodes.iter().take(fits) {
            let configured = generic_resources(&node.summary.gres);
            let allocated = Tres::parse_lossy(&node.summary.alloc_tres).0;
            for (kind, number) in &configured {
                let number = match is_total {
                    true => Some(*number),
                    false => used(&configured, kind, &allocated),
                };
                let Some(number) = number else { continue };
                for partition in &node.summary.partitions {
                    let labels = [
                        ("node", node.summary.name.as_str()),
                        ("status", state_name(node)),
                        ("partition", partition),
                        ("gres_type", kind),
                    ];
                    page.sample(name, &labels, float(number));
                }
            }
        }
    }
}

/// `gpu:a100:4(S:0-1),shard:8` by type.
fn generic_resources(text: &str) -> BTreeMap<String, u64> {
    let mut resources = BTreeMap::new();
    // Commas within brackets do not divide items.
    let mut depth = 0_u32;
    let items = text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    for item in items {
        let item = item.split('(').next().unwrap_or_default();
        if let Some((kind, number)) = item.rsplit_once(':')
            && let Ok(number) = number.trim().parse::<u64>()
        {
            *resources.entry(kind.trim().to_owned()).or_default() += number;
        }
    }
    resources
}

/// How many of a type are allocated. Unknown if Slurm tracks only the sum of several types.
fn used(configured: &BTreeMap<String, u64>, kind: &str, allocated: &Tres) -> Option<u64> {
    if let Some(number) = allocated.get(&format!("gres/{kind}")) {
        return Some(number);
    }
    let name = kind.split(':').next().unwrap_or(kind);
    let of_name = |other: &&String| other.split(':').next() == Some(name);
    let number = allocated.get(&format!("gres/{name}")).unwrap_or_default();
    (number == 0 || configured.keys().filter(of_name).count() == 1).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generic_resources_are_counted_by_type() {
        let found = generic_resources("gpu:a100:4(S:0,1),gpu:v100:2,shard:8");
        let expected = [("gpu:a100", 4), ("gpu:v100", 2), ("shard", 8)];
        let expected = expected.map(|(kind, number)| (kind.to_owned(), number));
        assert_eq!(found, BTreeMap::from(expected));
        assert_eq!(generic_resources(""), BTreeMap::new());
    }

    #[test]
    fn use_is_unknown_if_only_the_sum_of_several_types_is() {
        let one = generic_resources("gpu:a100:4");
        let two = generic_resources("gpu:a100:4,gpu:v100:2");
        let sum = Tres::parse_lossy("cpu=4,gres/gpu=3").0;
        let typed = Tres::parse_lossy("gres/gpu=3,gres/gpu:a100=2").0;
        assert_eq!(used(&one, "gpu:a100", &sum), Some(3));
        assert_eq!(used(&two, "gpu:a100", &sum), None);
        assert_eq!(used(&two, "gpu:a100", &typed), Some(2));
        assert_eq!(used(&two, "gpu:a100", &Tres::default()), Some(0));
    }
}
