//! What a run held and did not use.
//!
//! Efficiencies are measured; amounts compare with a smaller request priced by the same rules. It would have been enough to ask for
//! - as many CPUs as the run used on average, rounded up, and one for each node;
//! - six fifths of the memory that it used at its peak;
//! - the GPUs that it used.
//!
//! What is not known is taken as used in full. Nodes taken as a whole have no smaller request, so nothing of them is unused.

use num_traits::{One as _, Zero as _};

use super::money::{Exact, integer, ratio};
use super::price::{Run, Segment, cut_at_suspensions};
use super::{Amounts, NodeAmounts};

/// What a run used. `None` if it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU seconds.
    pub cpu_seconds: Option<u64>,
    /// Peak memory of all its nodes in MiB.
    pub mem_mib: Option<u64>,
    /// GPUs with a mean use of at least 5 %.
    pub gpus: Option<u64>,
}

impl Used {
    /// True if nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// Seconds that the run was not suspended, and its CPUs times these seconds.
pub fn held(run: &Run) -> (u64, Exact) {
    let Some(start) = run.start else {
        return (0, Exact::zero());
    };
    let (mut seconds, mut cpu_seconds) = (0, Exact::zero());
    for segment in &run.segments {
        let from = segment.from.max(start);
        let to = segment.to.unwrap_or(run.end).min(run.end);
        let cpus = total(&segment.allocation).cpu;
        for (from, to, suspended) in cut_at_suspensions(from, to, &run.suspensions) {
            if !suspended {
                seconds += from.abs_diff(to);
                cpu_seconds += &cpus * integer(from.abs_diff(to));
            }
        }
    }
    (seconds, cpu_seconds)
}

/// The run with a request that would have been enough.
pub fn rightsized(run: &Run, used: &Used) -> Run {
    let (seconds, _) = held(run);
    let cpus = used
        .cpu_seconds
        .filter(|_| seconds > 0)
        .map(|used| used.div_ceil(seconds).max(1));
    let mem_mib = used
        .mem_mib
        .and_then(|peak| Some(integer(peak) * ratio(6, 5)?));
    let segment = |segment: &Segment| {
        let held = total(&segment.allocation);
        let nodes = u64::try_from(segment.allocation.len()).unwrap_or(u64::MAX);
        let needed = |held: &Exact, needed: Option<Exact>| match needed {
            Some(needed) if !held.is_zero() => (needed / held).min(Exact::one()),
            _ => Exact::one(),
        };
        let cpu = needed(&held.cpu, cpus.map(|cpus| integer(cpus.max(nodes))));
        let mem = needed(&held.mem_mib, mem_mib.clone());
        let gpu = needed(&held.gpu, used.gpus.map(integer));
        let smaller = |node: &NodeAmounts| NodeAmounts {
            node: node.node.clone(),
            amounts: Amounts {
                cpu: &node.amounts.cpu * &cpu,
                mem_mib: &node.amounts.mem_mib * &mem,
                gpu: &node.amounts.gpu * &gpu,
            },
        };
        Segment {
            allocation: segment.allocation.iter().map(smaller).collect(),
            ..segment.clone()
        }
    };
    Run {
        segments: run.segments.iter().map(segment).collect(),
        ..run.clone()
    }
}

fn total(allocation: &[NodeAmounts]) -> Amounts {
    let mut sum = Amounts::default();
    for NodeAmounts { amounts, .. } in allocation {
        sum.cpu += &amounts.cpu;
        sum.mem_mib += &amounts.mem_mib;
        sum.gpu += &amounts.gpu;
    }
    sum
}

/// Why the cost of a run that did not complete is lost. Empty if it completed.
pub fn lost_kind(state: &str) -> &'static str {
    match state.split([' ', ',', '+']).next().unwrap_or_default() {
        "COMPLETED" => "",
        "PREEMPTED" => "preempted",
        "NODE_FAIL" | "BOOT_FAIL" => "node_fail",
        "REQUEUED" => "requeued",
        "OUT_OF_MEMORY" => "oom",
        "TIMEOUT" | "DEADLINE" => "timeout",
        "CANCELLED" | "REVOKED" => "cancelled",
        _ => "failed",
    }
}

/// All values of [`lost_kind`] but the empty one.
pub const LOST_KINDS: [&str; 7] = [
    "cancelled",
    "failed",
    "node_fail",
    "oom",
    "preempted",
    "requeued",
    "timeout",
];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::price::{Nodes, price};
    use crate::domain::rates::{RatePeriod, RateSchedule};
    use crate::domain::share::Capacity;
    use crate::domain::{Market, Micros, NodeSpec, Rate, ShareRule};

    const GIB: u64 = 1024;

    /// A node with 64 CPUs, 256 GiB and 4 GPUs at 12.00 per hour.
    fn nodes() -> Nodes {
        let rates = RateSchedule::new(&[RatePeriod {
            from: None,
            to: None,
            rate: Rate::flat(Micros(12_000_000)),
        }]);
        let spec = NodeSpec {
            node_type: "t".into(),
            market: Market::OnDemand,
            capacity: Capacity {
                cpu: 64,
                mem_mib: 256 * GIB,
                gpu: 4,
            },
            weights: None,
            rates: Arc::new(rates.unwrap()),
        };
        Nodes::from([("n".to_owned(), Arc::new(spec))])
    }

    fn run(cpus: u64, mem_mib: u64, gpus: u64, seconds: i64) -> Run {
        let allocation = vec![NodeAmounts {
            node: "n".into(),
            amounts: Amounts::new(cpus, mem_mib, gpus),
        }];
        Run {
            start: Some(0),
            end: seconds,
            segments: vec![Segment {
                from: 0,
                to: None,
                allocation,
            }],
            ..Run::default()
        }
    }

    fn costs(run: &Run, used: &Used) -> (i64, i64) {
        let cost = |run: &Run| price(ShareRule::MaxShare, &nodes(), run).unwrap().cost.0;
        (cost(run), cost(&rightsized(run, used)))
    }

    /// 10 hours with 6.4 cores, 40 GiB and one GPU used.
    const USED: Used = Used {
        cpu_seconds: Some(230_400),
        mem_mib: Some(40 * GIB),
        gpus: Some(1),
    };

    #[test]
    fn the_rightsized_cost_is_that_of_the_largest_part_needed() {
        let with_gpus = run(32, 128 * GIB, 4, 36_000);
        assert_eq!(costs(&with_gpus, &USED), (120_000_000, 30_000_000));
        let unknown = Used { gpus: None, ..USED };
        assert_eq!(costs(&with_gpus, &unknown), (120_000_000, 120_000_000));
        let without = run(32, 128 * GIB, 0, 36_000);
        assert_eq!(costs(&without, &unknown), (60_000_000, 22_500_000));
        let exclusive = Run {
            exclusive: true,
            ..without
        };
        let (cost, rightsized) = costs(&exclusive, &unknown);
        assert_eq!(cost, rightsized, "could not have asked for less");
    }

    #[test]
    fn suspended_time_is_not_held() {
        let suspended = Run {
            suspensions: vec![(100, 600)],
            ..run(4, 0, 0, 1000)
        };
        assert_eq!(held(&suspended), (500, integer(2000u32)));
    }

    #[test]
    fn every_state_of_a_lost_run_has_a_listed_kind() {
        for state in [
            "CANCELLED by 1000",
            "FAILED",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "PREEMPTED",
            "REQUEUED",
            "TIMEOUT",
            "NEW",
        ] {
            assert!(LOST_KINDS.contains(&lost_kind(state)), "{state}");
        }
        assert_eq!(lost_kind("COMPLETED"), "");
    }

    proptest! {
        #[test]
        fn the_rightsized_cost_is_never_above_the_cost(
            (cpus, mem, gpus) in (1u64..=64, 0u64..=256 * GIB, 0u64..=4),
            seconds in 0i64..100_000,
            used in (prop::option::of(0u64..10_000_000), prop::option::of(0u64..500 * GIB), prop::option::of(0u64..9)),
        ) {
            let used = Used { cpu_seconds: used.0, mem_mib: used.1, gpus: used.2 };
            let (cost, rightsized) = costs(&run(cpus, mem, gpus, seconds), &used);
            prop_assert!(rightsized <= cost);
        }
    }
}
