//! Replays the seeds and former findings of the fuzz targets through the same entry points: cheap enough for every test run.

use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn every_capture_and_every_seed_goes_through_every_parser_of_answers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in ["tests/data", "tests/captures", "../../fuzz/seeds"] {
        files(&root.join(folder), &mut found);
    }
    assert!(found.len() > 50, "{} files", found.len());
    for path in found {
        let text = fs::read(&path).unwrap();
        slurm_client::fuzzing::text(&String::from_utf8_lossy(&text));
        slurm_client::fuzzing::document(&text);
    }
}
