//! The archive file of a range: an export compressed with gzip.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use ledger_format::file::{self, ExportReader};
use sha2::{Digest as _, Sha256};

use crate::domain::archive::{StoredArchive, StoredFile, file_name};
use crate::domain::export::{ExportError, ExportLine};
use crate::domain::note::PublicKey;
use crate::domain::verify::{Fault, FirstFault, StoredEntry, StoredPayload};

/// Name of the file until its range is recorded. The name is fixed, so that the next run overwrites
/// what a killed process left behind.
const PARTIAL_FILE_NAME: &str = "next.partial";

/// Why an archive file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveFileError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another process is writing to the folder.
    #[error("another process archives into this folder")]
    Busy,
    /// The header of the export is invalid or not signed by a trusted key.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// An entry is invalid.
    #[error("{0}")]
    Invalid(FirstFault),
    /// The file is not the recorded one, or is incomplete.
    #[error("{0}")]
    Other(&'static str),
}

impl From<file::FileError> for ArchiveFileError {
    fn from(error: file::FileError) -> Self {
        match error {
            file::FileError::Read(error) => Self::Io(error),
            file::FileError::Export(error) => Self::Export(error),
            file::FileError::Empty => Self::Other("it is empty"),
            file::FileError::Invalid(bad) => Self::Invalid(bad),
        }
    }
}

/// A completely read archive file that is a valid export of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedArchive {
    /// SHA-256 of the file.
    pub sha256: Vec<u8>,
    /// Length of the file in bytes.
    pub bytes: i64,
}

/// The folder of archives, and the file that is being written in it.
pub struct PartialArchive {
    folder: PathBuf,
    file: File,
}

impl PartialArchive {
    /// Creates the folder and locks it against other processes.
    pub fn lock(folder: &Path) -> Result<Self, ArchiveFileError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(folder.join(PARTIAL_FILE_NAME))?;
        match file.try_lock() {
            Ok(()) => Ok(Self {
                folder: folder.to_owned(),
                file,
            }),
            Err(TryLockError::WouldBlock) => Err(ArchiveFileError::Busy),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join(PARTIAL_FILE_NAME)
    }

    /// Truncates the file and starts to write it.
    pub fn write(&self) -> io::Result<ArchiveWriter> {
        self.clear()?;
        let file = BufWriter::new(self.file.try_clone()?);
        Ok(ArchiveWriter(GzEncoder::new(file, Compression::default())))
    }

    /// Truncates the file to free its disk space.
    pub fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        io::Seek::rewind(&mut &self.file)
    }

    /// Renames the file durably.
    pub fn rename(self, to: &Path) -> io::Result<()> {
        std::fs::rename(self.path(), to)?;
        File::open(&self.folder)?.sync_all()
    }
}

/// Writes the compressed lines.
pub struct ArchiveWriter(GzEncoder<BufWriter<File>>);

impl ArchiveWriter {
    pub fn write(&mut self, text: &[u8]) -> io::Result<()> {
        self.0.write_all(text)
    }

    /// Completes the file and syncs it to disk.
    pub fn finish(self) -> io::Result<()> {
        let file = self.0.finish()?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()
    }
}

/// Counts and hashes the bytes that are read through it.
struct HashingReader<R> {
    inner: R,
    hash: Sha256,
    bytes: i64,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.bytes += read as i64;
        Ok(read)
    }
}

/// Reads a written file back. It must be a complete export of the range, with a checkpoint signed
/// by one of the keys.
pub fn check(
    path: &Path,
    first_seq: i64,
    last_seq: i64,
    keys: &[PublicKey],
    mut seen: impl FnMut(i64),
) -> Result<VerifiedArchive, ArchiveFileError> {
    let hashed = HashingReader {
        inner: File::open(path)?,
        hash: Sha256::new(),
        bytes: 0,
    };
    let mut lines = BufReader::new(MultiGzDecoder::new(BufReader::new(hashed)));
    let options = file::VerifyOptions {
        keys,
        trusted: &[],
        threads: file::available_threads(),
        progress: &mut |_, last, _| seen(last.cast_signed()),
    };
    let export = file::verify_text(&mut lines, options)?;
    if export.first() != first_seq.unsigned_abs() {
        return Err(ArchiveFileError::Other("it starts with another entry"));
    }
    if export.verified.count != last_seq.unsigned_abs() {
        return Err(ArchiveFileError::Other("it ends with another entry"));
    }
    if export.verified.archived > 0 {
        return Err(ArchiveFileError::Other("some entries have no content"));
    }
    let hashed = lines.into_inner().into_inner().into_inner();
    Ok(VerifiedArchive {
        sha256: hashed.hash.finalize().to_vec(),
        bytes: hashed.bytes,
    })
}

/// True if the file exists and has the recorded length and hash.
pub fn is(path: &Path, file: &StoredFile) -> io::Result<bool> {
    match File::open(path) {
        Ok(opened) => matches(&opened, file),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn matches(opened: &File, file: &StoredFile) -> io::Result<bool> {
    let mut hashed = HashingReader {
        inner: opened,
        hash: Sha256::new(),
        bytes: 0,
    };
    io::copy(&mut hashed, &mut io::sink())?;
    Ok(hashed.bytes == file.bytes && hashed.hash.finalize().as_slice() == file.sha256)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Returns where an archive file is until it has its final name.
pub fn partial(path: &Path) -> PathBuf {
    path.with_file_name(PARTIAL_FILE_NAME)
}

/// Reads the payloads of the archive files in a folder, in sequence order.
pub struct ArchivedPayloads {
    folder: PathBuf,
    archives: Vec<StoredArchive>,
    /// Number of the archive read last, and its file if it is in the folder.
    open: Option<(i64, Option<ExportReader>)>,
}

/// Why an archived payload cannot be read.
#[derive(Debug)]
pub enum ArchiveReadError {
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The content differs from what was archived.
    Invalid(FirstFault),
}

impl ArchivedPayloads {
    pub const fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            archives: Vec::new(),
            open: None,
        }
    }

    /// Sets the ranges recorded so far.
    pub fn know(&mut self, archives: Vec<StoredArchive>) {
        self.archives = archives;
    }

    /// Returns the payload of an entry, or `None` if it was erased or its file is not in the folder.
    /// Call it in sequence order.
    pub fn payload(
        &mut self,
        entry: &StoredEntry,
    ) -> Result<Option<StoredPayload>, ArchiveReadError> {
        let seq = entry.seq;
        let range = |a: &&StoredArchive| a.first_seq <= seq && seq <= a.last_seq;
        let Some(archive) = self.archives.iter().find(range) else {
            return Ok(None);
        };
        let Some(file) = &archive.file else {
            return Ok(None);
        };
        let bad = |_| {
            ArchiveReadError::Invalid(FirstFault {
                seq,
                what: Fault::ArchiveUnreadable,
            })
        };
        let other = || bad(io::Error::other("not the line of this entry"));
        let mut line = Vec::new();
        if self
            .open
            .as_ref()
            .is_none_or(|open| open.0 != archive.number)
        {
            let opened = open(&self.folder.join(file_name(&file.path)), file)?;
            let mut lines = opened
                .map(|file| ExportReader::new(BufReader::new(file)))
                .transpose()
                .map_err(bad)?;
            // The header is skipped: the entries are compared with those in the database.
            if let Some(lines) = &mut lines {
                lines.next(&mut line).map_err(bad)?;
            }
            self.open = Some((archive.number, lines));
        }
        let Some((_, Some(lines))) = &mut self.open else {
            return Ok(None);
        };
        let read = loop {
            if !lines.next(&mut line).map_err(bad)? {
                return Err(other());
            }
            let read = ExportLine::read(&line).and_then(ExportLine::stored);
            let read = read.ok_or_else(other)?;
            // Payloads of earlier entries are still in the database.
            if read.seq >= seq {
                break read;
            }
        };
        let same = read.seq == seq
            && read.payload.is_some()
            && (&read.id, &read.leaf, &read.chain) == (&entry.id, &entry.leaf, &entry.chain);
        // Reading to the end of the file also checks the gzip checksum.
        if !same || (seq == archive.last_seq && lines.next(&mut line).map_err(bad)?) {
            return Err(other());
        }
        Ok(read.payload)
    }
}

/// Opens an archive file, `None` if it is absent. It is in the partial file if the retention that
/// wrote it renames it now, or was killed before.
fn open(path: &Path, file: &StoredFile) -> Result<Option<File>, ArchiveReadError> {
    let present = |path: &Path| match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(ArchiveReadError::Unreadable(path.to_owned(), error)),
    };
    if let Some(opened) = present(path)? {
        return Ok(Some(opened));
    }
    let partial = partial(path);
    if let Some(mut opened) = present(&partial)? {
        let unreadable = |error| ArchiveReadError::Unreadable(partial.clone(), error);
        if matches(&opened, file).map_err(unreadable)? {
            io::Seek::rewind(&mut opened).map_err(unreadable)?;
            return Ok(Some(opened));
        }
    }
    // Renamed meanwhile.
    present(path)
}
