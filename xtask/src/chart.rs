//! `deploy/helm/slurm-mesh/files`: copies of the dashboards, of Prometheus' rules and of the ledger's roles. Helm packages no file from outside the chart's folder, and
//! a symbolic link is lost in archives and on some file systems.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const RULES: &str = "deploy/compose/observability";
const ROLES: &str = "services/ledger/migrations/postgres_roles.sql";

/// Copies of `dashboards`, which were generated, of the rules and of the roles.
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
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    for name in ["alerts.yml", "kpis.yml", "slos.yml"] {
        let text = read(root.join(RULES).join(name))?;
        files.insert(folder.join("rules").join(name), text);
    }
    files.insert(folder.join("ledger-roles.sql"), read(root.join(ROLES))?);
    Ok(files)
}
