//! The private key file, and the file `….last` next to it. The latter holds the newest checkpoint
//! signed with the key on this host. It reveals a database that was restored to an earlier state.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::domain::note::PrivateKey;
use crate::error::Error;

/// The path of the private key file.
#[derive(Clone, Debug)]
pub struct KeyFile(PathBuf);

impl KeyFile {
    /// Creates a handle. The file need not exist yet.
    pub const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Returns the path of the key file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads the key. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read, is readable by others, or holds no key.
    pub fn read(&self) -> Result<Option<PrivateKey>, Error> {
        read_key(&self.0)
    }

    /// Reads the next key: one that is written but not active yet.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_next(&self) -> Result<Option<PrivateKey>, Error> {
        read_key(&self.beside("next"))
    }

    /// Writes the next key, beside the active one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_next(&self, key: &PrivateKey) -> Result<(), Error> {
        let path = self.beside("next");
        write(&path, &format!("{}\n", key.to_secret_text())).map_err(|source| self.error(source))
    }

    /// Replaces the active key by the next key. The former key is lost.
    ///
    /// # Errors
    /// If the file cannot be renamed.
    pub fn use_next(&self) -> Result<(), Error> {
        std::fs::rename(self.beside("next"), &self.0)
            .and_then(|()| sync_folder(&self.0))
            .map_err(|source| self.error(source))
    }

    /// Deletes the next key.
    ///
    /// # Errors
    /// If the file cannot be deleted.
    pub fn drop_next(&self) -> Result<(), Error> {
        match std::fs::remove_file(self.beside("next")) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.error(error)),
            _ => Ok(()),
        }
    }

    /// Reads the newest note signed on this host. Returns `None` before the first.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn last_note(&self) -> Result<Option<String>, Error> {
        match std::fs::read_to_string(self.beside("last")) {
            Ok(note) => Ok(Some(note)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Stores a note as the newest, before it is published.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_last_note(&self, note: &str) -> Result<(), Error> {
        let path = self.beside("last.new");
        write(&path, note)
            .and_then(|()| std::fs::rename(&path, self.beside("last")))
            .and_then(|()| sync_folder(&self.0))
            .map_err(|source| self.error(source))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".");
        path.push(suffix);
        path.into()
    }

    fn error(&self, source: std::io::Error) -> Error {
        Error::KeyFile {
            path: self.0.clone(),
            source,
        }
    }
}

fn read_key(path: &Path) -> Result<Option<PrivateKey>, Error> {
    let io = |source| Error::KeyFile {
        path: path.to_owned(),
        source,
    };
    let unfit = |fault: String| Error::KeyUnfit {
        path: path.to_owned(),
        fault,
    };
    let text = match secret_file::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    match text.trim_end().parse() {
        Ok(key) => Ok(Some(key)),
        // The reason never contains the secret.
        Err(error) => Err(unfit(error.to_string())),
    }
}

/// Replaces a file durably. Only its owner may read it.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn a_key_is_taken_into_use_in_one_step_and_only_its_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::new(folder.path().join("ledger.key"));
        assert!(file.read().unwrap().is_none());
        let keys = [1, 2].map(|seed| PrivateKey::new("o", &[seed; 32]).unwrap());
        for key in &keys {
            file.write_next(key).unwrap();
            assert_eq!(file.read_next().unwrap().unwrap().public(), key.public());
            file.use_next().unwrap();
            assert_eq!(file.read().unwrap().unwrap().public(), key.public());
            assert!(file.read_next().unwrap().is_none());
        }
        file.drop_next().unwrap();
        assert_eq!(file.path().metadata().unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(file.read(), Err(Error::KeyFile { .. })));
    }

    #[test]
    fn invalid_keys_are_refused_and_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::new(folder.path().join("ledger.key"));
        write(file.path(), "PRIVATE+KEY+o+00000000+c2VjcmV0\n").unwrap();
        let error = file.read().unwrap_err();
        assert!(matches!(error, Error::KeyUnfit { .. }));
        assert!(!error.to_string().contains("c2VjcmV0"));
    }

    #[test]
    fn the_last_note_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::new(folder.path().join("ledger.key"));
        assert_eq!(file.last_note().unwrap(), None);
        for note in ["one\n", "two\n"] {
            file.write_last_note(note).unwrap();
            assert_eq!(file.last_note().unwrap().as_deref(), Some(note));
        }
    }
}
