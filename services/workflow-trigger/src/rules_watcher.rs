//! Takes the rules of `mesh.toml` again when the file or a script changes. Other keys take effect at a restart.

use mesh_runtime::{BoxError, Context, ReloadTimer, Service as _, WatchedFiles};
use tokio::task::spawn_blocking;

use crate::WorkflowTriggerService;
use crate::active_rules::ActiveRules;
use crate::config::Config;
use crate::config::configured_rules::ConfiguredRules;

/// Follows the rules.
pub(crate) struct RulesWatcher {
    pub context: Context,
    /// `mesh.toml` and the scripts.
    pub files: WatchedFiles,
    pub active: ActiveRules,
}

impl RulesWatcher {
    /// Follows the files until shutdown. Rules that cannot be used change nothing; the log and the notes of `/readyz` say why.
    pub async fn run(mut self) {
        let mut timer = ReloadTimer::new(self.context.shutdown.clone());
        while timer.changed(&mut self.files).await {
            let context = self.context.clone();
            let Ok(read) = spawn_blocking(move || read(&context)).await else {
                continue;
            };
            let read = read.map_err(|error| mesh_runtime::error_chain(error.as_ref()));
            if let Err(error) = &read {
                tracing::warn!(error, "rules not usable, the former ones stay in use");
            }
            self.active.configure(read).await;
        }
    }
}

fn read(context: &Context) -> Result<ConfiguredRules, BoxError> {
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
    use crate::adapters::store::Store;

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
        let store = Store::connect(&read.location).unwrap();
        let note = context.health.note("workflow-trigger.rules");
        let active = ActiveRules::new(&store, false, note, read.rules);
        assert_eq!(active.subscribe().borrow().all().count(), 0);
        // The database may be away for minutes before the rules are followed.
        let text = format!("[mesh]\ncluster = 'c'\n[[workflow-trigger.rules]]\nname = 'r'\n{RULE}");
        std::fs::write(&path, text).unwrap();
        let mut changed = active.subscribe();
        let watcher = RulesWatcher {
            context,
            files: read.files,
            active,
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
