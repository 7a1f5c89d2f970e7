//! The system's user database: `getent passwd USER`, whatever its backend is (files, LDAP, SSSD).
//!
//! SSSD or nslcd can map an LDAP attribute to the passwd entry (`ldap_user_gecos`). A lookup that fails or times out does not change a
//! known identity.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::config::Field;
use super::{Config, NotKnown, UserIdentity};

/// Name of this source in events.
const PROVENANCE: &str = "getent";
/// Number of lookups per refresh. With a refresh every few seconds, a directory of thousands is not overloaded.
const MAX_CONCURRENT_LOOKUPS: usize = 16;
/// Maximum number of stored users. More than any cluster has.
const MAX_ENTRIES: usize = 200_000;
/// Unused entries expire after this time, or after three times the cache TTL if that is longer.
const CACHE_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Exit status of getent if the database has no such user.
const NO_SUCH_USER: i32 = 2;

impl Field {
    /// Returns the subject in a passwd entry; `None` if the entry belongs to another user, or has no subject.
    fn subject<'a>(self, entry: &'a str, user: &str) -> Option<&'a str> {
        let fields: Vec<&str> = entry.split(':').collect();
        let &[name, _, uid, _, gecos, _, _] = fields.as_slice() else {
            return None;
        };
        let found = match self {
            _ if name != user => None,
            Self::Name => Some(name),
            Self::Uid => Some(uid),
            Self::Gecos => Some(gecos),
            Self::GecosPart(part) => gecos.split(',').nth(part - 1),
        };
        found.map(str::trim).filter(|subject| !subject.is_empty())
    }
}

/// Cached lookups, and users to be looked up.
#[derive(Debug)]
pub struct Getent {
    program: PathBuf,
    issuer: String,
    field: Field,
    timeout: Duration,
    cache: Duration,
    ttl: Duration,
    state: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// `None` before the first answer.
    answer: Option<Option<UserIdentity>>,
    /// Time of the last attempt.
    tried: Option<Instant>,
    /// Time of the last request for the user.
    asked: Instant,
}

impl Entry {
    fn new() -> Self {
        Self {
            answer: None,
            tried: None,
            asked: Instant::now(),
        }
    }
}

impl Getent {
    /// Creates the source if an issuer is configured.
    pub fn new(config: &Config) -> Option<Self> {
        let field = Field::parse(&config.getent_field)?;
        (!config.getent_issuer.is_empty()).then(|| Self {
            program: "getent".into(),
            issuer: config.getent_issuer.clone(),
            field,
            timeout: config.getent_timeout,
            cache: config.getent_cache_ttl,
            ttl: CACHE_TTL.max(config.getent_cache_ttl.saturating_mul(3)),
            state: Mutex::default(),
        })
    }

    /// Returns the identity of a user if it was looked up. Other users are looked up later.
    pub fn get(&self, user: &str) -> Option<UserIdentity> {
        self.ask(user).ok().flatten()
    }

    /// Like [`Getent::get`], for callers that must know whether the user was looked up.
    ///
    /// # Errors
    /// [`NotKnown`] if the user was not looked up yet.
    pub fn ask(&self, user: &str) -> Result<Option<UserIdentity>, NotKnown> {
        if !is_name(user) {
            return Ok(None);
        }
        let mut state = self.lock();
        if let Some(entry) = state.get_mut(user) {
            entry.asked = Instant::now();
            return entry.answer.clone().ok_or(NotKnown);
        }
        if state.len() < MAX_ENTRIES {
            state.insert(user.to_owned(), Entry::new());
        }
        Err(NotKnown)
    }

    /// Like [`Getent::ask`], without requesting a lookup or prolonging the entry's lifetime.
    ///
    /// # Errors
    /// [`NotKnown`] if the user was not looked up yet.
    pub fn peek(&self, user: &str) -> Result<Option<UserIdentity>, NotKnown> {
        if !is_name(user) {
            return Ok(None);
        }
        let state = self.lock();
        let entry = state.get(user).ok_or(NotKnown)?;
        entry.answer.clone().ok_or(NotKnown)
    }

    /// Returns all users that were requested.
    pub fn users(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Whether every user was looked up at least once.
    pub fn settled(&self) -> bool {
        self.lock().values().all(|entry| entry.tried.is_some())
    }

    /// Looks up some of the users that are due, new ones first, and removes unused entries.
    pub async fn refresh(&self) {
        let ttl = self.ttl;
        self.lock().retain(|_, entry| entry.asked.elapsed() <= ttl);
        for user in self.due() {
            let found = self.look_up(&user).await;
            let mut state = self.lock();
            let entry = state.entry(user).or_insert_with(Entry::new);
            entry.tried = Some(Instant::now());
            // getent reports "no such user" also while SSSD or LDAP is unavailable, so that must not unlink a known user.
            let removed = found == Some(None) && entry.answer.as_ref().is_some_and(Option::is_some);
            if found.is_some() && !removed {
                entry.answer = found;
            }
        }
    }

    fn due(&self) -> BTreeSet<String> {
        let state = self.lock();
        let mut due: Vec<(&Option<Instant>, &String)> = state
            .iter()
            .filter(|(_, entry)| entry.tried.is_none_or(|at| at.elapsed() >= self.cache))
            .map(|(user, entry)| (&entry.tried, user))
            .collect();
        due.sort();
        due.into_iter()
            .take(MAX_CONCURRENT_LOOKUPS)
            .map(|(_, user)| user.clone())
            .collect()
    }

    /// Outer option: whether there was an answer. Inner option: the identity in it.
    async fn look_up(&self, user: &str) -> Option<Option<UserIdentity>> {
        let mut command = Command::new(&self.program);
        command.args(["--", "passwd", user]);
        let output = match mesh_runtime::program::output(&mut command, self.timeout).await {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::warn!(after = ?self.timeout, "getent timed out and was stopped");
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "getent could not be run");
                return None;
            }
        };
        match output.status.code() {
            Some(0) => {}
            Some(NO_SUCH_USER) => return Some(None),
            status => {
                tracing::debug!(?status, "getent failed");
                return None;
            }
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let entry = text.lines().next().unwrap_or_default();
        let name = |entry: &str| Field::GecosPart(1).subject(entry, user).map(str::to_owned);
        Some(self.field.subject(entry, user).map(|subject| UserIdentity {
            issuer: self.issuer.clone(),
            subject: subject.to_owned(),
            email: String::new(),
            name: match self.field {
                Field::GecosPart(2..) => name(entry).unwrap_or_default(),
                _ => String::new(),
            },
            provenance: PROVENANCE.to_owned(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// getent looks up numbers as uids, which would find another user.
fn is_name(user: &str) -> bool {
    !user.is_empty()
        && user.len() <= 256
        && !user.bytes().all(|byte| byte.is_ascii_digit())
        && !user.contains(|c: char| c.is_control() || c == ':')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn getent(field: &str) -> Getent {
        Getent::new(&Config {
            getent_issuer: "https://id".to_owned(),
            getent_field: field.to_owned(),
            getent_timeout: Duration::from_secs(60),
            ..Config::default()
        })
        .unwrap()
    }

    #[test]
    fn the_subject_is_in_the_configured_place() {
        let entry = "alice:x:20001:20001:Alice Doe,Room 7,,, al-1:/home/alice:/bin/bash";
        let subject = |field: &str| Field::parse(field).unwrap().subject(entry, "alice");
        assert_eq!(subject("name"), Some("alice"));
        assert_eq!(subject("uid"), Some("20001"));
        assert_eq!(subject("gecos.1"), Some("Alice Doe"));
        assert_eq!(subject("gecos.3"), None);
        assert_eq!(subject("gecos.5"), Some("al-1"));
        assert_eq!(Field::Name.subject(entry, "bob"), None);
        assert_eq!(Field::Name.subject("alice:x", "alice"), None);
        assert_eq!(Field::parse("gecos.6"), None);
        assert_eq!(Field::parse("shell"), None);
    }

    #[tokio::test]
    async fn requested_users_are_looked_up_later() {
        let getent = getent("uid");
        assert_eq!(getent.get("root"), None);
        assert_eq!(getent.get("nobody-of-that-name"), None);
        assert_eq!(getent.get("0"), None);
        assert!(!getent.settled());
        getent.refresh().await;
        assert!(getent.settled());
        assert_eq!(
            getent.get("root").unwrap().to_string(),
            "0 at https://id (getent)"
        );
        assert_eq!(getent.get("nobody-of-that-name"), None);
        assert_eq!(getent.users(), ["nobody-of-that-name", "root"]);
        assert_eq!(getent.due(), BTreeSet::new());
    }

    #[tokio::test]
    async fn unused_users_are_removed_from_the_cache() {
        let mut getent = getent("uid");
        for user in ["root", "daemon"] {
            assert_eq!(getent.ask(user), Err(NotKnown));
        }
        getent.refresh().await;
        let asked = |getent: &Getent, user: &str| getent.lock()[user].asked;
        let [root, daemon] = ["root", "daemon"].map(|user| asked(&getent, user));
        // `peek` does not count as a request.
        assert!(getent.peek("daemon").unwrap().is_some());
        assert!(getent.get("root").is_some());
        assert!(asked(&getent, "daemon") == daemon && asked(&getent, "root") > root);
        let expired = Instant::now() + CACHE_TTL;
        getent.lock().get_mut("root").unwrap().asked = expired;
        getent.ttl = Duration::ZERO;
        getent.refresh().await;
        assert_eq!(getent.users(), ["root"]);
        assert_eq!(getent.peek("daemon"), Err(NotKnown));
        assert_eq!(getent.users(), ["root"]);
        // A user who returns is looked up again.
        getent.ttl = CACHE_TTL;
        assert_eq!(getent.ask("daemon"), Err(NotKnown));
        getent.refresh().await;
        assert_eq!(getent.get("daemon").unwrap().subject, "1");
    }

    /// True if a process runs. A zombie does not.
    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[tokio::test]
    async fn a_lookup_that_is_stopped_leaves_no_process_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (program, pids) = (folder.path().join("getent"), folder.path().join("pids"));
        // Like a site's wrapper, which starts the real program.
        mesh_testkit::script(
            &program,
            &format!("sleep 600 &\necho $$ $! > {}\nwait", pids.display()),
        );
        let mut getent = getent("uid");
        getent.program = program;
        assert_eq!(getent.ask("root"), Err(NotKnown));
        let noted = async {
            loop {
                let text = std::fs::read_to_string(&pids).unwrap_or_default();
                if text.ends_with('\n') {
                    return text;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // A stop drops the lookup.
        let text = tokio::select! {
            () = getent.refresh() => panic!("it hangs"),
            text = noted => text,
        };
        let pids: Vec<&str> = text.split_whitespace().collect();
        mesh_testkit::wait_until("they are gone", Duration::from_secs(60), async || {
            !pids.iter().any(|pid| runs(pid))
        })
        .await;
    }

    #[tokio::test]
    async fn no_answer_changes_nothing() {
        let mut getent = getent("uid");
        assert_eq!(getent.ask("root"), Err(NotKnown));
        getent.refresh().await;
        // Due again at once; from now on, an answer would differ.
        (getent.field, getent.cache) = (Field::Name, Duration::ZERO);
        getent.timeout = Duration::from_millis(100);
        let folder = tempfile::tempdir().unwrap();
        let hangs = folder.path().join("hangs");
        std::fs::write(&hangs, "#!/bin/sh\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&hangs, PermissionsExt::from_mode(0o755)).unwrap();
        for program in [hangs, "/bin/false".into(), "/nowhere/getent".into()] {
            getent.program = program;
            getent.refresh().await;
            assert_eq!(getent.get("root").unwrap().subject, "0");
        }
        getent.program = "getent".into();
        getent.timeout = Duration::from_secs(60);
        getent.refresh().await;
        assert_eq!(getent.get("root").unwrap().subject, "root");
    }
}
