//! Storage for output that is too long for memory: short output stays in memory, longer output goes to an unnamed temporary file.
//!
//! 100,000 jobs are 110 MB of `scontrol show jobs`, none of which can be used before the last line is read. The system can reclaim a file's
//! pages. If no file can be written, the output stays in memory: results are the same on a full disk, at the cost of memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::spawn_blocking;

/// Output up to this size stays in memory. Not larger: after freeing a large block, malloc takes the next one from its heap and does not
/// return it.
const IN_MEMORY: usize = 1 << 20;
/// Size of a write.
const AT_ONCE: usize = 256 << 10;
/// Longer than any line of Slurm.
const MAX_LINE_BYTES: usize = 4 << 20;

/// Bytes in a file and in memory.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    /// The bytes before `rest`.
    file: Option<File>,
    in_file: usize,
    rest: Vec<u8>,
    /// Set after a failed write: everything stays in memory from then on.
    memory_only: bool,
}

impl Spill {
    /// Total length in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.in_file + self.rest.len()
    }

    /// Appends bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let chunk = if self.file.is_some() {
            AT_ONCE
        } else {
            IN_MEMORY
        };
        if self.rest.len() < chunk || self.memory_only {
            return;
        }
        if let Err(error) = self.write() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                folder = %std::env::temp_dir().display(),
                "spill to disk failed, answer held in memory"
            );
            self.memory_only = true;
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => tempfile::tempfile()?,
        };
        if let Err(error) = file.write_all_at(&self.rest, self.in_file as u64) {
            // Earlier writes can still be read.
            let mut all = vec![0; self.in_file];
            file.read_exact_at(&mut all, 0)?;
            all.append(&mut self.rest);
            (self.rest, self.in_file) = (all, 0);
            return Err(error);
        }
        self.in_file += self.rest.len();
        self.rest.clear();
        self.rest.shrink_to(AT_ONCE);
        self.file = Some(file);
        Ok(())
    }

    /// Reads up to `len` bytes at an offset.
    pub(crate) fn read(&self, from: usize, len: usize) -> io::Result<Vec<u8>> {
        let to = from.saturating_add(len).min(self.len());
        let mut bytes = vec![0; to.saturating_sub(from)];
        let (before, after) = bytes.split_at_mut(self.in_file.min(to).saturating_sub(from));
        if let (Some(file), false) = (&self.file, before.is_empty()) {
            file.read_exact_at(before, from as u64)?;
        }
        let begin = from.saturating_sub(self.in_file).min(self.rest.len());
        after.copy_from_slice(&self.rest[begin..begin + after.len()]);
        Ok(bytes)
    }
}

/// Spilled text. Invalid UTF-8 has become replacement characters: job names may hold any byte.
#[derive(Debug, Default)]
pub(crate) struct Text(Spill);

impl Text {
    /// Reads a stream to its end, but stores no more than `limit` bytes and a line.
    pub(crate) async fn of(mut stream: impl AsyncRead + Unpin, limit: usize) -> io::Result<Self> {
        let (mut spill, mut buffer) = (Spill::default(), Vec::new());
        loop {
            buffer.reserve(AT_ONCE / 16);
            let read = stream.read_buf(&mut buffer).await?;
            if spill.len() > limit {
                // Read on, so that the child does not hang on a full pipe until its deadline.
                buffer.clear();
            }
            let line_end = buffer.iter().rposition(|byte| *byte == b'\n');
            let whole = match line_end {
                _ if read == 0 => buffer.len(),
                Some(at) if buffer.len() >= AT_ONCE / 4 => at + 1,
                _ if buffer.len() > MAX_LINE_BYTES => buffer.len(),
                _ => continue,
            };
            let rest = buffer.split_off(whole);
            let lines = std::mem::replace(&mut buffer, rest);
            // The disk may be slow.
            spill = spawn_blocking(move || {
                spill.push(String::from_utf8_lossy(&lines).as_bytes());
                spill
            })
            .await
            .map_err(io::Error::other)?;
            if read == 0 {
                return Ok(Self(spill));
            }
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The whole text, which must be short.
    pub(crate) fn into_string(self) -> io::Result<String> {
        let bytes = match self.0.file {
            None => self.0.rest,
            Some(_) => self.0.read(0, self.len())?,
        };
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// True if its last line ends with a newline.
    pub(crate) fn is_whole(&self) -> io::Result<bool> {
        let last = self.0.read(self.len().saturating_sub(1), 1)?;
        Ok(last.last().is_none_or(|last| *last == b'\n'))
    }

    /// A part of the text, which ends at a character boundary.
    pub(crate) fn window(&self, from: usize, len: usize) -> io::Result<String> {
        let bytes = self.0.read(from, len)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| {
            let valid = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(valid);
            String::from_utf8(bytes).unwrap_or_default()
        }))
    }

    /// Calls a function for the whole text, a block of whole lines at a time.
    pub(crate) fn each_block(&self, mut act: impl FnMut(&str)) -> io::Result<()> {
        let (mut from, mut len) = (0, AT_ONCE);
        while from < self.len() {
            let block = self.window(from, len)?;
            let is_last = from + block.len() == self.len();
            let end = match block.rfind('\n') {
                _ if is_last => block.len(),
                Some(at) => at + 1,
                None => {
                    len *= 2;
                    continue;
                }
            };
            act(&block[..end]);
            (from, len) = (from + end, AT_ONCE);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn from_text(text: &str) -> Self {
        let mut spill = Spill::default();
        spill.push(text.as_bytes());
        Self(spill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_doorbells_are_retried_wherever_they_are() {
        let mut spill = Spill::default();
        let bytes: Vec<u8> = (0..9_000_000_u32).map(|n| (n % 251) as u8).collect();
        for some in bytes.chunks(100_000) {
            spill.push(some);
        }
        assert!(spill.file.is_some() && spill.rest.len() < AT_ONCE);
        assert_eq!(spill.len(), bytes.len());
        for (from, len) in [
            (0, 10),
            (spill.in_file - 5, 10),
            (spill.in_file, 10),
            (bytes.len() - 3, 10),
            (bytes.len(), 10),
            (0, bytes.len()),
        ] {
            let to = (from + len).min(bytes.len());
            assert_eq!(spill.read(from, len).unwrap(), &bytes[from..to], "{from}");
        }
    }

    #[tokio::test]
    async fn lines_stay_whole_and_odd_bytes_are_replaced() {
        let text = "a\u{e4}\u{2028}\n".repeat(400_000);
        let mut bytes = text.clone().into_bytes();
        bytes.extend_from_slice(b"\xff\xfe\nend");
        let stored = Text::of(&bytes[..], usize::MAX).await.unwrap();
        assert!(!stored.is_whole().unwrap());
        let mut blocks = Vec::new();
        stored
            .each_block(|block| blocks.push(block.to_owned()))
            .unwrap();
        assert!(blocks.len() > 1);
        assert!(blocks[0].ends_with('\n'));
        assert_eq!(blocks.concat(), format!("{text}\u{fffd}\u{fffd}\nend"));
        assert_eq!(stored.into_string().unwrap(), blocks.concat());
    }

    #[tokio::test]
    async fn a_flood_of_output_is_not_stored() {
        let flood = tokio::io::repeat(b'x').take(40 << 20);
        let stored = Text::of(flood, 5 << 20).await.unwrap();
        assert!(
            (5 << 20..12 << 20).contains(&stored.len()),
            "{}",
            stored.len()
        );
    }
}
