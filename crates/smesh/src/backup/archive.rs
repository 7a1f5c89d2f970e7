//! The tar file: written in one pass, with the manifest last. A file without a manifest is incomplete.

use std::fs::File;
use std::io::{self, Read, Seek as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::manifest::{BackupPart, FILE, FORMAT, Manifest, PartContent};
use crate::error::Error;

/// Kinds of parts: the first component of their paths.
const FOLDERS: [&str; 4] = ["databases", "streams", "configuration", "secrets"];

/// Writes a backup.
pub struct ArchiveWriter<W: Write> {
    tar: tar::Builder<W>,
    target: PathBuf,
    parts: Vec<BackupPart>,
}

impl<W: Write> ArchiveWriter<W> {
    /// Begins a backup. `target` is for error messages.
    pub fn new(writer: W, target: &Path) -> Self {
        Self {
            tar: tar::Builder::new(writer),
            target: target.to_owned(),
            parts: Vec::new(),
        }
    }

    /// Appends a file.
    ///
    /// # Errors
    /// If it cannot be read, or the backup cannot be written.
    pub fn add(
        &mut self,
        path: String,
        content: PartContent,
        file: &mut File,
    ) -> Result<(), Error> {
        let target = self.target.clone();
        let failed = |source| Error::io("write", &target, source);
        file.rewind().map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut hashed = HashingReader::new(file.take(bytes));
        self.append(&path, bytes, &mut hashed).map_err(failed)?;
        self.parts.push(BackupPart {
            path,
            bytes,
            sha256: hashed.digest(),
            content,
        });
        Ok(())
    }

    /// Appends the manifest and returns the writer.
    ///
    /// # Errors
    /// If the backup cannot be written.
    pub fn finish(mut self, manifest: &mut Manifest) -> Result<W, Error> {
        let target = self.target.clone();
        let failed = |source| Error::io("write", &target, source);
        manifest.parts = std::mem::take(&mut self.parts);
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| failed(error.into()))?;
        self.append(FILE, text.len() as u64, text.as_slice())
            .map_err(failed)?;
        let mut writer = self.tar.into_inner().map_err(failed)?;
        writer.flush().map_err(failed)?;
        Ok(writer)
    }

    fn append(&mut self, path: &str, bytes: u64, content: impl Read) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(chrono::Utc::now().timestamp()).unwrap_or_default());
        self.tar.append_data(&mut header, path, content)
    }
}

/// A backup whose parts are extracted to a folder, and match their checksums.
#[derive(Debug)]
pub struct ExtractedBackup {
    /// The manifest.
    pub manifest: Manifest,
    folder: PathBuf,
}

impl ExtractedBackup {
    /// Path of an extracted part.
    pub fn path(&self, part: &BackupPart) -> PathBuf {
        self.folder.join(&part.path)
    }
}

/// Extracts a backup to a folder and compares all checksums.
///
/// # Errors
/// If the backup is incomplete or damaged, is of a newer version, or the folder cannot be written.
pub fn extract(
    file: &Path,
    folder: &Path,
    mut progress: impl FnMut(u64),
) -> Result<ExtractedBackup, Error> {
    let damaged = |what: String| Error::Failed(format!("{} is damaged: {what}", file.display()));
    let reader: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(file).map_err(|source| Error::io("open", file, source))?),
    };
    let mut tar = tar::Archive::new(reader);
    let mut found: Vec<(String, u64, String)> = Vec::new();
    let mut manifest: Option<Manifest> = None;
    let entries = tar.entries().map_err(|error| damaged(error.to_string()))?;
    for entry in entries {
        let mut entry = entry.map_err(|error| damaged(error.to_string()))?;
        let path = entry.path().map_err(|error| damaged(error.to_string()))?;
        let path = path.to_string_lossy().into_owned();
        if path == FILE {
            let mut text = String::new();
            entry
                .read_to_string(&mut text)
                .map_err(|error| damaged(error.to_string()))?;
            manifest = Some(parse(file, &text)?);
            continue;
        }
        if !is_part(&path) {
            return Err(damaged(format!("{path:?} is not a part of a backup")));
        }
        let to = folder.join(&path);
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|source| Error::io("create", parent, source))?;
        }
        let mut out = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&to)
            .map_err(|source| Error::io("create", &to, source))?;
        let mut hashed = HashingReader::new(&mut entry);
        let mut buffer = vec![0; 1 << 20];
        let mut bytes = 0;
        loop {
            let length = hashed
                .read(&mut buffer)
                .map_err(|error| damaged(format!("{path}: {error}")))?;
            if length == 0 {
                break;
            }
            out.write_all(&buffer[..length])
                .map_err(|source| Error::io("write", &to, source))?;
            bytes += length as u64;
            progress(length as u64);
        }
        found.push((path, bytes, hashed.digest()));
    }
    let manifest = manifest.ok_or_else(|| {
        damaged("it has no manifest.json, so it was not written to its end".to_owned())
    })?;
    let expected = manifest.parts.iter();
    let expected: Vec<_> = expected
        .map(|part| (part.path.clone(), part.bytes, part.sha256.clone()))
        .collect();
    for part in &expected {
        match found.iter().find(|(path, ..)| *path == part.0) {
            None => return Err(damaged(format!("{} is missing", part.0))),
            Some(one) if one != part => {
                return Err(damaged(format!("{} has another checksum", part.0)));
            }
            Some(_) => {}
        }
    }
    if let Some((path, ..)) = found.iter().find(|one| !expected.contains(one)) {
        return Err(damaged(format!("{path} is not in its manifest")));
    }
    Ok(ExtractedBackup {
        manifest,
        folder: folder.to_owned(),
    })
}

fn parse(file: &Path, text: &str) -> Result<Manifest, Error> {
    let manifest: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| Error::Failed(format!("{}: manifest.json: {error}", file.display())))?;
    let format = manifest["format"].as_u64().unwrap_or_default();
    if format != u64::from(FORMAT) {
        return Err(Error::Failed(format!(
            "{} has format {format}, this smesh reads format {FORMAT}: use the version that wrote it, {}",
            file.display(),
            manifest["version"].as_str().unwrap_or("unknown")
        )));
    }
    serde_json::from_value(manifest)
        .map_err(|error| Error::Failed(format!("{}: manifest.json: {error}", file.display())))
}

/// True for `<folder>/<name>`. No other path is written.
fn is_part(path: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    path.split_once('/').is_some_and(|(folder, name)| {
        FOLDERS.contains(&folder) && !name.starts_with('.') && name.chars().all(is_plain)
    })
}

/// Computes the SHA-256 of all that is read.
struct HashingReader<R> {
    reader: R,
    hash: Sha256,
}

impl<R: Read> HashingReader<R> {
    fn new(reader: R) -> Self {
        Self {
            reader,
            hash: Sha256::new(),
        }
    }

    fn digest(self) -> String {
        hex::encode(self.hash.finalize())
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.reader.read(buffer)?;
        self.hash.update(&buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leaves_the_folder() {
        assert!(is_part("streams/KV_mesh_ingest.snapshot"));
        for path in [
            "../x",
            "/etc/passwd",
            "streams/../../x",
            "streams/.x",
            "other/x",
            "streams",
            "streams/a/b",
        ] {
            assert!(!is_part(path), "{path}");
        }
    }
}
