//! What was said already: empty files in the spool, since every call is another process.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use super::{Spool, like_folder};

/// What is said once when it begins and once when it is over, not at every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// NATS does not take doorbells.
    Unavailable,
    /// Nor does the spool.
    Full,
}

impl State {
    /// An empty file in the spool. A full disk still has room for a name.
    const fn file(self) -> &'static str {
        match self {
            Self::Unavailable => ".away",
            Self::Full => ".full",
        }
    }
}

impl Spool {
    /// Notes that a state begins; true if it did not last already. True as well if it cannot be noted: better said twice than never.
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

    /// Notes that a state is over; true if it lasted.
    pub fn ends(&self, state: State) -> bool {
        fs::remove_file(self.folder.join(state.file())).is_ok()
    }
}
