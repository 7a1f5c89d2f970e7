//! Generated parts of `docs/`.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Generated files and their content.
pub fn files(_root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    Ok(BTreeMap::new())
}
