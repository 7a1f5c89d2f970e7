//! Whole exports, read to their end: the file of an export, or of an archive, which is an export compressed with gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;

use flate2::bufread::MultiGzDecoder;

use crate::checkpoint::Checkpoint;
use crate::export::{ExportError, ExportLine, ExportVerifier, StartState};
use crate::note::PublicKey;
use crate::parallel::map_in_order;
use crate::verify::{FirstFault, HashedEntry, VerifiedLedger};

/// The longest line of an export: NATS takes no larger message than 64 MiB.
const MAX_LINE_BYTES: u64 = 128 << 20;
/// What is read from a file at once.
const BUFFER_BYTES: usize = 256 << 10;
/// About so many bytes of lines are hashed by one thread at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// ExportReader of an export, compressed or not.
pub struct ExportReader(Box<dyn BufRead + Send>);

impl ExportReader {
    /// Of a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(BufReader::with_capacity(BUFFER_BYTES, File::open(path)?))
    }

    /// Of anything.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn new(mut reader: impl BufRead + Send + 'static) -> io::Result<Self> {
        // As RFC 1952 §2.3.1 says how a gzip file begins.
        let compressed = reader.fill_buf()?.starts_with(&[0x1f, 0x8b]);
        Ok(Self(if compressed {
            Box::new(BufReader::with_capacity(
                BUFFER_BYTES,
                MultiGzDecoder::new(reader),
            ))
        } else {
            Box::new(reader)
        }))
    }

    /// Reads the next line into a buffer. False after the last.
    ///
    /// # Errors
    /// If it cannot be read, or what is compressed is damaged.
    pub fn next(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        line.clear();
        read_line(&mut self.0, line)
    }
}

/// Appends the next line. False after the last.
fn read_line(reader: &mut impl BufRead, text: &mut Vec<u8>) -> io::Result<bool> {
    Ok(reader.take(MAX_LINE_BYTES).read_until(b'\n', text)? > 0)
}

/// An export that was verified to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedExport {
    /// The signed checkpoint that it ends with.
    pub checkpoint: Checkpoint,
    /// What it says of the entries before its first.
    pub start: StartState,
    /// Its entries.
    pub verified: VerifiedLedger,
}

impl VerifiedExport {
    /// Sequence of its first entry.
    pub const fn first(&self) -> u64 {
        self.start.tree.size() + 1
    }
}

/// Why an export is not verified.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read, or what is compressed is damaged.
    #[error("read the export")]
    Read(#[from] io::Error),
    /// Its first line proves nothing.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// It has no line.
    #[error("the export is empty")]
    Empty,
    /// Its entries do not fit.
    #[error("{0}")]
    Invalid(FirstFault),
}

/// How an export is verified.
pub struct VerifyOptions<'a> {
    /// Keys one of which must have signed its checkpoint.
    pub keys: &'a [PublicKey],
    /// Trusted checkpoints to compare with.
    pub trusted: &'a [Checkpoint],
    /// Threads that hash.
    pub threads: usize,
    /// Called with the first and the last verified sequence, and the last of all.
    pub progress: &'a mut dyn FnMut(u64, u64, u64),
}

/// As many threads as there are cores.
pub fn available_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Verifies an export from its first to its last byte.
///
/// # Errors
/// The first fault, or why it cannot be read.
pub fn verify(
    lines: &mut ExportReader,
    options: VerifyOptions<'_>,
) -> Result<VerifiedExport, FileError> {
    verify_text(&mut lines.0, options)
}

/// As [`verify`], of lines that are not compressed.
///
/// # Errors
/// The first fault, or why it cannot be read.
pub fn verify_text(
    reader: &mut (impl BufRead + Send),
    options: VerifyOptions<'_>,
) -> Result<VerifiedExport, FileError> {
    let mut first = Vec::new();
    if !read_line(reader, &mut first)? {
        return Err(FileError::Empty);
    }
    let mut verifier = ExportVerifier::new(&first, options.keys, options.trusted)?;
    let (checkpoint, start) = (verifier.checkpoint().clone(), verifier.start().clone());
    let begin = start.tree.size() + 1;
    let mut end = false;
    let next = || {
        if end {
            return None;
        }
        let chunk = Chunk::read(reader);
        end = !matches!(&chunk, Ok(chunk) if !chunk.ends.is_empty());
        Some(chunk)
    };
    let mut failed = None;
    let take = |hashed: io::Result<Vec<Option<HashedEntry>>>| {
        let taken = hashed.map_err(FileError::Read).and_then(|entries| {
            let mut entries = entries.iter();
            entries.try_for_each(|entry| {
                verifier
                    .next_hashed(entry.as_ref())
                    .map_err(FileError::Invalid)
            })
        });
        match taken {
            Ok(()) => {
                (options.progress)(begin, verifier.last().unsigned_abs(), checkpoint.size);
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    map_in_order(
        options.threads,
        next,
        |chunk: io::Result<Chunk>| chunk.map(|chunk| chunk.hash()),
        take,
    );
    match failed {
        Some(error) => Err(error),
        None => Ok(VerifiedExport {
            verified: verifier.finish().map_err(FileError::Invalid)?,
            checkpoint,
            start,
        }),
    }
}

/// Some lines.
struct Chunk {
    text: Vec<u8>,
    /// Where each line ends.
    ends: Vec<usize>,
}

impl Chunk {
    /// The next lines; none after the last.
    fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        let mut text = Vec::with_capacity(CHUNK_BYTES + (CHUNK_BYTES >> 2));
        let mut ends = Vec::new();
        while text.len() < CHUNK_BYTES && read_line(reader, &mut text)? {
            ends.push(text.len());
        }
        Ok(Self { text, ends })
    }

    fn hash(&self) -> Vec<Option<HashedEntry>> {
        let mut scratch = Vec::new();
        let mut begin = 0;
        let hash = |end: &usize| {
            let line = &self.text[begin..*end];
            begin = *end;
            ExportLine::read(line)?.hashed(&mut scratch)
        };
        self.ends.iter().map(hash).collect()
    }
}
