//! Assigns endpoints to dispatchers.
//!
//! Every dispatcher computes the same assignment from the same data. Rendezvous hashing makes each endpoint prefer
//! one of the live dispatchers, so that one that joins or leaves moves only its own endpoints. The assignment alone
//! does not permit sending: that requires the lease, which only one dispatcher can hold. A holder that is not
//! preferred finishes the requests in flight and releases the lease. The preferred dispatcher takes a lease that no
//! live one holds.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

/// A live dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Id, new with every start.
    pub id: String,
    /// True while it shuts down and takes no more leases.
    pub leaving: bool,
    /// Endpoints of its `mesh.toml`.
    pub files: BTreeSet<String>,
}

/// The lease of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// Id of the dispatcher. Empty if the lease is free.
    pub holder: String,
    /// Incremented for every new holder.
    pub epoch: i64,
}

/// What a dispatcher does with leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasePlan {
    /// Leases to take, which no live dispatcher holds, with the epochs that were read. If one has changed, another
    /// dispatcher was faster.
    pub take: BTreeMap<String, i64>,
    /// Leases to release after the requests in flight.
    pub release: BTreeSet<String>,
}

/// The candidate that an endpoint prefers.
pub fn preferred<'a>(
    endpoint: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        .max_by_key(|id| (weight(endpoint, id), *id))
}

fn weight(endpoint: &str, id: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(
        u64::try_from(endpoint.len())
            .unwrap_or(u64::MAX)
            .to_be_bytes(),
    );
    hash.update(endpoint.as_bytes());
    hash.update(id.as_bytes());
    let digest = hash.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(first)
}

/// What dispatcher `me` does with the leases of these endpoints. Each is named with a flag: true if only dispatchers
/// that list it in their `mesh.toml` can own it.
pub fn plan<'a>(
    me: &str,
    replicas: &[Replica],
    endpoints: impl IntoIterator<Item = (&'a String, bool)>,
    leases: &BTreeMap<String, StoredLease>,
) -> LeasePlan {
    let at_work: BTreeSet<&str> = replicas.iter().map(|replica| replica.id.as_str()).collect();
    let mut plan = LeasePlan::default();
    for (name, from_file) in endpoints {
        let may_own = |replica: &Replica| !from_file || replica.files.contains(name);
        let candidates = replicas
            .iter()
            .filter(|replica| !replica.leaving && may_own(replica))
            .map(|replica| replica.id.as_str());
        let preferred = preferred(name, candidates);
        let lease = leases.get(name);
        let holder = lease
            .map(|lease| lease.holder.as_str())
            .filter(|holder| at_work.contains(holder));
        match (preferred, holder) {
            (Some(preferred), None) if preferred == me => {
                let epoch = lease.map_or(0, |lease| lease.epoch);
                plan.take.insert(name.clone(), epoch);
            }
            (Some(preferred), Some(holder)) if holder == me && preferred != me => {
                plan.release.insert(name.clone());
            }
            // The lease is where it should be, or another dispatcher acts next.
            (Some(_), Some(_) | None) => {}
            // It was removed from every `mesh.toml` while it was at work here.
            (None, Some(holder))
                if holder == me && !replicas.iter().any(|one| one.id == me && may_own(one)) =>
            {
                plan.release.insert(name.clone());
            }
            // No other dispatcher could take over: the holder keeps the lease.
            (None, Some(_) | None) => {}
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn replica(n: usize) -> Replica {
        Replica {
            id: format!("replica-{n}"),
            leaving: false,
            files: BTreeSet::new(),
        }
    }

    fn endpoints(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("endpoint-{n}")).collect()
    }

    fn choice(endpoint: &str, replicas: &[Replica]) -> String {
        let ids = replicas.iter().map(|replica| replica.id.as_str());
        preferred(endpoint, ids).unwrap().to_owned()
    }

    /// Simulates the database: a lease that a live dispatcher holds, or that was taken in the meantime, cannot be
    /// taken.
    fn perform(
        me: &str,
        replicas: &[Replica],
        plan: LeasePlan,
        leases: &mut BTreeMap<String, StoredLease>,
    ) {
        for (endpoint, seen) in plan.take {
            let lease = leases.entry(endpoint).or_insert(StoredLease {
                holder: String::new(),
                epoch: 0,
            });
            let held = replicas.iter().any(|replica| replica.id == lease.holder);
            if lease.epoch == seen && !held {
                *lease = StoredLease {
                    holder: me.to_owned(),
                    epoch: seen + 1,
                };
            }
        }
        for endpoint in plan.release {
            leases.get_mut(&endpoint).unwrap().holder.clear();
        }
    }

    #[test]
    fn endpoints_are_spread_evenly() {
        let replicas: Vec<_> = (0..4).map(replica).collect();
        let mut counts = BTreeMap::new();
        for endpoint in endpoints(1_000) {
            *counts.entry(choice(&endpoint, &replicas)).or_insert(0) += 1;
        }
        assert!(
            counts.values().all(|count| (190..=310).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn only_who_has_it_in_the_file_takes_an_endpoint_of_it() {
        let mut replicas: Vec<_> = (0..5).map(replica).collect();
        replicas[3].files.insert("pipeline".into());
        let name = "pipeline".to_owned();
        for (n, replica) in replicas.iter().enumerate() {
            let plan = plan(&replica.id, &replicas, [(&name, true)], &BTreeMap::new());
            assert_eq!(plan.take.len(), usize::from(n == 3));
            assert!(plan.release.is_empty());
        }
        // A leaving dispatcher keeps endpoints that no other can own.
        replicas[3].leaving = true;
        let held = BTreeMap::from([(
            "pipeline".to_owned(),
            StoredLease {
                holder: replicas[3].id.clone(),
                epoch: 1,
            },
        )]);
        for replica in &replicas {
            let plan = plan(&replica.id, &replicas, [(&name, true)], &held);
            assert_eq!(plan, LeasePlan::default());
        }
        // One that was removed from the file of its holder is released.
        replicas[3].leaving = false;
        replicas[3].files.clear();
        for (n, replica) in replicas.iter().enumerate() {
            let plan = plan(&replica.id, &replicas, [(&name, true)], &held);
            assert_eq!(plan.release.len(), usize::from(n == 3), "{plan:?}");
            assert!(plan.take.is_empty());
        }
    }

    proptest! {
        /// A joining dispatcher takes leases, a leaving one releases them. No lease moves between the others.
        #[test]
        fn only_what_has_to_move_moves(count in 1..8_usize, gone in 0..8_usize, name in ".{0,20}") {
            let replicas: Vec<_> = (0..count).map(replica).collect();
            let gone = format!("replica-{}", gone % count);
            let rest: Vec<_> = replicas.iter().filter(|replica| replica.id != gone).cloned().collect();
            let before = choice(&name, &replicas);
            if before != gone {
                prop_assert_eq!(choice(&name, &rest), before);
            }
        }

        /// From any leases and any order of actions, with dispatchers that join, leave and die: every endpoint ends
        /// at its preferred holder, and never has two.
        #[test]
        fn every_endpoint_ends_where_it_prefers(
            holders in prop::collection::vec((0..8_usize, 0..5_i64), 1..20),
            alive in prop::collection::btree_set(0..6_usize, 1..5),
            leaving in 0..6_usize,
            order in prop::collection::vec(0..6_usize, 40),
        ) {
            let replicas: Vec<_> = alive.iter().map(|n| Replica { leaving: *n == leaving && alive.len() > 1, ..replica(*n) }).collect();
            let assignable = endpoints(holders.len());
            let mut leases: BTreeMap<_, _> = assignable.iter().zip(&holders)
                .map(|(endpoint, (holder, epoch))| (endpoint.clone(), StoredLease { holder: format!("replica-{holder}"), epoch: *epoch }))
                .collect();
            let mut epochs = leases.clone();
            let rounds = order.iter().map(|n| &replicas[n % replicas.len()])
                // Finally, every dispatcher acts twice.
                .chain(&replicas).chain(&replicas);
            for replica in rounds {
                let plan = plan(&replica.id, &replicas, assignable.iter().map(|name| (name, false)), &leases);
                perform(&replica.id, &replicas, plan, &mut leases);
                for (name, lease) in &leases {
                    let before = &epochs[name];
                    let changed = lease.holder != before.holder && !lease.holder.is_empty();
                    prop_assert!(!changed || lease.epoch > before.epoch, "a new holder, a new epoch");
                    prop_assert!(lease.epoch >= before.epoch);
                }
                epochs.clone_from(&leases);
            }
            let staying: Vec<_> = replicas.iter().filter(|replica| !replica.leaving).cloned().collect();
            for endpoint in &assignable {
                prop_assert_eq!(&leases[endpoint].holder, &choice(endpoint, &staying));
            }
        }
    }
}
