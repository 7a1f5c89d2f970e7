//! Records which states were already reported: empty files in the spool, because every call is another process.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use super::{Spool, like_folder};

/// A state that is reported once when it begins and once when it ends, not at every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// NATS does not accept doorbells.
    Unavailable,
    /// The spool does not accept them either.
    Full,
}

impl State {
    /// Name of the empty file in the spool. A full disk still has room for a name.
    const fn file(self) -> &'static str {
        match self {
            Self::Unavailable => ".away",
            Self::Full => ".full",
        }
    }
}

impl Spool {
    /// Records the begin of a state. True if it is new. Also true if it cannot be recorded: a duplicate report is better than none.
    pub fn begins(&self, state: State) -> bool {
        let noted = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.folder.join(state.file()));
        match noted {
            Ok(file) => {
                like_folder(&file, &self.folder).ok();
                true
            }
            Err(error) => error.kind() != io::ErrorKind::AlreadyExists,
        }
    }

    /// Records the end of a state. True if the state was set.
    pub fn ends(&self, state: State) -> bool {
        fs::remove_file(self.folder.join(state.file())).is_ok()
    }
}
