//! Reads and verifies whole exports and archives. An archive is an export compressed with gzip.

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

/// Maximum length of a line. NATS accepts messages of at most 64 MiB.
const MAX_LINE_BYTES: u64 = 128 << 20;
/// Size of the read buffer of a file.
const BUFFER_BYTES: usize = 256 << 10;
/// Approximate size of the chunk of lines that one thread hashes at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Reads the lines of an export, compressed or not.
pub struct ExportReader(Box<dyn BufRead + Send>);

impl ExportReader {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(BufReader::with_capacity(BUFFER_BYTES, File::open(path)?))
    }

    /// Wraps any reader, and detects gzip from the first bytes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn new(mut reader: impl BufRead + Send + 'static) -> io::Result<Self> {
        // The magic number of gzip, RFC 1952 §2.3.1.
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

    /// Reads the next line into a buffer. Returns false at the end of the file.
    ///
    /// # Errors
    /// If it cannot be read, or the compressed data is damaged.
    pub fn next(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        line.clear();
        read_line(&mut self.0, line)
    }
}

/// Appends the next line. Returns false at the end of the file.
fn read_line(reader: &mut impl BufRead, text: &mut Vec<u8>) -> io::Result<bool> {
    Ok(reader.take(MAX_LINE_BYTES).read_until(b'\n', text)? > 0)
}

/// A completely verified export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedExport {
    /// The signed checkpoint at its end.
    pub checkpoint: Checkpoint,
    /// State before its first entry.
    pub start: StartState,
    /// Result of the verification of its entries.
    pub verified: VerifiedLedger,
}

impl VerifiedExport {
    /// Returns the sequence of its first entry.
    pub const fn first(&self) -> u64 {
        self.start.tree.size() + 1
    }
}

/// Why the verification of an export failed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read, or the compressed data is damaged.
    #[error("read the export")]
    Read(#[from] io::Error),
    /// The header is invalid or not signed by a trusted key.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The file has no lines.
    #[error("the export is empty")]
    Empty,
    /// An entry is invalid.
    #[error("{0}")]
    Invalid(FirstFault),
}

/// Options of [`verify`].
pub struct VerifyOptions<'a> {
    /// Trusted keys: one of them must have signed the checkpoint of the export.
    pub keys: &'a [PublicKey],
    /// Trusted checkpoints to compare with.
    pub trusted: &'a [Checkpoint],
    /// Number of threads that hash entries.
    pub threads: usize,
    /// Called with the first verified sequence, the last verified sequence and the last of the
    /// export.
    pub progress: &'a mut dyn FnMut(u64, u64, u64),
}

/// Returns the number of CPU cores available to the process.
pub fn available_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Verifies a complete export.
///
/// # Errors
/// The first fault, or why the export cannot be read.
pub fn verify(
    lines: &mut ExportReader,
    options: VerifyOptions<'_>,
) -> Result<VerifiedExport, FileError> {
    verify_text(&mut lines.0, options)
}

/// Same as [`verify`], for uncompressed lines.
///
/// # Errors
/// The first fault, or why the export cannot be read.
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

/// A chunk of whole lines.
struct Chunk {
    text: Vec<u8>,
    /// End offset of each line.
    ends: Vec<usize>,
}

impl Chunk {
    /// Reads the next lines. The chunk is empty at the end of the file.
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
