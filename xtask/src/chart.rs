//! `deploy/helm/slurm-mesh/files`: copies of the dashboards and of Prometheus' rules. Helm packages no file from outside the chart's folder, and
//! a symbolic link is lost in archives and on some file systems.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const RULES: &str = "deploy/compose/observability";

/// Copies of `dashboards`, which were generated, and of the rules.
pub fn files(
    root: &Path,
    dashboards: &BTreeMap<PathBuf, String>,
) -> Result<BTreeMap<PathBuf, String>> {
    let folder = root.join("deploy/helm/slurm-mesh/files");
    let mut files = BTreeMap::new();
    for (path, text) in dashboards {
        let name = path.file_name().context("a dashboard has a name")?;
        files.insert(folder.join("dashboards").join(name), text.clone());
    }
    for name in ["alerts.yml", "kpis.yml", "slos.yml"] {
        let path = root.join(RULES).join(name);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        files.insert(folder.join("rules").join(name), text);
    }
    Ok(files)
}
