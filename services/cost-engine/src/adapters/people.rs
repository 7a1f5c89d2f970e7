//! The people behind Unix users.

use std::collections::{BTreeSet, HashMap};

use mesh_db::pool::{Access, Transaction as Snapshot};
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::event::v1::Identity;
use mesh_runtime::api::{AuthMethod, Caller};

use super::Store;
use super::transaction::Transaction;
use crate::error::Error;

/// A person as an OIDC provider knows them, or a Unix user without a known person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// `<issuer>#<subject>`, or `unix:<user>@<cluster>` without a known person.
    pub key: String,
    /// E-mail address, else name. Empty if neither is known.
    pub display_name: String,
}

/// The known people, by cluster and Unix user.
#[derive(Clone, Debug, Default)]
pub struct People(HashMap<(String, String), Person>);

impl People {
    /// The person behind a Unix user of a cluster.
    pub fn of(&self, cluster: &str, user: &str) -> Person {
        let known = self.0.get(&(cluster.to_owned(), user.to_owned()));
        known.cloned().unwrap_or_else(|| Person {
            key: format!("{UNLINKED}{user}@{cluster}"),
            display_name: String::new(),
        })
    }
}

#[cfg(test)]
impl People {
    /// Of cluster, Unix user, issuer and subject.
    pub fn of_test(linked: &[(&str, &str, &str, &str)]) -> Self {
        let link = |(cluster, user, issuer, subject): &(&str, &str, &str, &str)| {
            let person = Person {
                key: format!("{issuer}#{subject}"),
                display_name: String::new(),
            };
            (((*cluster).to_owned(), (*user).to_owned()), person)
        };
        Self(linked.iter().map(link).collect())
    }
}

impl Person {
    /// False for a Unix user without a known person.
    pub fn is_linked(&self) -> bool {
        People::is_linked(&self.key)
    }
}

/// Begins the key of a Unix user without a known person.
const UNLINKED: &str = "unix:";

impl People {
    /// False for the key of a Unix user without a known person.
    pub fn is_linked(key: &str) -> bool {
        !key.starts_with(UNLINKED)
    }

    /// Keys of the people that a caller is. A Unix user on the socket of this cluster is the person linked to it. A caller by OIDC is
    /// that person only: their Unix user may still be linked to its former owner.
    pub fn of_caller(&self, caller: &Caller, cluster: &str) -> BTreeSet<String> {
        let by_login = match &caller.auth_method {
            AuthMethod::Oidc { issuer, subject } => Some(format!("{issuer}#{subject}")),
            AuthMethod::Peer { .. } | AuthMethod::Token => None,
        };
        let users = caller.users.iter().map(|user| self.of(cluster, user));
        let by_user = users
            .filter(|person| by_login.is_none() || !person.is_linked())
            .map(|person| person.key);
        let by_user: Vec<String> = by_user.collect();
        by_login.into_iter().chain(by_user).collect()
    }

    /// The Unix users of a person, by cluster.
    pub fn users_of(&self, key: &str) -> BTreeSet<(String, String)> {
        let linked = self.0.iter().filter(|(_, person)| person.key == key);
        let mut users: BTreeSet<_> = linked.map(|(user, _)| user.clone()).collect();
        let unlinked = key
            .strip_prefix(UNLINKED)
            .and_then(|key| key.rsplit_once('@'));
        users.extend(unlinked.map(|(user, cluster)| (cluster.to_owned(), user.to_owned())));
        users
    }
}

impl Store {
    /// Reads the people behind all Unix users.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn people(&self) -> Result<People, Error> {
        const ACTION: &str = "read people";
        let mut reader = self.database.reader(ACTION).await?;
        let snapshot = reader.begin(Access::Snapshot).await;
        read_people(&mut snapshot.map_err(Error::database(ACTION))?).await
    }
}

/// The people behind all Unix users, as of a snapshot.
pub(super) async fn read_people(snapshot: &mut Snapshot<'_>) -> Result<People, Error> {
    const ACTION: &str = "read people";
    let sql = Sql::new("SELECT cluster, user_name, issuer, subject, email, name FROM people");
    let rows = snapshot
        .conn()
        .rows(&sql)
        .await
        .map_err(Error::database(ACTION))?;
    let read = |row: &mesh_db::sql::Row| {
        let (issuer, subject): (String, String) = (row.get("issuer")?, row.get("subject")?);
        let (email, name): (String, String) = (row.get("email")?, row.get("name")?);
        let person = Person {
            key: format!("{issuer}#{subject}"),
            display_name: if email.is_empty() { name } else { email },
        };
        Ok(((row.get("cluster")?, row.get("user_name")?), person))
    };
    let people: Result<_, sqlx::Error> = rows.iter().map(read).collect();
    people.map(People).map_err(Error::database(ACTION))
}

impl Transaction {
    /// Stores the person behind a Unix user, unless a newer event has named one. `at` is the time of the event in Unix seconds.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_person(
        &mut self,
        cluster: &str,
        user: &str,
        identity: &Identity,
        at: i64,
    ) -> Result<(), Error> {
        let sql = Sql::new(
            "INSERT INTO people (cluster, user_name, issuer, subject, email, name, at) VALUES (",
        )
        .list([
            cluster.into(),
            user.into(),
            (&identity.issuer).into(),
            (&identity.subject).into(),
            (&identity.email).into(),
            (&identity.name).into(),
            at.into(),
        ])
        .push(
            ") ON CONFLICT (cluster, user_name) DO UPDATE SET issuer = excluded.issuer, subject = excluded.subject,
               email = excluded.email, name = excluded.name, at = excluded.at WHERE people.at <= excluded.at",
        );
        self.run("store person", &sql).await.map(drop)
    }
}
