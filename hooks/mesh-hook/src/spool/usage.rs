//! Tracks the used bytes of the spool without listing its folder at each call. A full spool holds thousands of files.
//!
//! The file `.used` holds the bytes reserved for doorbells. They are reserved before a file is written and released after it is
//! removed. A process killed in between leaves the number too high, never too low.
//! When the spool seems full, the files are counted again, at most once a second.

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
/// How long another process may hold the file. It needs microseconds, or milliseconds to count. After that its holder is considered
/// hung, and a new file is created.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// Shortest interval between two counts of a full spool.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(1);
/// After a crash of the machine the file may be older than the folder, so a number from another boot is ignored.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Accounting of the bytes in a spool folder.
pub(super) struct SpoolUsage<'a> {
    pub folder: &'a Path,
    pub limit: u64,
}

#[derive(Clone, Copy)]
struct Usage {
    used: u64,
    counted_at: SystemTime,
}

impl SpoolUsage<'_> {
    /// Reserves bytes. False if the spool is full.
    pub fn reserve(&self, bytes: u64) -> io::Result<bool> {
        let file = self.locked();
        let known = file.as_ref().and_then(read);
        let mut usage = match known {
            Some(usage) => usage,
            None => self.count()?,
        };
        let fits = |usage: Usage| usage.used.saturating_add(bytes) <= self.limit;
        // A clock that was set back must not extend the interval.
        let age = usage.counted_at.elapsed().unwrap_or(RECOUNT_INTERVAL);
        if !fits(usage) && known.is_some() && age >= RECOUNT_INTERVAL {
            usage = self.count()?;
        }
        let fits = fits(usage);
        if fits {
            usage.used = usage.used.saturating_add(bytes);
        }
        self.write_usage(file.as_ref(), usage);
        Ok(fits)
    }

    /// Releases bytes.
    pub fn release(&self, bytes: u64) {
        let file = self.locked();
        if let Some(mut usage) = file.as_ref().and_then(read) {
            usage.used = usage.used.saturating_sub(bytes);
            self.write_usage(file.as_ref(), usage);
        }
    }

    fn count(&self) -> io::Result<Usage> {
        let mut used = 0_u64;
        for entry in fs::read_dir(self.folder)? {
            let name = entry?.file_name();
            used = used.saturating_add(name.to_str().map_or(0, size_in_name));
        }
        Ok(Usage {
            used,
            counted_at: SystemTime::now(),
        })
    }

    /// Opens and locks the file. `None` if that fails, for example on a full disk. The files are then counted.
    fn locked(&self) -> Option<File> {
        let path = self.folder.join(FILE);
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            let Ok(file) = open_own(self.folder, FILE) else {
                // An invalid file would make every call count.
                fs::remove_file(&path).ok();
                return None;
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Unless another process removed it meanwhile.
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

    fn write_usage(&self, file: Option<&File>, usage: Usage) {
        let Some(file) = file else { return };
        if write(file, usage).is_err() {
            // No space for the file, or a partial write. Counting is slow but right.
            fs::remove_file(self.folder.join(FILE)).ok();
        }
    }
}

fn boot() -> String {
    fs::read_to_string(BOOT).map_or_else(|_| "-".to_owned(), |id| id.trim().to_owned())
}

fn read(file: &File) -> Option<Usage> {
    let mut bytes = [0; 128];
    let read = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..read]).ok()?;
    let mut fields = text.strip_suffix('\n')?.split(' ');
    let used = fields.next()?.parse().ok()?;
    let millis = fields.next()?.parse().ok()?;
    let counted_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))?;
    (fields.next()? == boot()).then_some(Usage { used, counted_at })
}

/// Same length as before, so that it fits on a full disk.
fn write(file: &File, usage: Usage) -> io::Result<()> {
    let millis = usage
        .counted_at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let text = format!("{:020} {millis:020} {}\n", usage.used, boot());
    file.write_all_at(text.as_bytes(), 0)
}
