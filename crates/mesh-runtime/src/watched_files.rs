//! Follows files that change while the process runs. Their stamps are compared at an interval: the kernel's notices do not report changes
//! by another machine (NFS), nor of the links that Kubernetes replaces in a mounted ConfigMap.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secret_file::FileStamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Longest delay until a changed file takes effect.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// Files must stay the same for this long before they are read: an editor may be writing them.
const SETTLE_TIME: Duration = Duration::from_millis(250);
/// Files that never stay the same for so long are read after this number of times.
const MAX_SETTLES: u32 = 20;

type Stamps = BTreeMap<PathBuf, Option<FileStamp>>;
/// True for the files of a folder that count.
type Counts = fn(&Path) -> bool;

/// Files, each with its stamp from before it was read: a change in between is noticed at the next comparison.
#[derive(Clone, Debug, Default)]
pub struct WatchedFiles {
    files: Vec<PathBuf>,
    folders: Vec<(PathBuf, Counts)>,
    stamps: Stamps,
    is_due: bool,
}

impl WatchedFiles {
    /// Adds a file that will be read.
    pub fn add(&mut self, file: PathBuf) {
        let stamp = FileStamp::of(&file);
        self.add_with_stamp(file, stamp);
    }

    pub(crate) fn add_with_stamp(&mut self, file: PathBuf, stamp: Option<FileStamp>) {
        self.stamps.insert(file.clone(), stamp);
        self.files.push(file);
    }

    /// Adds the files of a folder for which `counts` returns true.
    pub fn add_folder(&mut self, folder: PathBuf, counts: fn(&Path) -> bool) {
        self.stamps.extend(stamps_in(&folder, counts));
        self.folders.push((folder, counts));
    }

    /// True if a file has changed since it was added or compared last.
    pub fn changed(&mut self) -> bool {
        let files = self.files.iter();
        let mut found: Stamps = files
            .map(|file| (file.clone(), FileStamp::of(file)))
            .collect();
        for (folder, counts) in &self.folders {
            found.extend(stamps_in(folder, *counts));
        }
        let is_due = std::mem::take(&mut self.is_due);
        is_due | (std::mem::replace(&mut self.stamps, found) != self.stamps)
    }

    /// The next comparison finds a change: what was read could not be used yet.
    pub const fn read_again(&mut self) {
        self.is_due = true;
    }
}

/// None if the folder cannot be read.
fn stamps_in(folder: &Path, counts: Counts) -> Stamps {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries
        .map(|entry| entry.path())
        .filter(|path| counts(path));
    let stamp = |path: PathBuf| (path.clone(), FileStamp::of(&path));
    paths.map(stamp).collect()
}

/// Waits until files are due to be compared: at an interval, and at SIGHUP at once.
pub struct ReloadTimer {
    /// `None` if the process may not handle signals.
    hangup: Option<Signal>,
    interval: Duration,
    shutdown: CancellationToken,
}

impl ReloadTimer {
    /// A timer that ends at shutdown.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self::every(RELOAD_INTERVAL, shutdown)
    }

    /// A timer with its own interval.
    pub fn every(interval: Duration, shutdown: CancellationToken) -> Self {
        Self {
            hangup: signal(SignalKind::hangup()).ok(),
            interval,
            shutdown,
        }
    }

    /// Waits for the next comparison. Returns false at shutdown.
    pub async fn due(&mut self) -> bool {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shutdown.cancelled() => return false,
            () = hangup => {}
            () = tokio::time::sleep(self.interval) => {}
        }
        true
    }

    /// Waits until files have changed and are no longer being written, for five seconds at most. Returns false at shutdown.
    pub async fn changed(&mut self, files: &mut WatchedFiles) -> bool {
        while self.due().await {
            if !files.changed() {
                continue;
            }
            for _ in 0..MAX_SETTLES {
                let settled = tokio::time::sleep(SETTLE_TIME);
                if self.shutdown.run_until_cancelled(settled).await.is_none() {
                    return false;
                }
                if !files.changed() {
                    break;
                }
            }
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_found_once() {
        let folder = tempfile::tempdir().unwrap();
        let (file, rules) = (folder.path().join("mesh.toml"), folder.path().join("rules"));
        std::fs::create_dir(&rules).unwrap();
        let mut files = WatchedFiles::default();
        files.add(file.clone());
        files.add_folder(rules.clone(), |path| path.ends_with("one.toml"));
        assert!(!files.changed());
        let changes: [&dyn Fn(); 5] = [
            &|| std::fs::write(&file, "").unwrap(),
            &|| std::fs::write(&file, "[mesh]").unwrap(),
            &|| std::fs::remove_file(&file).unwrap(),
            &|| std::fs::write(rules.join("one.toml"), "").unwrap(),
            &|| std::fs::remove_dir_all(&rules).unwrap(),
        ];
        for (number, change) in changes.iter().enumerate() {
            change();
            assert!(files.changed(), "change {number}");
            assert!(!files.changed(), "change {number} again");
        }
        std::fs::create_dir(&rules).unwrap();
        std::fs::write(rules.join("two.toml"), "").unwrap();
        assert!(!files.changed(), "it does not count");
        files.read_again();
        assert!(files.changed());
        assert!(!files.changed());
    }

    #[test]
    fn a_change_between_adding_and_reading_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let mut files = WatchedFiles::default();
        files.add(file.clone());
        std::fs::write(&file, "new").unwrap();
        assert!(files.changed());
    }

    #[tokio::test]
    async fn files_that_are_being_written_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mesh.toml");
        let mut files = WatchedFiles::default();
        files.add(file.clone());
        let shutdown = CancellationToken::new();
        let mut timer = ReloadTimer::every(Duration::from_millis(10), shutdown.clone());
        let writing = tokio::spawn(async move {
            for text in 0..8 {
                std::fs::write(&file, "x".repeat(text)).unwrap();
                tokio::time::sleep(SETTLE_TIME / 4).await;
            }
        });
        assert!(timer.changed(&mut files).await);
        assert!(writing.is_finished());
        shutdown.cancel();
        files.read_again();
        assert!(!timer.changed(&mut files).await);
    }

    #[tokio::test]
    async fn a_file_that_is_written_all_the_time_is_read_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mesh.toml");
        let mut files = WatchedFiles::default();
        files.add(file.clone());
        let mut timer = ReloadTimer::every(Duration::from_millis(10), CancellationToken::new());
        let writing = tokio::spawn(async move {
            for text in (0..2).cycle() {
                std::fs::write(&file, "x".repeat(text)).unwrap();
                tokio::time::sleep(SETTLE_TIME / 8).await;
            }
        });
        let limit = SETTLE_TIME * (MAX_SETTLES * 3);
        let changed = tokio::time::timeout(limit, timer.changed(&mut files)).await;
        assert_eq!(changed, Ok(true));
        assert!(!writing.is_finished());
        writing.abort();
    }
}
