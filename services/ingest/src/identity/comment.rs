//! Comments of associations that contain, for example, `oidc=248289761001` among other words. Slurm 22.05 has no such comments; later
//! versions do.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use slurm_client::AssociationRecord;

use super::{Config, NotKnown, UserIdentity};

/// Name of this source in events.
const PROVENANCE: &str = "association-comment";

/// Identities from comments.
#[derive(Debug)]
pub struct Comments {
    issuer: String,
    key: String,
    by_user: Mutex<Option<BTreeMap<String, UserIdentity>>>,
}

impl Comments {
    /// Creates the source if an issuer is configured.
    pub fn new(config: &Config) -> Option<Self> {
        (!config.comment_issuer.is_empty()).then(|| Self {
            issuer: config.comment_issuer.clone(),
            key: config.comment_key.clone(),
            by_user: Mutex::default(),
        })
    }

    /// Reads the comments from accounting's answer. A user whose associations name several identities resolves to none.
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
        let by_user = found
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
        *self.lock() = Some(by_user);
    }

    /// Returns the identity of a user.
    pub fn get(&self, user: &str) -> Option<UserIdentity> {
        self.ask(user).ok().flatten()
    }

    /// Returns the identity of a user, once accounting has answered.
    ///
    /// # Errors
    /// [`NotKnown`] if accounting has not answered yet.
    pub fn ask(&self, user: &str) -> Result<Option<UserIdentity>, NotKnown> {
        let by_user = self.lock();
        let by_user = by_user.as_ref().ok_or(NotKnown)?;
        Ok(by_user.get(user).cloned())
    }

    /// Returns all users with such a comment.
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
            .filter_map(|item| item.trim().split_once('='))
            .find(|(key, value)| *key == self.key && !value.is_empty())
            .map(|(_, value)| value)
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<String, UserIdentity>>> {
        self.by_user.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn the_key_is_found_among_other_text() {
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
        // The next answer replaces all of it.
        comments.take(&[association("bob", "oidc=b-2")]);
        assert_eq!(comments.users(), ["bob"]);
        assert!(Comments::new(&Config::default()).is_none());
    }
}
