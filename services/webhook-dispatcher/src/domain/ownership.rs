//! Which dispatcher is at work on which endpoint.
//!
//! Every dispatcher computes the same answer from the same facts: each endpoint prefers one of those that are at work, by rendezvous
//! hashing, so that a dispatcher that comes or goes moves no endpoints but its own. The answer alone is no right to send: that is the lease,
//! which only one can hold. Who holds a lease of an endpoint that prefers another finishes what is under way and gives it back; who is
//! preferred takes it when nobody at work holds it.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

/// A dispatcher that is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its id, new with every start.
    pub id: String,
    /// It finishes what it holds and takes nothing more.
    pub leaving: bool,
    /// Endpoints of its `mesh.toml`.
    pub files: BTreeSet<String>,
}

/// Who may be at work on an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Id of the dispatcher; empty for nobody.
    pub holder: String,
    /// Grows with every new holder.
    pub epoch: i64,
}

/// An endpoint that somebody has to be at work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Only a dispatcher that has it in its `mesh.toml` knows what it is.
    pub from_file: bool,
}

/// What a dispatcher does next about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take it; nobody at work holds it.
    Take {
        /// Endpoint.
        endpoint: String,
        /// The epoch that was seen; with another one somebody was faster.
        seen: i64,
    },
    /// Finish what is under way and give it back.
    Release {
        /// Endpoint.
        endpoint: String,
    },
}

/// The dispatcher that an endpoint prefers among these.
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

/// What the dispatcher `me` does about the leases of these endpoints.
pub fn plan(
    me: &str,
    replicas: &[Replica],
    endpoints: &[Wanted],
    leases: &BTreeMap<String, Lease>,
) -> Vec<Step> {
    let at_work: BTreeSet<&str> = replicas.iter().map(|replica| replica.id.as_str()).collect();
    let mut steps = Vec::new();
    for endpoint in endpoints {
        let candidates = replicas
            .iter()
            .filter(|replica| !replica.leaving)
            .filter(|replica| !endpoint.from_file || replica.files.contains(&endpoint.name))
            .map(|replica| replica.id.as_str());
        let preferred = preferred(&endpoint.name, candidates);
        let lease = leases.get(&endpoint.name);
        let holder = lease
            .map(|lease| lease.holder.as_str())
            .filter(|holder| at_work.contains(holder));
        match (preferred, holder) {
            (Some(preferred), None) if preferred == me => steps.push(Step::Take {
                endpoint: endpoint.name.clone(),
                seen: lease.map_or(0, |lease| lease.epoch),
            }),
            (Some(preferred), Some(holder)) if holder == me && preferred != me => {
                steps.push(Step::Release {
                    endpoint: endpoint.name.clone(),
                });
            }
            // It is at work where it should be, or somebody else has the next step.
            (Some(_), Some(_) | None) => {}
            // Nobody could go on with it: who holds it keeps it.
            (None, Some(_) | None) => {}
        }
    }
    steps
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

    fn endpoints(count: usize) -> Vec<Wanted> {
        (0..count)
            .map(|n| Wanted {
                name: format!("endpoint-{n}"),
                from_file: false,
            })
            .collect()
    }

    fn choice(endpoint: &str, replicas: &[Replica]) -> String {
        let ids = replicas.iter().map(|replica| replica.id.as_str());
        preferred(endpoint, ids).unwrap().to_owned()
    }

    /// As the database does it: a lease that is held by somebody at work, or was taken meanwhile, cannot be taken.
    fn perform(
        me: &str,
        replicas: &[Replica],
        steps: Vec<Step>,
        leases: &mut BTreeMap<String, Lease>,
    ) {
        for step in steps {
            match step {
                Step::Take { endpoint, seen } => {
                    let lease = leases.entry(endpoint).or_insert(Lease {
                        holder: String::new(),
                        epoch: 0,
                    });
                    let held = replicas.iter().any(|replica| replica.id == lease.holder);
                    if lease.epoch == seen && !held {
                        *lease = Lease {
                            holder: me.to_owned(),
                            epoch: seen + 1,
                        };
                    }
                }
                Step::Release { endpoint } => {
                    leases.get_mut(&endpoint).unwrap().holder.clear();
                }
            }
        }
    }

    #[test]
    fn endpoints_are_spread_evenly() {
        let replicas: Vec<_> = (0..4).map(replica).collect();
        let mut counts = BTreeMap::new();
        for endpoint in endpoints(1_000) {
            *counts.entry(choice(&endpoint.name, &replicas)).or_insert(0) += 1;
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
        let wanted = [Wanted {
            name: "pipeline".into(),
            from_file: true,
        }];
        for (n, replica) in replicas.iter().enumerate() {
            let steps = plan(&replica.id, &replicas, &wanted, &BTreeMap::new());
            assert_eq!(steps.len(), usize::from(n == 3));
        }
        // While it leaves it keeps what nobody else could go on with.
        replicas[3].leaving = true;
        let held = BTreeMap::from([(
            "pipeline".to_owned(),
            Lease {
                holder: replicas[3].id.clone(),
                epoch: 1,
            },
        )]);
        for replica in &replicas {
            assert_eq!(plan(&replica.id, &replicas, &wanted, &held), []);
        }
    }

    proptest! {
        /// Who comes takes, who goes leaves; between those that stay nothing moves.
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

        /// From any leases, in any order of steps, with replicas that come, leave and die: soon every endpoint has the holder it prefers,
        /// and at no time two.
        #[test]
        fn every_endpoint_ends_where_it_prefers(
            holders in prop::collection::vec((0..8_usize, 0..5_i64), 1..20),
            alive in prop::collection::btree_set(0..6_usize, 1..5),
            leaving in 0..6_usize,
            order in prop::collection::vec(0..6_usize, 40),
        ) {
            let replicas: Vec<_> = alive.iter().map(|n| Replica { leaving: *n == leaving && alive.len() > 1, ..replica(*n) }).collect();
            let wanted = endpoints(holders.len());
            let mut leases: BTreeMap<_, _> = wanted.iter().zip(&holders)
                .map(|(endpoint, (holder, epoch))| (endpoint.name.clone(), Lease { holder: format!("replica-{holder}"), epoch: *epoch }))
                .collect();
            let mut epochs = leases.clone();
            let rounds = order.iter().map(|n| &replicas[n % replicas.len()])
                // In the end everybody had their turn twice.
                .chain(&replicas).chain(&replicas);
            for replica in rounds {
                let steps = plan(&replica.id, &replicas, &wanted, &leases);
                perform(&replica.id, &replicas, steps, &mut leases);
                for (name, lease) in &leases {
                    let before = &epochs[name];
                    let changed = lease.holder != before.holder && !lease.holder.is_empty();
                    prop_assert!(!changed || lease.epoch > before.epoch, "a new holder, a new epoch");
                    prop_assert!(lease.epoch >= before.epoch);
                }
                epochs.clone_from(&leases);
            }
            let staying: Vec<_> = replicas.iter().filter(|replica| !replica.leaving).cloned().collect();
            for endpoint in &wanted {
                prop_assert_eq!(&leases[&endpoint.name].holder, &choice(&endpoint.name, &staying));
            }
        }
    }
}
