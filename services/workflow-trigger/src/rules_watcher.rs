//! Takes the rules of `mesh.toml` again when the file or a script changes. Other keys take effect at a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_runtime::{BoxError, Context, ReloadTimer, Service as _};
use secret_file::FileStamp;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::WorkflowTriggerService;
use crate::config::Config;
use crate::domain::index::Rules;

/// Files, each as it was before it was read.
type FileStamps = Vec<(PathBuf, Option<FileStamp>)>;

/// Follows the rules.
pub(crate) struct RulesWatcher {
    pub context: Context,
    /// Folder of the scripts.
    pub scripts: PathBuf,
    pub rules: watch::Sender<Arc<Rules>>,
}

impl RulesWatcher {
    /// Follows the files until shutdown. Rules that cannot be used change nothing; the log and the notes of `/readyz` say why.
    pub async fn run(self) {
        let Some(path) = self.context.config_path().map(Path::to_owned) else {
            return;
        };
        let note = self.context.health.note("workflow-trigger.rules");
        let mut timer = ReloadTimer::new(self.context.shutdown.clone());
        let mut files = stamps(&path, &self.scripts);
        while timer.due().await {
            let found = stamps(&path, &self.scripts);
            if found == files {
                continue;
            }
            files = found;
            let context = self.context.clone();
            let Ok(read) = spawn_blocking(move || read(&context)).await else {
                continue;
            };
            match read {
                Ok(rules) => {
                    note.clear();
                    tracing::info!(rules = rules.all().count(), "rules loaded");
                    self.rules.send_replace(Arc::new(rules));
                }
                Err(error) => {
                    let error = mesh_runtime::error_chain(error.as_ref());
                    tracing::warn!(error, "rules not usable, the former ones stay in use");
                    note.say(format!("{error}; the former rules stay in use"));
                }
            }
        }
    }
}

fn read(context: &Context) -> Result<Rules, BoxError> {
    let context = context.read_again()?;
    let config: Config = context.section(WorkflowTriggerService::NAME)?;
    let rules = config.rules(|path| context.relative(path));
    Ok(rules.map_err(|faults| context.faults(&faults))?)
}

fn stamps(config: &Path, scripts: &Path) -> FileStamps {
    let entries = std::fs::read_dir(scripts).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.push(config.to_owned());
    paths.sort();
    let stamp = |path: PathBuf| (path.clone(), FileStamp::of(&path));
    paths.into_iter().map(stamp).collect()
}
