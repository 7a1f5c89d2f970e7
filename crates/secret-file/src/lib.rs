//! Reads files that hold a secret: passwords, tokens, private keys. A file that others may read or change is refused, as OpenSSH refuses a
//! private key. A warning would go unread, and whoever can change a token file can log in.
//!
//! Also what shows secrets among the keys of a configuration as masked: [`masked`], [`LoginUrl`].

mod masked;

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use secrecy::SecretString;

pub use masked::{LoginUrl, MASK, has_password, masked, masked_login, without_login};

/// Limit of a secret's length.
const LONGEST: u64 = 64 * 1024;

/// Why a readable file is refused; the inner error of the [`io::Error`].
#[derive(Debug, thiserror::Error)]
pub enum UnsafeFile {
    /// Its mode gives others access.
    #[error(
        "others may read or change it (mode {mode:o}); chmod 600 it, and replace the secret if others may have read it"
    )]
    Exposed {
        /// Permission bits.
        mode: u32,
    },
    /// Its owner, who can read and replace it, is neither root nor the user of this process.
    #[error(
        "it belongs to uid {uid}; chown it to root or to the user of this process, and replace the secret"
    )]
    Foreign {
        /// Owner.
        uid: u32,
    },
    /// It is a device, a folder, or far too long.
    #[error("not a regular file of at most 64 KiB")]
    NoSecret,
}

impl From<UnsafeFile> for io::Error {
    fn from(unfit: UnsafeFile) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, unfit)
    }
}

/// Identifies the version of a file: inode, length, and the time at which content or mode were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp(u64, u64, i64, i64);

impl FileStamp {
    /// The stamp of the file at a path; `None` if there is none.
    pub fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().as_ref().map(Self::from)
    }
}

impl From<&Metadata> for FileStamp {
    fn from(file: &Metadata) -> Self {
        Self(file.ino(), file.len(), file.ctime(), file.ctime_nsec())
    }
}

/// Reads a secret, exactly as it is in the file.
///
/// # Errors
/// If the file cannot be read, or an [`UnsafeFile`] if others may read or change it. The text does not contain the path: the caller reports
/// the key that names the file.
pub fn read(path: &Path) -> io::Result<String> {
    read_with_stamp(path).map(|(text, _)| text)
}

/// A secret that one key gives, or a file that another key names; trimmed if it is of the file.
///
/// # Errors
/// The key at fault and the problem: both are given, or the file cannot be read.
pub fn text_or_file(
    [key, file_key]: [&'static str; 2],
    text: Option<&str>,
    file: Option<&Path>,
    read: &impl Fn(&Path) -> io::Result<String>,
) -> Result<Option<SecretString>, (&'static str, String)> {
    let Some(path) = file else {
        return Ok(text.map(SecretString::from));
    };
    if text.is_some() {
        return Err((key, format!("given twice: {key} or {file_key}, not both")));
    }
    let unread = |error| (file_key, format!("read {}: {error}", path.display()));
    Ok(Some(read(path).map_err(unread)?.trim().into()))
}

/// Reads a secret of a person, who names a file and may have been given it by its owner.
///
/// # Errors
/// As [`read`], but whoever owns the file.
pub fn read_of_any_owner(path: &Path) -> io::Result<String> {
    read_checked(path, check_mode).map(|(text, _)| text)
}

/// Reads a secret and the stamp of its file.
///
/// # Errors
/// As [`read`].
pub fn read_with_stamp(path: &Path) -> io::Result<(String, FileStamp)> {
    read_checked(path, |file| {
        check_owner(file)?;
        check_mode(file)
    })
}

fn read_checked(
    path: &Path,
    check: impl FnOnce(&Metadata) -> Result<(), UnsafeFile>,
) -> io::Result<(String, FileStamp)> {
    // Opened once: the file that is checked is the one that is read.
    let file = File::open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() > LONGEST {
        return Err(UnsafeFile::NoSecret.into());
    }
    check(&about)?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok((text, FileStamp::from(&about)))
}

/// Checks that nobody can read and replace a file with a secret as its owner.
///
/// A process of root, such as a hook or a command of the administrator, uses the files of the services' user, whoever that is.
fn check_owner(file: &Metadata) -> Result<(), UnsafeFile> {
    let uid = file.uid();
    if is_trusted(uid, rustix::process::geteuid().as_raw()) {
        Ok(())
    } else {
        Err(UnsafeFile::Foreign { uid })
    }
}

/// Checks that the mode of a file with a secret keeps others out. A group of this process may read and change it: Kubernetes gives volumes
/// and secrets to the group of the pod (`fsGroup`), mode 0440 or 0660.
fn check_mode(file: &Metadata) -> Result<(), UnsafeFile> {
    let mode = file.mode() & 0o7777;
    let by_group = mode & 0o070 != 0 && !is_own_group(file.gid());
    if mode & 0o007 != 0 || by_group {
        return Err(UnsafeFile::Exposed { mode });
    }
    Ok(())
}

/// Whether a process of this user trusts the owner of a file.
const fn is_trusted(owner: u32, user: u32) -> bool {
    owner == 0 || owner == user || user == 0
}

fn is_own_group(gid: u32) -> bool {
    use rustix::process::{getegid, getgroups};
    getegid().as_raw() == gid
        || getgroups().is_ok_and(|groups| groups.iter().any(|group| group.as_raw() == gid))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    #[test]
    fn a_file_is_for_its_owner_and_our_own_groups() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, "s3cret\n").unwrap();
        for (mode, used) in [
            (0o600, true),
            (0o400, true),
            (0o440, true),
            (0o660, true),
            (0o644, false),
            (0o604, false),
            (0o602, false),
            (0o666, false),
            (0o601, false),
        ] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_of_any_owner(&path).is_ok(), used, "{mode:o}");
            match read(&path) {
                Ok(text) => assert!(used && text == "s3cret\n", "{mode:o}"),
                Err(error) => {
                    assert!(!used, "{mode:o}: {error}");
                    assert!(
                        error
                            .to_string()
                            .contains(&format!("(mode {mode:o}); chmod 600"))
                    );
                }
            }
        }
    }

    #[test]
    fn a_group_that_is_not_ours_may_not_read_it() {
        let foreign = (60_000..).find(|gid| !is_own_group(*gid)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, "s3cret").unwrap();
        if chown(&path, None, Some(foreign)).is_err() {
            // Only root may give a file to a group it is not in.
            assert!(!rustix::process::geteuid().is_root());
            return;
        }
        for mode in [0o640, 0o660, 0o620] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read(&path).unwrap_err();
            assert!(
                error.to_string().contains(&format!("(mode {mode:o})")),
                "{error}"
            );
        }
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        read(&path).unwrap();
    }

    #[test]
    fn a_service_refuses_a_file_of_another_user() {
        for (owner, user, expected) in [
            (0, 64_030, true),
            (64_030, 64_030, true),
            (1_000, 64_030, false),
            (65_532, 64_030, false),
            // A hook, with the hook.toml of SlurmUser.
            (64_030, 0, true),
        ] {
            assert_eq!(is_trusted(owner, user), expected, "{owner} {user}");
        }
    }

    #[test]
    fn invalid_secret_files_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("long");
        write(&long, vec![b'x'; 64 * 1024 + 1]).unwrap();
        set_permissions(&long, Permissions::from_mode(0o600)).unwrap();
        for path in [folder.path(), &long, Path::new("/dev/zero")] {
            let error = read(path).unwrap_err();
            assert!(
                error.to_string().contains("not a regular file"),
                "{}: {error}",
                path.display()
            );
        }
        let missing = read(&folder.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_stamp_changes_with_content_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert_eq!(FileStamp::of(&path), None);
        write(&path, "one").unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let (_, first) = read_with_stamp(&path).unwrap();
        assert_eq!(FileStamp::of(&path), Some(first));
        write(&path, "other").unwrap();
        assert_ne!(FileStamp::of(&path), Some(first));
    }
}
