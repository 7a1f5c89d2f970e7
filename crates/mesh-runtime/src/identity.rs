//! Identities of Unix users, from the operator's map: a TOML file, reloaded when it changes.
//!
//! ```toml
//! [users.alice]
//! issuer = "https://id.example.org"
//! subject = "248289761001"
//! email = "alice@example.org"
//! name = "Alice Doe"
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mesh_events::proto::mesh::event::v1::Identity;
use serde::{Deserialize, Serialize};

use crate::WatchedFiles;

/// `provenance` of identities from the map, as events carry it.
const PROVENANCE: &str = "map-file";

/// A person as an OIDC provider knows them, and the source of the mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserIdentity {
    /// OIDC `iss`.
    pub issuer: String,
    /// OIDC `sub`.
    pub subject: String,
    /// OIDC `email`; empty if unknown.
    #[serde(default)]
    pub email: String,
    /// OIDC `name`; empty if unknown.
    #[serde(default)]
    pub name: String,
    /// `map-file`, `getent` or `association-comment`.
    pub provenance: String,
}

impl UserIdentity {
    /// Converts to the message that events carry.
    pub fn to_identity(&self) -> Identity {
        let Self {
            issuer,
            subject,
            email,
            name,
            provenance,
        } = self.clone();
        Identity {
            issuer,
            subject,
            email,
            name,
            provenance,
        }
    }
}

impl fmt::Display for UserIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at {} ({})",
            self.subject, self.issuer, self.provenance
        )
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityFile {
    #[serde(default)]
    users: BTreeMap<String, IdentityEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityEntry {
    issuer: String,
    subject: String,
    #[serde(default)]
    email: String,
    #[serde(default)]
    name: String,
}

fn parse(text: &str) -> Result<BTreeMap<String, UserIdentity>, toml::de::Error> {
    let file: IdentityFile = toml::from_str(text)?;
    let person = |entry: IdentityEntry| UserIdentity {
        issuer: entry.issuer,
        subject: entry.subject,
        email: entry.email,
        name: entry.name,
        provenance: PROVENANCE.to_owned(),
    };
    Ok(file
        .users
        .into_iter()
        .map(|(user, entry)| (user, person(entry)))
        .collect())
}

/// The identity map. An unreadable or invalid file changes nothing: the last good one stays in use.
#[derive(Debug)]
pub struct IdentityMap {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    users: BTreeMap<String, UserIdentity>,
    was_read: bool,
    /// A bad file is warned about once.
    files: WatchedFiles,
    /// Why the file last read cannot be used.
    problem: Option<String>,
}

impl IdentityMap {
    /// A map from a file; without a file it is empty.
    pub fn new(path: Option<PathBuf>) -> Self {
        let mut files = WatchedFiles::default();
        path.iter().for_each(|path| files.add(path.clone()));
        files.read_again();
        let map = Self {
            path,
            state: Mutex::new(State {
                files,
                ..State::default()
            }),
        };
        map.reload();
        map
    }

    /// The identity of a Unix user.
    pub fn get(&self, user: &str) -> Option<UserIdentity> {
        self.lock().users.get(user).cloned()
    }

    /// True if no file is configured, or it was valid once.
    pub fn was_read(&self) -> bool {
        self.path.is_none() || self.lock().was_read
    }

    /// The users that the map assigns to an issuer and for which `is` returns true.
    pub fn users_of(&self, issuer: &str, is: impl Fn(&UserIdentity) -> bool) -> BTreeSet<String> {
        self.lock()
            .users
            .iter()
            .filter(|(_, person)| person.issuer == issuer && is(person))
            .map(|(user, _)| user.clone())
            .collect()
    }

    /// All users of the map.
    pub fn users(&self) -> Vec<String> {
        self.lock().users.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file again if it has changed. Returns why the file cannot be used, if it cannot.
    pub fn reload(&self) -> Option<String> {
        let path = self.path.as_ref()?;
        let mut state = self.lock();
        if !state.files.changed() {
            return state.problem.clone();
        }
        match read(path) {
            Ok(users) => {
                tracing::info!(path = %path.display(), users = users.len(), "identity map loaded");
                state.users = users;
                state.was_read = true;
                state.problem = None;
            }
            Err(problem) => {
                tracing::warn!(path = %path.display(), problem, kept = state.users.len(), "identity map invalid, last valid one still in use");
                state.problem = Some(format!(
                    "{}: {problem}; the last valid one is still in use",
                    path.display()
                ));
            }
        }
        state.problem.clone()
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, UserIdentity>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    // The message names line, column and key.
    parse(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_file_leaves_the_last_valid_map_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identities.toml");
        std::fs::write(
            &path,
            "[users.alice]\nissuer = 'https://id'\nsubject = '1'\n",
        )
        .unwrap();
        let map = IdentityMap::new(Some(path.clone()));
        assert_eq!(map.get("alice").unwrap().subject, "1");
        assert_eq!(map.get("bob"), None);
        std::fs::write(
            &path,
            "[users.alice]\nissuer = 'https://id'\nsubjekt = '22'\n",
        )
        .unwrap();
        map.reload();
        assert_eq!(map.get("alice").unwrap().subject, "1");
        std::fs::write(
            &path,
            "[users.alice]\nissuer = 'https://id'\nsubject = '333'\n",
        )
        .unwrap();
        map.reload();
        assert_eq!(map.get("alice").unwrap().subject, "333");
    }

    #[test]
    fn a_fault_is_named_with_line_and_key() {
        let error = parse("[users.alice]\nissuer = 'https://id'\nsubjekt = '22'\n")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("line 3") && error.contains("subjekt"),
            "{error}"
        );
    }
}
