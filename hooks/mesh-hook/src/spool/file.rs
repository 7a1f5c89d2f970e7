//! File format of a doorbell: a line with the SHA-256 of the rest, a line with the subject, then the encoded doorbell. The file name
//! sorts by the time of the call.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::open_regular;

/// Smallest size of a file on disk. Larger sizes are in the file names, so a full folder need not be read.
pub(super) const BLOCK: u64 = 4096;
/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A doorbell read from disk.
#[derive(Debug, PartialEq, Eq)]
pub struct Spooled {
    /// Its file.
    pub path: PathBuf,
    /// Its id.
    pub id: String,
    /// Its subject.
    pub subject: String,
    /// The encoded doorbell.
    pub body: Vec<u8>,
}

/// File name of a doorbell.
pub(super) fn name(called_at: SystemTime, id: &str, size: usize) -> String {
    let nanos = called_at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    format!("{nanos:020}-{id}-{size}.bell")
}

/// Reads a file. `None` if it is damaged.
pub(super) fn read(path: &Path) -> io::Result<Option<Spooled>> {
    let file = open_regular(OpenOptions::new().read(true), path)?;
    if file.metadata()?.size() > MAX_FILE {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(parse(path, &bytes))
}

/// Content of a file. The subject must not contain a line end.
pub fn content(subject: &str, body: &[u8]) -> Vec<u8> {
    let content = [subject.as_bytes(), b"\n", body].concat();
    let digest = hex::encode(Sha256::digest(&content));
    [digest.as_bytes(), b"\n", &content].concat()
}

/// Parses the content of a file. `None` if it is damaged or its name is not one of the spool's.
pub fn parse(path: &Path, bytes: &[u8]) -> Option<Spooled> {
    let (digest, content) = bytes.split_at_checked(64)?;
    let content = content.strip_prefix(b"\n")?;
    if hex::encode(Sha256::digest(content)).as_bytes() != digest {
        return None;
    }
    let end = content.iter().position(|byte| *byte == b'\n')?;
    let id = path
        .file_stem()?
        .to_str()?
        .split_once('-')?
        .1
        .rsplit_once('-')?
        .0;
    let subject = std::str::from_utf8(&content[..end]).ok()?;
    // Both become part of protocol lines. A value with a line break would block the delivery of all others.
    (is_single_token(id) && is_single_token(subject)).then(|| Spooled {
        path: path.to_owned(),
        id: id.to_owned(),
        subject: subject.to_owned(),
        body: content[end + 1..].to_vec(),
    })
}

fn is_single_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Size on disk of a file with this name, in bytes.
pub(super) fn size_in_name(name: &str) -> u64 {
    let size = name
        .trim_start_matches('.')
        .split('.')
        .next()
        .and_then(|stem| stem.rsplit_once('-'))
        .and_then(|(_, size)| size.parse().ok());
    size.map_or(0, on_disk)
}

pub(super) const fn on_disk(size: u64) -> u64 {
    if size < BLOCK {
        BLOCK
    } else {
        size.div_ceil(BLOCK) * BLOCK
    }
}
