//! Takes the rules of `mesh.toml` again when the file or a script changes. Other keys take effect at a restart.

use std::sync::Arc;

use mesh_runtime::{BoxError, Context, ReloadTimer, Service as _, WatchedFiles};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::WorkflowTriggerService;
use crate::config::Config;
use crate::domain::index::Rules;

/// Follows the rules.
pub(crate) struct RulesWatcher {
    pub context: Context,
    /// `mesh.toml` and the scripts.
    pub files: WatchedFiles,
    pub rules: watch::Sender<Arc<Rules>>,
}

impl RulesWatcher {
    /// Follows the files until shutdown. Rules that cannot be used change nothing; the log and the notes of `/readyz` say why.
    pub async fn run(mut self) {
        let note = self.context.health.note("workflow-trigger.rules");
        let mut timer = ReloadTimer::new(self.context.shutdown.clone());
        while timer.changed(&mut self.files).await {
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
    let rules = config.rules(&context.mesh.cluster, |path| context.relative(path));
    Ok(rules.map_err(|faults| context.faults(&faults))?)
}

#[cfg(test)]
mod tests {
    use mesh_runtime::{ConfigFile, ServiceSection};
    use tokio_util::sync::CancellationToken;

    use super::*;

    const RULE: &str = "owner = 'alice'\non = { manual = true }\naction = { publish = 'a.b' }\n";

    #[tokio::test]
    async fn rules_that_change_while_the_service_starts_are_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mesh.toml");
        std::fs::write(&path, "[mesh]\ncluster = 'c'\n").unwrap();
        let services = [ServiceSection::of::<WorkflowTriggerService>()];
        let config = ConfigFile::load(&services, Some(&path)).unwrap();
        let shutdown = CancellationToken::new();
        let context = Context::new(config, shutdown.clone()).unwrap();
        let read = crate::configuration(&context).unwrap();
        assert_eq!(read.rules.all().count(), 0);
        // The database may be away for minutes before the rules are followed.
        let text = format!("[mesh]\ncluster = 'c'\n[[workflow-trigger.rules]]\nname = 'r'\n{RULE}");
        std::fs::write(&path, text).unwrap();
        let rules = watch::Sender::new(Arc::new(read.rules));
        let mut changed = rules.subscribe();
        let watcher = RulesWatcher {
            context,
            files: read.files,
            rules,
        };
        let running = tokio::spawn(watcher.run());
        let deadline = std::time::Duration::from_secs(30);
        let waited = tokio::time::timeout(deadline, changed.changed()).await;
        waited.expect("changed rules are used").unwrap();
        assert_eq!(changed.borrow().all().count(), 1);
        shutdown.cancel();
        running.await.unwrap();
    }
}
