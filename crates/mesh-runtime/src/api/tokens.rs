//! Service tokens: named secrets for programs, from files that are reloaded when they change, or as hashes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{AccountsByCluster, AuthMethod, Caller, Role};
use crate::WatchedFiles;

/// Shorter tokens can be guessed.
const MIN_TOKEN_CHARS: usize = 16;
/// Name of the token of `mesh.api.token_file`.
const UNNAMED: &str = "token_file";

/// A table `[[mesh.api.tokens]]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Name in the audit.
    pub name: String,
    /// File with the token.
    #[serde(default)]
    pub file: PathBuf,
    /// SHA-256 of the token in hex, instead of a file. Not shown, but no secret: it grants no access.
    #[serde(default, skip_serializing)]
    pub sha256: String,
    /// Role of the callers with this token.
    pub role: Role,
    /// Unix users whose jobs the role `user` may see.
    #[serde(default)]
    pub users: BTreeSet<String>,
    /// Accounts whose jobs the role `user` may see, on every cluster.
    #[serde(default)]
    pub accounts: BTreeSet<String>,
}

impl TokenConfig {
    /// All faults, each with its key.
    pub(crate) fn faults(&self, others: &[Self]) -> Vec<String> {
        let key = |key: &str| format!("mesh.api.tokens {:?} {key}", self.name);
        let mut faults = Vec::new();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || !self.name.chars().all(plain) || self.name == UNNAMED {
            faults.push(format!(
                "{}: letters, digits, - _ and . only, and not {UNNAMED:?}",
                key("name")
            ));
        }
        if others
            .iter()
            .filter(|other| other.name == self.name)
            .count()
            > 1
        {
            faults.push(format!("{}: given twice", key("name")));
        }
        if self.file.as_os_str().is_empty() == self.sha256.is_empty() {
            faults.push(format!("{}: set one of the two", key("file, sha256")));
        } else if !self.sha256.is_empty() && digest(&self.sha256).is_none() {
            faults.push(format!(
                "{}: 64 hexadecimal digits, as of `printf %s TOKEN | sha256sum`",
                key("sha256")
            ));
        }
        let scoped = !self.users.is_empty() || !self.accounts.is_empty();
        if scoped != (self.role == Role::User) {
            faults.push(format!(
                "{}: required for role \"user\", not allowed for others",
                key("users, accounts")
            ));
        }
        if self.users.contains("") || self.accounts.contains("") {
            faults.push(format!(
                "{}: empty names are not allowed",
                key("users, accounts")
            ));
        }
        faults
    }
}

fn digest(hex_text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    hex::decode_to_slice(hex_text, &mut digest).ok()?;
    Some(digest)
}

#[derive(Debug)]
pub(crate) struct Tokens(Vec<Token>);

#[derive(Debug)]
struct Token {
    caller: Caller,
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// SHA-256 of the token; `None` while its file cannot be used.
    digest: Option<[u8; 32]>,
    files: WatchedFiles,
}

impl Tokens {
    /// Reads every token.
    ///
    /// # Errors
    /// If a file cannot be used; the error names the key.
    pub(crate) fn new(token_file: &Path, configured: &[TokenConfig]) -> Result<Self, String> {
        let caller = |name: &str, role, users, accounts: &BTreeSet<String>| Caller {
            name: format!("token:{name}"),
            role,
            users,
            accounts: match accounts.is_empty() {
                true => AccountsByCluster::new(),
                false => AccountsByCluster::from([(None, accounts.clone())]),
            },
            auth_method: AuthMethod::Token,
            request: String::new(),
        };
        let mut tokens = Vec::new();
        if !token_file.as_os_str().is_empty() {
            let caller = caller(UNNAMED, Role::Admin, BTreeSet::new(), &BTreeSet::new());
            tokens.push(Token::of_file(caller, token_file.to_owned())?);
        }
        for token in configured {
            let caller = caller(
                &token.name,
                token.role,
                token.users.clone(),
                &token.accounts,
            );
            tokens.push(match digest(&token.sha256) {
                Some(digest) => Token {
                    caller,
                    file: None,
                    state: Mutex::new(State {
                        digest: Some(digest),
                        files: WatchedFiles::default(),
                    }),
                },
                None => Token::of_file(caller, token.file.clone())?,
            });
        }
        Ok(Self(tokens))
    }

    /// The caller of a token. Takes as long for a wrong token as for a right one.
    pub(crate) fn caller(&self, presented: &str) -> Option<Caller> {
        let presented: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let mut found = None;
        for token in &self.0 {
            let state = token.state.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(digest) = &state.digest else {
                continue;
            };
            if bool::from(digest.ct_eq(&presented)) {
                found = Some(&token.caller);
            }
        }
        found.cloned()
    }

    /// Reads changed files again. A token whose file has become unusable is no longer accepted.
    pub(crate) fn reload(&self) {
        for token in &self.0 {
            token.reload();
        }
    }
}

impl Token {
    fn of_file(caller: Caller, file: PathBuf) -> Result<Self, String> {
        let mut files = WatchedFiles::default();
        files.add(file.clone());
        let digest = read(&file)
            .map_err(|reason| format!("{} {}: {reason}", caller.name, file.display()))?;
        Ok(Self {
            caller,
            file: Some(file),
            state: Mutex::new(State {
                digest: Some(digest),
                files,
            }),
        })
    }

    fn reload(&self) {
        let Some(file) = &self.file else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.files.changed() {
            return;
        }
        match read(file) {
            Ok(digest) => {
                tracing::info!(token = self.caller.name, "token reloaded");
                state.digest = Some(digest);
            }
            Err(reason) => {
                tracing::warn!(
                    token = self.caller.name,
                    file = %file.display(),
                    reason,
                    "token unusable, requests with it are refused"
                );
                state.digest = None;
            }
        }
    }
}

fn read(file: &Path) -> Result<[u8; 32], String> {
    let text = secret_file::read(file).map_err(|error| error.to_string())?;
    let text = text.trim();
    if text.len() < MIN_TOKEN_CHARS {
        return Err(format!(
            "a token needs at least {MIN_TOKEN_CHARS} characters"
        ));
    }
    Ok(Sha256::digest(text.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SECRET: &str = "correct horse battery staple";

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn config(text: &str) -> TokenConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn tokens_are_known_by_file_and_by_hash() {
        let folder = tempfile::tempdir().unwrap();
        let (old, file) = (folder.path().join("old"), folder.path().join("portal"));
        write(&old, "the token of former times\n", 0o600);
        write(&file, &format!("{SECRET}\n"), 0o600);
        let by_file = config(&format!(
            "name = 'portal'\nrole = 'auditor'\nfile = {file:?}"
        ));
        let hash = hex::encode(Sha256::digest(b"pi's own little token"));
        let by_hash = config(&format!(
            "name = 'pi'\nrole = 'user'\nsha256 = '{hash}'\nusers = ['alice']\naccounts = ['physics']"
        ));
        let tokens = Tokens::new(&old, &[by_file, by_hash]).unwrap();
        let caller = |token: &str| tokens.caller(token).unwrap();
        assert_eq!(caller("the token of former times").role, Role::Admin);
        assert_eq!(caller(SECRET).name, "token:portal");
        assert!(caller(SECRET).sees_everything() && !caller(SECRET).may_write());
        let pi = caller("pi's own little token");
        assert!(pi.may_see("c", "alice", "") && pi.may_see("c", "bob", "physics"));
        assert!(!pi.may_see("c", "bob", "chemistry"));
        for wrong in ["", "the token of former time", "token", &hash] {
            assert_eq!(tokens.caller(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_or_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        for mode in [0o644, 0o604, 0o602, 0o666] {
            write(&file, SECRET, mode);
            let error = Tokens::new(&file, &[]).unwrap_err();
            assert!(error.contains("chmod 600"), "{error}");
            assert!(error.contains(file.to_str().unwrap()), "{error}");
        }
        // Our own group may read it, as Kubernetes mounts secrets.
        write(&file, SECRET, 0o640);
        assert!(Tokens::new(&file, &[]).unwrap().caller(SECRET).is_some());
    }

    #[test]
    fn a_changed_file_is_used_at_once_and_an_invalid_one_refuses_all() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        write(&file, SECRET, 0o600);
        let one = config(&format!("name = 'one'\nrole = 'admin'\nfile = {file:?}"));
        let tokens = Tokens::new(Path::new(""), &[one]).unwrap();
        assert!(tokens.caller(SECRET).is_some());
        write(&file, "another token, just as long", 0o600);
        tokens.reload();
        assert!(tokens.caller(SECRET).is_none());
        assert!(tokens.caller("another token, just as long").is_some());
        for spoil in [
            |file: &Path| write(file, "another token, just as long", 0o644),
            |file: &Path| write(file, "short", 0o600),
            |file: &Path| std::fs::remove_file(file).unwrap(),
        ] {
            spoil(&file);
            tokens.reload();
            assert!(tokens.caller("another token, just as long").is_none());
            assert!(tokens.caller("short").is_none() && tokens.caller("").is_none());
        }
        write(&file, SECRET, 0o600);
        tokens.reload();
        assert!(tokens.caller(SECRET).is_some());
    }

    #[test]
    fn faults_are_named() {
        let hash = "0".repeat(64);
        for (text, part) in [
            (
                "name = 'a b'\nrole = 'admin'\nfile = 'x'".to_owned(),
                "name",
            ),
            ("name = 'a'\nrole = 'admin'".to_owned(), "file, sha256"),
            (
                "name = 'a'\nrole = 'admin'\nsha256 = 'abc'".to_owned(),
                "sha256",
            ),
            (
                format!("name = 'a'\nrole = 'user'\nsha256 = '{hash}'"),
                "users, accounts",
            ),
            (
                format!("name = 'a'\nrole = 'admin'\nsha256 = '{hash}'\nusers = ['x']"),
                "users, accounts",
            ),
        ] {
            let faults = config(&text).faults(&[]);
            assert!(
                faults.iter().any(|fault| fault.contains(part)),
                "{faults:?}"
            );
        }
        let one = config(&format!("name = 'a'\nrole = 'auditor'\nsha256 = '{hash}'"));
        assert_eq!(one.faults(std::slice::from_ref(&one)), [""; 0]);
        assert!(one.faults(&[one.clone(), one.clone()])[0].contains("twice"));
        assert!(toml::from_str::<TokenConfig>("name = 'a'\nrole = 'king'").is_err());
    }
}
