//! What of a budget is used. Pure.
//!
//! Costs of a period are grouped by what budgets select runs by, so an array of 100,000 tasks is one group. An index leads from each
//! value of a scope to its groups.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::AddAssign;

use super::account_tree::AccountTree;
use super::{Budget, Counts, ScopeKey};
use crate::adapters::{People, RunKeys};
use crate::domain::{Micros, RunsCost};

/// Costs of runs in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Parts of final costs.
    pub settled: RunsCost,
    /// Costs of running jobs until now.
    pub in_flight: RunsCost,
    /// What running jobs may still cost until their time limits.
    pub remaining: Micros,
    /// What pending jobs may cost until their time limits.
    pub pending: RunsCost,
    /// Cost of running jobs per hour.
    pub burn_rate: RunsCost,
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Self) {
        self.settled += other.settled;
        self.in_flight += other.in_flight;
        self.remaining = self.remaining + other.remaining;
        self.pending += other.pending;
        self.burn_rate += other.burn_rate;
    }
}

impl Amounts {
    /// Settled and in flight.
    pub fn spent(&self) -> RunsCost {
        self.settled + self.in_flight
    }

    /// Settled, in flight, and what running and pending jobs may still cost.
    pub fn committed(&self) -> RunsCost {
        let all = self.spent() + self.pending;
        RunsCost {
            known: all.known + self.remaining,
            ..all
        }
    }

    /// What a budget compares with its amount.
    pub fn counted(&self, counts: Counts) -> RunsCost {
        match counts {
            Counts::Settled => self.settled,
            Counts::InFlight => self.spent(),
            Counts::Committed => self.committed(),
        }
    }
}

/// Runs with equal keys.
#[derive(Clone, Debug)]
struct RunGroup {
    keys: RunKeys,
    person: String,
    /// The account and those above it.
    accounts: Vec<String>,
    amounts: Amounts,
}

/// Costs of a period by group.
#[derive(Clone, Debug, Default)]
pub struct RunGroups {
    groups: Vec<RunGroup>,
    index: HashMap<(ScopeKey, String), Vec<usize>>,
}

impl RunGroups {
    /// Indexes the costs of a period.
    pub fn new(costs: HashMap<RunKeys, Amounts>, people: &People, tree: &AccountTree) -> Self {
        let mut this = Self::default();
        let mut costs: Vec<_> = costs.into_iter().collect();
        costs.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (keys, amounts) in costs {
            let group = RunGroup {
                person: people.of(&keys.cluster, &keys.user).key,
                accounts: tree.with_ancestors(&keys.cluster, &keys.account),
                keys,
                amounts,
            };
            for key in ScopeKey::ALL.into_iter().chain([ScopeKey::Subtree]) {
                for value in group.values(key) {
                    let place = this.index.entry((key, value.to_owned())).or_default();
                    place.push(this.groups.len());
                }
            }
            this.groups.push(group);
        }
        this
    }

    /// What of the budget is used.
    pub fn used(&self, budget: &Budget) -> Amounts {
        let mut sum = Amounts::default();
        for group in self.of(budget) {
            sum += group.amounts;
        }
        sum
    }

    /// The users with the largest costs within the budget: cluster, user, and what is settled and in flight.
    pub fn contributors(&self, budget: &Budget, limit: usize) -> Vec<(String, String, Micros)> {
        let mut users: BTreeMap<(&str, &str), Micros> = BTreeMap::new();
        for group in self.of(budget) {
            let key = (group.keys.cluster.as_str(), group.keys.user.as_str());
            let sum = users.entry(key).or_default();
            *sum = *sum + group.amounts.spent().known;
        }
        let mut users: Vec<_> = users.into_iter().collect();
        users.retain(|(_, spent)| *spent > Micros::ZERO);
        users.sort_by_key(|(_, spent)| std::cmp::Reverse(*spent));
        users.truncate(limit);
        let owned = |((cluster, user), spent): ((&str, &str), Micros)| {
            (cluster.to_owned(), user.to_owned(), spent)
        };
        users.into_iter().map(owned).collect()
    }

    fn of<'a>(&'a self, budget: &'a Budget) -> impl Iterator<Item = &'a RunGroup> {
        let candidates = self.candidates(budget).into_iter();
        candidates
            .map(move |position| &self.groups[position])
            .filter(move |group| group.is_in(budget))
    }

    /// Groups that match one key of the scope: the key with the fewest.
    fn candidates(&self, budget: &Budget) -> BTreeSet<usize> {
        let lists = budget.scope.iter().map(|(key, values)| {
            let lists = values
                .iter()
                .filter_map(|value| self.index.get(&(*key, value.clone())));
            lists.collect::<Vec<_>>()
        });
        let fewest =
            lists.min_by_key(|lists| lists.iter().map(|groups| groups.len()).sum::<usize>());
        fewest.into_iter().flatten().flatten().copied().collect()
    }
}

impl RunGroup {
    fn values(&self, key: ScopeKey) -> Vec<&str> {
        match key {
            ScopeKey::Identity => vec![&self.person],
            ScopeKey::User => vec![&self.keys.user],
            ScopeKey::Account => vec![&self.keys.account],
            ScopeKey::Subtree => self.accounts.iter().map(String::as_str).collect(),
            ScopeKey::Qos => vec![&self.keys.qos],
            ScopeKey::Partition => vec![&self.keys.partition],
            ScopeKey::Cluster => vec![&self.keys.cluster],
            ScopeKey::Tag => self.keys.tags.lines().collect(),
        }
    }

    fn is_in(&self, budget: &Budget) -> bool {
        budget.scope.iter().all(|(key, values)| {
            let mut own = self.values(*key).into_iter();
            own.any(|value| values.contains(value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::files::parse;

    fn budgets(scopes: &[String]) -> Vec<Budget> {
        let text: Vec<String> = scopes
            .iter()
            .enumerate()
            .map(|(n, scope)| {
                format!(
                    "[[budget]]\nname = \"b{n}\"\nscope = {{ {scope} }}\nperiod = \"month\"\namount = 1\n"
                )
            })
            .collect();
        parse(&text.concat()).unwrap()
    }

    fn run(user: &str, account: &str, tags: &str) -> RunKeys {
        RunKeys {
            cluster: "c".into(),
            user: user.into(),
            account: account.into(),
            partition: "gpu".into(),
            qos: "normal".into(),
            tags: tags.into(),
        }
    }

    fn settled(micros: i64) -> Amounts {
        Amounts {
            settled: RunsCost::of(Some(Micros(micros))),
            ..Amounts::default()
        }
    }

    #[test]
    fn all_keys_must_match_and_one_value_of_each() {
        let costs = HashMap::from([
            (run("alice", "nlp", "a=1\nb=2"), settled(1)),
            (run("bob", "nlp", ""), settled(10)),
            (run("alice", "vision", "b=2"), settled(100)),
        ]);
        let groups = RunGroups::new(costs, &People::default(), &AccountTree::default());
        for (scope, used) in [
            ("account = \"nlp\"", 11),
            ("account = [\"nlp\", \"vision\"]", 111),
            ("account = \"nlp\", user = \"alice\", cluster = \"c\"", 1),
            ("identity = \"unix:alice@c\"", 101),
            ("tag = [\"a=1\", \"b=2\"]", 101),
            ("tag = \"a=1\", cluster = \"c\", qos = \"normal\"", 1),
            ("partition = \"cpu\"", 0),
        ] {
            let budget = &budgets(&[scope.to_owned()])[0];
            assert_eq!(groups.used(budget).settled.known, Micros(used), "{scope}");
        }
        let all = &budgets(&["cluster = \"c\"".to_owned()])[0];
        let largest = groups.contributors(all, 1);
        assert_eq!(largest, [("c".into(), "alice".into(), Micros(101))]);
    }

    #[test]
    fn a_subtree_is_an_account_and_those_below_it_on_the_cluster_of_the_run() {
        let tree = AccountTree::of_test(&[
            ("c", "nlp", "root"),
            ("c", "nlp-a", "nlp"),
            ("c", "nlp-a-1", "nlp-a"),
            ("d", "nlp-a", "vision"),
        ]);
        let on = |cluster: &str, account: &str| RunKeys {
            cluster: cluster.into(),
            ..run("alice", account, "")
        };
        let costs = HashMap::from([
            (on("c", "nlp"), settled(1)),
            (on("c", "nlp-a"), settled(10)),
            (on("c", "nlp-a-1"), settled(100)),
            (on("c", "vision"), settled(1_000)),
            (on("d", "nlp-a"), settled(10_000)),
        ]);
        let groups = RunGroups::new(costs, &People::default(), &tree);
        for (scope, used) in [
            ("account = \"nlp\", subtree = true", 111),
            ("account = \"nlp\", subtree = false", 1),
            ("account = \"nlp-a\", subtree = true", 10_110),
            ("account = \"nlp-a\", subtree = true, cluster = \"c\"", 110),
            ("account = \"vision\", subtree = true", 11_000),
            // An account that is named twice counts once.
            ("account = [\"nlp\", \"nlp-a\"], subtree = true", 10_111),
            ("account = \"root\", subtree = true", 111),
        ] {
            let budget = &budgets(&[scope.to_owned()])[0];
            assert_eq!(groups.used(budget).settled.known, Micros(used), "{scope}");
        }
    }

    /// 1,000 budgets and 10,000 running jobs: the index leads to the groups of a budget, so few are compared.
    #[test]
    fn an_evaluation_visits_only_groups_of_the_budgets() {
        let user = |n: usize| format!("u{}", n % 500);
        let account = |n: usize| format!("a{}", n % 100);
        let mut costs: HashMap<RunKeys, Amounts> = HashMap::new();
        for n in 0..10_000 {
            let one = Amounts {
                in_flight: RunsCost::of(Some(Micros(1))),
                ..Amounts::default()
            };
            *costs.entry(run(&user(n), &account(n), "")).or_default() += one;
        }
        let groups = RunGroups::new(costs, &People::default(), &AccountTree::default());
        let scopes: Vec<String> = (0..1_000)
            .map(|n| match n % 2 {
                0 => format!(
                    "user = \"u{}\", account = \"a{}\", cluster = \"c\"",
                    n / 2,
                    n / 2 % 100
                ),
                _ => format!("account = \"a{}\", cluster = \"c\"", n / 2 % 100),
            })
            .collect();
        let budgets = budgets(&scopes);
        let visited: usize = budgets.iter().map(|one| groups.candidates(one).len()).sum();
        let used: Micros = budgets
            .iter()
            .map(|budget| groups.used(budget).in_flight.known)
            .sum();
        // 500 users with 20 jobs each, 500 times an account with 100.
        assert_eq!(used, Micros(500 * 20 + 500 * 100));
        assert_eq!(groups.groups.len(), 500);
        assert_eq!(visited, 500 + 500 * 5);
    }
}
