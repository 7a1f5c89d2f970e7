//! How much of the spool is in use, without listing its folder at each call: a full one holds thousands of files.
//!
//! The file `.used` has the bytes that are promised to doorbells. They are promised before a file is written and given back after it is
//! removed, so who is killed in between leaves too much rather than too little. When the spool looks full by it, the files are counted
//! anew, once a second at most.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::file::size_in_name;
use super::open_own;

const FILE: &str = ".used";
/// How long others may hold the file: they need microseconds, or milliseconds to count. After that its holder hangs, and a new file is made.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// How often a full spool is counted.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(1);
/// After a crash of the machine the file may be older than the folder: numbers of another boot do not count.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The room in a spool folder.
pub(super) struct Room<'a> {
    pub folder: &'a Path,
    pub limit: u64,
}

#[derive(Clone, Copy)]
struct Tally {
    used: u64,
    counted_at: SystemTime,
}

impl Room<'_> {
    /// Promises bytes; false if there is no room.
    pub fn take(&self, bytes: u64) -> io::Result<bool> {
        let file = self.locked();
        let known = file.as_ref().and_then(read);
        let mut tally = match known {
            Some(tally) => tally,
            None => self.count()?,
        };
        let fits = |tally: Tally| tally.used.saturating_add(bytes) <= self.limit;
        // A clock that went back is no reason to trust it longer.
        let age = tally.counted_at.elapsed().unwrap_or(RECOUNT_INTERVAL);
        if !fits(tally) && known.is_some() && age >= RECOUNT_INTERVAL {
            tally = self.count()?;
        }
        let fits = fits(tally);
        if fits {
            tally.used = tally.used.saturating_add(bytes);
        }
        self.note(file.as_ref(), tally);
        Ok(fits)
    }

    /// Gives bytes back.
    pub fn give_back(&self, bytes: u64) {
        let file = self.locked();
        if let Some(mut tally) = file.as_ref().and_then(read) {
            tally.used = tally.used.saturating_sub(bytes);
            self.note(file.as_ref(), tally);
        }
    }

    fn count(&self) -> io::Result<Tally> {
        let mut used = 0_u64;
        for entry in fs::read_dir(self.folder)? {
            let name = entry?.file_name();
            used = used.saturating_add(name.to_str().map_or(0, size_in_name));
        }
        Ok(Tally {
            used,
            counted_at: SystemTime::now(),
        })
    }

    /// The file, in our hands alone. `None` if it cannot be had, as on a full disk: then files are counted.
    fn locked(&self) -> Option<File> {
        let path = self.folder.join(FILE);
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            let Ok(file) = open_own(self.folder, FILE) else {
                // What is no file of ours would have every call count for ever.
                fs::remove_file(&path).ok();
                return None;
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Unless somebody took it away in between.
                Ok(()) if file.metadata().ok()?.nlink() > 0 => return Some(file),
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(_) => {
                    fs::remove_file(&path).ok();
                    return None;
                }
            }
        }
    }

    fn note(&self, file: Option<&File>, tally: Tally) {
        let Some(file) = file else { return };
        if write(file, tally).is_err() {
            // No room for it, or half of it: counting is slow and right.
            fs::remove_file(self.folder.join(FILE)).ok();
        }
    }
}

fn boot() -> String {
    fs::read_to_string(BOOT).map_or_else(|_| "-".to_owned(), |id| id.trim().to_owned())
}

fn read(file: &File) -> Option<Tally> {
    let mut bytes = [0; 128];
    let read = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..read]).ok()?;
    let mut fields = text.strip_suffix('\n')?.split(' ');
    let used = fields.next()?.parse().ok()?;
    let millis = fields.next()?.parse().ok()?;
    let counted_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))?;
    (fields.next()? == boot()).then_some(Tally { used, counted_at })
}

/// As long as before, so that a full disk has room for it.
fn write(file: &File, tally: Tally) -> io::Result<()> {
    let millis = tally
        .counted_at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let text = format!("{:020} {millis:020} {}\n", tally.used, boot());
    file.write_all_at(text.as_bytes(), 0)
}
