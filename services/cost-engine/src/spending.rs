//! Costs of people's jobs since a time: ended runs and running jobs, each with its part since then.
//!
//! `GET /v1/costs/me` answers it to people themselves. [`publisher`] writes the sums of the present month to the bucket
//! `mesh_spending`, for messages to the owners of jobs. The sums are in no event: whoever may see a job may not see what its owner spends.

pub(crate) mod publisher;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use chrono::{DateTime, Utc};
use mesh_runtime::api::{AccountsByCluster, Caller, Visibility};
use serde::Serialize;

use crate::adapters::{CostGroup, Filter, OpenRun, People, Store};
use crate::api::view::{self, CostReport};
use crate::costing;
use crate::domain::RunsCost;
use crate::domain::calendar_period::Period;
use crate::error::Error;
use crate::price_book::PriceBook;

/// Cost of a person's jobs since a time, in one currency.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct PersonalAmount {
    /// Currency. Empty for running jobs while there is no price book.
    pub currency: String,
    /// Number of ended runs.
    pub runs: u64,
    /// Number of running jobs.
    pub open_runs: u64,
    /// Number of runs without a price, whose cost is missing in the amounts.
    pub unpriced_runs: u64,
    /// Cost of ended runs. This and the other amounts are null if there are such runs and none has a price.
    pub settled_micros: RunsCost,
    /// Cost so far of running jobs.
    pub in_flight_micros: RunsCost,
    /// Sum of both.
    pub total_micros: RunsCost,
    /// Cost per hour of running jobs.
    pub burn_rate_micros: RunsCost,
}

impl AddAssign<&Self> for PersonalAmount {
    fn add_assign(&mut self, other: &Self) {
        self.runs += other.runs;
        self.open_runs += other.open_runs;
        self.unpriced_runs += other.unpriced_runs;
        self.settled_micros += other.settled_micros;
        self.in_flight_micros += other.in_flight_micros;
        self.total_micros += other.total_micros;
        self.burn_rate_micros += other.burn_rate_micros;
    }
}

/// Cost of the jobs of one Unix user of one cluster, in one currency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserSpending {
    pub cluster: String,
    pub user: String,
    pub amount: PersonalAmount,
}

/// A Unix user of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
pub struct UnixUser {
    /// Cluster. Empty if the user has no runs and no person there.
    pub cluster: String,
    /// Unix user name.
    pub user: String,
}

/// Cost of a person's jobs: those of all their Unix users on all clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct PersonSpending {
    /// `<issuer>#<subject>`, or `unix:<user>@<cluster>` of a Unix user whose person is not known.
    pub key: String,
    /// E-mail address or name. Absent if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub name: String,
    /// False for a Unix user whose person is not known.
    pub linked: bool,
    /// The Unix users.
    #[schema(value_type = Vec<UnixUser>)]
    pub users: BTreeSet<UnixUser>,
    /// Amounts, one for each currency.
    pub amounts: Vec<PersonalAmount>,
}

/// Costs of all jobs of Unix users with these names, since a time, by cluster, user and currency.
pub(crate) async fn spending_of_users(
    store: &Store,
    book: Option<&PriceBook>,
    names: BTreeSet<String>,
    since: Option<i64>,
    now: DateTime<Utc>,
) -> Result<Vec<UserSpending>, Error> {
    let filter = Filter {
        visibility: Visibility::Restricted {
            users: names,
            accounts: AccountsByCluster::new(),
        },
        cluster: None,
        user: None,
        since,
        until: None,
    };
    let open = store.open_runs(&filter).await?;
    let period = Period {
        name: String::new(),
        from: since.unwrap_or(i64::MIN),
        to: i64::MAX,
    };
    let slices = view::Slices::read(store, CostGroup::User, &filter, vec![period]).await?;
    let nobody = People::default();
    let report = view::sliced(CostGroup::User, slices, book, &open, &nobody, now)?;
    Ok(of_report(report, &burn_rates(book, &open)))
}

/// Cost per hour of running jobs, by cluster, user and currency.
type BurnRates = BTreeMap<(String, String, String), RunsCost>;

fn burn_rates(book: Option<&PriceBook>, open: &[OpenRun]) -> BurnRates {
    let currency = book.map_or("", |book| book.currency.as_str());
    let mut rates = BurnRates::new();
    for run in open {
        let (cluster, user) = (run.keys.cluster.clone(), run.keys.user.clone());
        let rate = book.and_then(|book| costing::rate(book, &run.job, &run.keys.account).ok());
        *rates
            .entry((cluster, user, currency.to_owned()))
            .or_default() += RunsCost::of(rate.map(|rate| rate.burn));
    }
    rates
}

fn of_report(report: CostReport, burn_rates: &BurnRates) -> Vec<UserSpending> {
    let spending = |row: view::CostReportRow| {
        let key = (row.cluster, row.key, row.currency);
        let burn_rate = burn_rates.get(&key).copied();
        UserSpending {
            amount: PersonalAmount {
                runs: row.runs - row.open_runs,
                open_runs: row.open_runs,
                unpriced_runs: row.unpriced_runs,
                settled_micros: row.completed_micros + row.not_completed_micros,
                in_flight_micros: row.open_micros,
                total_micros: row.total_micros,
                burn_rate_micros: burn_rate.unwrap_or_default(),
                currency: key.2,
            },
            cluster: key.0,
            user: key.1,
        }
    };
    report.rows.into_iter().map(spending).collect()
}

/// Sums by currency.
pub(crate) fn summed<'a>(amounts: impl Iterator<Item = &'a PersonalAmount>) -> Vec<PersonalAmount> {
    let mut sums: BTreeMap<&str, PersonalAmount> = BTreeMap::new();
    for amount in amounts {
        let sum = sums
            .entry(&amount.currency)
            .or_insert_with(|| PersonalAmount {
                currency: amount.currency.clone(),
                ..PersonalAmount::default()
            });
        *sum += amount;
    }
    sums.into_values().collect()
}

/// Whose costs are a caller's own: the people that the caller is, and Unix users without a known person that the caller is.
pub(crate) struct CallerIdentities<'a> {
    people: &'a People,
    keys: BTreeSet<String>,
    /// The caller's Unix users.
    users: &'a BTreeSet<String>,
}

impl<'a> CallerIdentities<'a> {
    /// `cluster` is that of this process, to whose Unix users its socket belongs.
    pub fn of(caller: &'a Caller, people: &'a People, cluster: &str) -> Self {
        Self {
            people,
            keys: people.of_caller(caller, cluster),
            users: &caller.users,
        }
    }

    /// True for jobs of this Unix user. A user with the same name as the caller's who is linked to somebody else is somebody else.
    fn includes(&self, cluster: &str, user: &str) -> bool {
        let person = self.people.of(cluster, user);
        self.keys.contains(&person.key) || (!person.is_linked() && self.users.contains(user))
    }

    /// Names of all Unix users that may be the caller's.
    pub fn names(&self) -> BTreeSet<String> {
        let linked = self.keys.iter().flat_map(|key| self.people.users_of(key));
        linked
            .map(|(_, user)| user)
            .chain(self.users.iter().cloned())
            .collect()
    }

    /// The caller's people with their Unix users and what they spent.
    pub fn spending(&self, found: &[UserSpending]) -> Vec<PersonSpending> {
        let mut people: BTreeMap<String, PersonSpending> = BTreeMap::new();
        for key in &self.keys {
            for (cluster, user) in self.people.users_of(key) {
                self.person(&mut people, cluster, user);
            }
        }
        let mut amounts: BTreeMap<String, Vec<&PersonalAmount>> = BTreeMap::new();
        for row in found
            .iter()
            .filter(|row| self.includes(&row.cluster, &row.user))
        {
            let key = self.person(&mut people, row.cluster.clone(), row.user.clone());
            amounts.entry(key).or_default().push(&row.amount);
        }
        for (key, amounts) in amounts {
            if let Some(person) = people.get_mut(&key) {
                person.amounts = summed(amounts.into_iter());
            }
        }
        people.into_values().collect()
    }

    /// Adds a Unix user to its person, whose key is returned.
    fn person(
        &self,
        people: &mut BTreeMap<String, PersonSpending>,
        cluster: String,
        user: String,
    ) -> String {
        let person = self.people.of(&cluster, &user);
        let entry = people.entry(person.key.clone()).or_default();
        entry.linked = person.is_linked();
        entry.users.insert(UnixUser { cluster, user });
        entry.name = person.display_name;
        entry.key.clone_from(&person.key);
        person.key
    }
}

#[cfg(test)]
mod tests {
    use mesh_runtime::api::{AuthMethod, Role};

    use super::*;

    #[test]
    fn a_caller_by_oidc_is_not_the_former_owner_of_their_unix_user() {
        let people = People::of_test(&[("c", "alice", "idp", "former")]);
        let new = Caller {
            auth_method: AuthMethod::Oidc {
                issuer: "idp".into(),
                subject: "new".into(),
            },
            users: ["alice", "ann"].map(str::to_owned).into(),
            ..Caller::peer("alice", 1, Role::User)
        };
        let own = CallerIdentities::of(&new, &people, "c");
        assert!(!own.includes("c", "alice"), "linked to somebody else");
        assert!(own.includes("c", "ann"), "not linked");
        // On the socket the Unix user is all that is known.
        let peer = Caller::peer("alice", 1, Role::User);
        let own = CallerIdentities::of(&peer, &people, "c");
        assert!(own.includes("c", "alice"));
    }
}
