//! Budgets: what may be spent in a period, by person, user, account, QOS, partition, cluster or tag. They cancel and hold nothing.
//!
//! - [`files`]: reads them from a folder. `watcher` follows changes of the folder. [`error`]: their faults.
//! - [`account_tree`]: which accounts are below others.
//! - [`usage`]: what of each budget is used, computed from the costs of runs. [`open_costs`]: costs of running jobs over time.
//!   [`pending_costs`]: what pending jobs may cost.
//! - [`crossing`]: which thresholds a use has passed. `published`: which of them are published already.
//! - [`forecast`]: the use at the end of the period.
//! - `evaluator`: does all of that whenever costs were committed, and every minute. [`event`]: the events.

pub mod account_tree;
pub mod crossing;
pub mod error;
pub(crate) mod evaluator;
pub mod event;
pub mod files;
pub mod forecast;
pub(crate) mod open_costs;
pub(crate) mod pending_costs;
pub(crate) mod published;
pub mod status;
pub mod usage;
pub(crate) mod watcher;

use std::collections::{BTreeMap, BTreeSet};

use chrono_tz::Tz;
use mesh_runtime::api::{AuthMethod, Caller};

use crate::adapters::People;
use crate::domain::Micros;
use crate::domain::calendar_period::Periodicity;

/// A budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Name, which identifies it. A renamed budget is a new one.
    pub name: String,
    /// What it covers. All keys must match, and one of the values of each.
    pub scope: BTreeMap<ScopeKey, BTreeSet<String>>,
    /// How time is divided.
    pub periodicity: Periodicity,
    /// Time zone of the periods.
    pub zone: Tz,
    /// Amount per period.
    pub amount: Micros,
    /// What is compared with the amount.
    pub counts: Counts,
    /// Thresholds in percent, ascending.
    pub thresholds: Vec<u32>,
    /// Threshold of the forecast in percent. 0 is off.
    pub forecast: u32,
    /// True if users may see budgets of themselves.
    pub is_for_owners: bool,
    /// True if coordinators may see budgets of their accounts.
    pub is_for_coordinators: bool,
}

/// The clusters of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clusters {
    /// That of this process.
    pub own: String,
    /// That of this process, and all that have costs. Budgets without a cluster cover them.
    pub all: BTreeSet<String>,
}

impl Clusters {
    pub fn new<'a>(own: &'a str, with_costs: impl IntoIterator<Item = &'a str>) -> Self {
        let all = with_costs.into_iter().chain([own]);
        Self {
            own: own.to_owned(),
            all: all.map(str::to_owned).collect(),
        }
    }
}

/// What selects the runs of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScopeKey {
    /// Person: `<issuer>#<subject>`, or `unix:<user>@<cluster>`.
    Identity,
    /// Unix user.
    User,
    /// Account, without the accounts below it.
    Account,
    /// Account with the accounts below it: in files `account` beside `subtree = true`.
    Subtree,
    /// QOS.
    Qos,
    /// Partition.
    Partition,
    /// Cluster.
    Cluster,
    /// Tag of the job, `key=value`.
    Tag,
}

impl ScopeKey {
    /// The keys that a file names.
    pub const ALL: [Self; 7] = [
        Self::Identity,
        Self::User,
        Self::Account,
        Self::Qos,
        Self::Partition,
        Self::Cluster,
        Self::Tag,
    ];

    /// Name in files and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::User => "user",
            Self::Account | Self::Subtree => "account",
            Self::Qos => "qos",
            Self::Partition => "partition",
            Self::Cluster => "cluster",
            Self::Tag => "tag",
        }
    }
}

/// What is compared with the amount of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Counts {
    /// Final costs.
    Settled,
    /// Final costs, and those of running jobs until now.
    #[default]
    InFlight,
    /// Also what running and pending jobs may still cost until their time limits.
    Committed,
}

impl Counts {
    /// Name in files and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::InFlight => "in_flight",
            Self::Committed => "committed",
        }
    }
}

impl Budget {
    fn values(&self, key: ScopeKey) -> impl Iterator<Item = &str> {
        self.scope
            .get(&key)
            .into_iter()
            .flatten()
            .map(String::as_str)
    }

    /// The scope as texts such as `account=nlp`.
    pub fn scope_texts(&self) -> Vec<String> {
        let texts = |(key, values): (&ScopeKey, &BTreeSet<String>)| {
            let below = match key {
                ScopeKey::Subtree => " with subaccounts",
                _ => "",
            };
            let name = key.as_str();
            values
                .iter()
                .map(|value| format!("{name}={value}{below}"))
                .collect::<Vec<_>>()
        };
        self.scope.iter().flat_map(texts).collect()
    }

    /// The accounts that the budget names, alone or with those below them.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &str> {
        let subtrees = self.values(ScopeKey::Subtree);
        self.values(ScopeKey::Account).chain(subtrees)
    }

    /// True if the accounts below those that it names count, too.
    pub(crate) fn has_subtree(&self) -> bool {
        self.scope.contains_key(&ScopeKey::Subtree)
    }

    /// The Unix users of the budget, if it is one of users: those that it names, or those of the people that it names. With the cluster
    /// where it is known.
    pub(crate) fn owners(&self, people: &People) -> BTreeSet<(Option<String>, String)> {
        let named = self.values(ScopeKey::User);
        // There is one cluster beside users.
        let cluster = self.values(ScopeKey::Cluster).next().map(str::to_owned);
        let mut owners: BTreeSet<_> = named
            .map(|user| (cluster.clone(), user.to_owned()))
            .collect();
        for person in self.values(ScopeKey::Identity) {
            let users = people.users_of(person).into_iter();
            owners.extend(users.map(|(cluster, user)| (Some(cluster), user)));
        }
        owners
    }

    /// The clusters whose costs the budget covers.
    pub(crate) fn clusters<'a>(&'a self, clusters: &'a Clusters) -> BTreeSet<&'a str> {
        match self.scope.contains_key(&ScopeKey::Cluster) {
            true => self.values(ScopeKey::Cluster).collect(),
            false => clusters.all.iter().map(String::as_str).collect(),
        }
    }

    /// True if the caller may make, change and delete the budget by the API: administrators all, coordinators those of accounts that they
    /// coordinate. The only place that decides it.
    pub(crate) fn may_be_changed_by(&self, caller: &Caller, clusters: &Clusters) -> bool {
        caller.may_write()
            || (!caller.sees_everything() && self.is_coordinated_by(caller, clusters))
    }

    /// True if the budget names accounts, and the caller coordinates all of them on all of its clusters. In Slurm coordinators of an
    /// account coordinate those below it, too.
    fn is_coordinated_by(&self, caller: &Caller, clusters: &Clusters) -> bool {
        let mut accounts = self.accounts().peekable();
        let clusters = self.clusters(clusters);
        accounts.peek().is_some()
            && accounts.all(|account| {
                clusters
                    .iter()
                    .all(|cluster| caller.may_see(cluster, "", account))
            })
    }

    /// True if the caller may see the budget: administrators and auditors all, people those of themselves alone, coordinators those of
    /// accounts that they coordinate. The only place that decides it.
    pub(crate) fn is_visible_to(
        &self,
        caller: &Caller,
        people: &People,
        clusters: &Clusters,
    ) -> bool {
        if caller.sees_everything() {
            return true;
        }
        // Unix users of the socket are those of this cluster. The same name can be another person elsewhere.
        let is_peer = matches!(caller.auth_method, AuthMethod::Peer { .. });
        let is_user = |cluster: Option<&str>, user: &str| {
            caller.is(user) && (!is_peer || cluster.is_none_or(|cluster| cluster == clusters.own))
        };
        let is_person = |key: &str| match &caller.auth_method {
            AuthMethod::Oidc { issuer, subject } if People::is_linked(key) => {
                key == format!("{issuer}#{subject}")
            }
            _ => people
                .users_of(key)
                .iter()
                .any(|(cluster, user)| is_user(Some(cluster), user)),
        };
        let mut people_named = self.values(ScopeKey::Identity).peekable();
        let owners = self.owners(people);
        let is_own = if people_named.peek().is_some() {
            people_named.all(is_person)
        } else {
            !owners.is_empty()
                && owners
                    .iter()
                    .all(|(cluster, user)| is_user(cluster.as_deref(), user))
        };
        if self.is_for_owners && is_own {
            return true;
        }
        self.is_for_coordinators && self.is_coordinated_by(caller, clusters)
    }
}

#[cfg(test)]
mod tests {
    use mesh_runtime::api::Role;

    use super::*;

    const OWN: &str = "[[budget]]\nname = \"own\"\nscope = { user = \"alice\", cluster = \"c\" }\nperiod = \"month\"\namount = 1\n";
    const GROUP: &str = "[[budget]]\nname = \"group\"\nscope = { account = [\"a\", \"b\"] }\nperiod = \"month\"\namount = 1\n";

    #[test]
    fn people_see_their_own_and_coordinators_those_of_all_accounts_named() {
        let admin = Caller::peer("root", 0, Role::Admin);
        let auditor = Caller::peer("eve", 1, Role::Auditor);
        let alice = Caller::peer("alice", 2, Role::User);
        let one = Caller::peer("carol", 3, Role::User).coordinating("c", "a");
        let both = one.clone().coordinating("c", "b");
        let elsewhere = Caller::peer("dave", 4, Role::User)
            .coordinating("other", "a")
            .coordinating("other", "b");
        let here = Clusters::new("c", []);
        let seen = |text: &str, caller: &Caller| {
            let budgets = files::parse(text).unwrap();
            budgets[0].is_visible_to(caller, &People::default(), &here)
        };
        for (caller, own, group) in [
            (&admin, true, true),
            (&auditor, true, true),
            (&alice, true, false),
            (&one, false, false),
            (&both, false, true),
            (&elsewhere, false, false),
        ] {
            assert_eq!(seen(OWN, caller), own, "{}", caller.name);
            assert_eq!(seen(GROUP, caller), group, "{}", caller.name);
            let budgets = files::parse(GROUP).unwrap();
            let may = caller.name == "root" || caller.name == "carol" && group;
            assert_eq!(
                budgets[0].may_be_changed_by(caller, &here),
                may,
                "{}",
                caller.name
            );
            let subtree = GROUP.replace("] }", "], subtree = true }");
            assert_eq!(seen(&subtree, caller), group, "{}", caller.name);
            let hidden = format!("{OWN}notify = []\n");
            assert_eq!(seen(&hidden, caller), caller.sees_everything());
        }
    }

    #[test]
    fn the_same_name_on_another_cluster_is_another_person() {
        let alice = Caller::peer("alice", 2, Role::User);
        let there = OWN.replace("\"c\"", "\"other\"");
        let both = Clusters::new("c", ["other"]);
        for (text, expected) in [(OWN, true), (there.as_str(), false)] {
            let budget = &files::parse(text).unwrap()[0];
            let seen = budget.is_visible_to(&alice, &People::default(), &both);
            assert_eq!(seen, expected, "{text}");
        }
    }

    #[test]
    fn coordinators_see_no_costs_of_clusters_where_they_do_not_coordinate() {
        let carol = Caller::peer("carol", 3, Role::User)
            .coordinating("c", "a")
            .coordinating("c", "b");
        let of_both = carol
            .clone()
            .coordinating("other", "a")
            .coordinating("other", "b");
        let both = Clusters::new("c", ["c", "other"]);
        let here = GROUP.replace("] }", "], cluster = \"c\" }");
        for (text, caller, expected) in [
            (GROUP, &carol, false),
            (&here, &carol, true),
            (GROUP, &of_both, true),
        ] {
            let budget = &files::parse(text).unwrap()[0];
            let seen = budget.is_visible_to(caller, &People::default(), &both);
            assert_eq!(seen, expected, "{text}");
            assert_eq!(budget.may_be_changed_by(caller, &both), expected, "{text}");
        }
    }
}
