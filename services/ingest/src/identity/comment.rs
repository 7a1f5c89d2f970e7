//! Comments of associations, as `oidc=248289761001` among other words. Slurm 22.05 has none; later versions do.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use slurm_client::AssociationRecord;

use super::{Config, NotKnown, UserIdentity};

/// How events say that they know it from here.
const PROVENANCE: &str = "association-comment";

/// What the comments say.
#[derive(Debug)]
pub struct Comments {
    issuer: String,
    key: String,
    people: Mutex<Option<BTreeMap<String, UserIdentity>>>,
}

impl Comments {
    /// The source, if an issuer is set.
    pub fn new(config: &Config) -> Option<Self> {
        (!config.comment_issuer.is_empty()).then(|| Self {
            issuer: config.comment_issuer.clone(),
            key: config.comment_key.clone(),
            people: Mutex::default(),
        })
    }

    /// Takes in what accounting has answered. A user whose associations name several people is none of them.
    pub fn take(&self, associations: &[AssociationRecord]) {
        let mut found: BTreeMap<String, Option<&str>> = BTreeMap::new();
        for one in associations.iter().filter(|one| !one.user.is_empty()) {
            let Some(subject) = self.subject(one.comment.as_deref().unwrap_or_default()) else {
                continue;
            };
            found
                .entry(one.user.clone())
                .and_modify(|before| *before = before.filter(|before| *before == subject))
                .or_insert(Some(subject));
        }
        let person = |subject: &str| UserIdentity {
            issuer: self.issuer.clone(),
            subject: subject.to_owned(),
            email: String::new(),
            name: String::new(),
            provenance: PROVENANCE.to_owned(),
        };
        let people = found
            .into_iter()
            .filter_map(|(user, subject)| {
                if subject.is_none() {
                    tracing::warn!(
                        user,
                        "identity ignored: comments of associations name several people"
                    );
                }
                Some((user, person(subject?)))
            })
            .collect();
        *self.lock() = Some(people);
    }

    /// The person behind a user.
    pub fn get(&self, user: &str) -> Option<UserIdentity> {
        self.ask(user).ok().flatten()
    }

    /// The person behind a user, once accounting has answered.
    pub fn ask(&self, user: &str) -> Result<Option<UserIdentity>, NotKnown> {
        let people = self.lock();
        let people = people.as_ref().ok_or(NotKnown)?;
        Ok(people.get(user).cloned())
    }

    /// Everybody with a comment.
    pub fn users(&self) -> Vec<String> {
        self.lock()
            .iter()
            .flatten()
            .map(|(user, _)| user.clone())
            .collect()
    }

    fn subject<'a>(&self, comment: &'a str) -> Option<&'a str> {
        comment
            .split([',', ';', ' '])
            .filter_map(|word| word.trim().split_once('='))
            .find(|(key, value)| *key == self.key && !value.is_empty())
            .map(|(_, value)| value)
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<String, UserIdentity>>> {
        self.people.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn association(user: &str, comment: &str) -> AssociationRecord {
        AssociationRecord {
            user: user.to_owned(),
            comment: Some(comment.to_owned()),
            ..AssociationRecord::default()
        }
    }

    #[test]
    fn the_key_is_found_among_other_words() {
        let config = Config {
            comment_issuer: "https://id".to_owned(),
            ..Config::default()
        };
        let comments = Comments::new(&config).unwrap();
        comments.take(&[
            association("alice", "PI: Dr. X, oidc=al-1; since=2021"),
            association("bob", "oidc=b-1"),
            association("bob", "oidc=b-2"),
            association("carol", "xoidc=c-1 oidc="),
            association("", "oidc=account"),
        ]);
        assert_eq!(comments.users(), ["alice"]);
        assert_eq!(
            comments.get("alice").unwrap().to_string(),
            "al-1 at https://id (association-comment)"
        );
        // The next answer replaces it all.
        comments.take(&[association("bob", "oidc=b-2")]);
        assert_eq!(comments.users(), ["bob"]);
        assert!(Comments::new(&Config::default()).is_none());
    }
}
