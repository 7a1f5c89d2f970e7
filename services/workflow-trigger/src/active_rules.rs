//! The rules in use: those of `mesh.toml`, and those by API. A change of either takes effect at once in this process, and within
//! [`POLL_INTERVAL`] in other processes on the same database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mesh_bus::Backoff;
use mesh_runtime::HealthNote;
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::adapters::api_rules::StoredRule;
use crate::adapters::store::Store;
use crate::config::configured_rules::ConfiguredRules;
use crate::domain::index::Rules;
use crate::domain::rule::{Rule, RuleAuthor, RuleId, RuleOrigin};
use crate::error::Error;
use crate::metrics;

/// Interval of looking for rules that another process has changed.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Delay after an error of the database before the first look succeeded.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Unusable rules that a note names.
const MAX_NOTED: usize = 5;

/// The rules in use. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ActiveRules(Arc<Inner>);

struct Inner {
    store: Store,
    /// Whether there are rules by API.
    has_api_rules: bool,
    note: HealthNote,
    state: Mutex<State>,
    rules: watch::Sender<Arc<Rules>>,
}

struct State {
    configured: ConfiguredRules,
    /// Why `mesh.toml` as it is now is not used.
    file_problem: Option<String>,
    by_api: BTreeMap<RuleId, ApiRule>,
}

/// A rule by API, as it was read.
struct ApiRule {
    version: String,
    stored: Result<StoredRule, String>,
    /// The rule, or why it cannot be used.
    rule: Result<Arc<Rule>, String>,
}

impl ApiRule {
    fn new(
        version: String,
        stored: Result<StoredRule, String>,
        configured: &ConfiguredRules,
    ) -> Self {
        Self {
            version,
            rule: checked(&stored, configured),
            stored,
        }
    }
}

fn checked(
    stored: &Result<StoredRule, String>,
    configured: &ConfiguredRules,
) -> Result<Arc<Rule>, String> {
    let stored = stored.as_ref().map_err(Clone::clone)?;
    let rule = configured.check(&stored.definition, stored.author, stored.origin());
    rule.map(Arc::new).map_err(|faults| faults.join("; "))
}

impl ActiveRules {
    /// The rules of `mesh.toml`. Those by API follow with [`Self::load`].
    pub fn new(
        store: &Store,
        has_api_rules: bool,
        note: HealthNote,
        configured: ConfiguredRules,
    ) -> Self {
        let rules = watch::Sender::new(Arc::new(configured.with([])));
        Self(Arc::new(Inner {
            store: store.clone(),
            has_api_rules,
            note,
            state: Mutex::new(State {
                configured,
                file_problem: None,
                by_api: BTreeMap::new(),
            }),
            rules,
        }))
    }

    /// The rules, as they change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Rules>> {
        self.0.rules.subscribe()
    }

    /// Whether there are rules by API.
    pub fn has_api_rules(&self) -> bool {
        self.0.has_api_rules
    }

    /// Takes other rules of `mesh.toml`, or notes why they cannot be used.
    pub async fn configure(&self, read: Result<ConfiguredRules, String>) {
        let mut state = self.0.state.lock().await;
        match read {
            Ok(configured) => {
                for rule in state.by_api.values_mut() {
                    rule.rule = checked(&rule.stored, &configured);
                }
                state.configured = configured;
                state.file_problem = None;
                self.publish(&state);
            }
            Err(problem) => {
                state.file_problem = Some(problem);
                self.note(&state, &self.0.rules.borrow());
            }
        }
    }

    /// Checks a rule by API against `mesh.toml`.
    ///
    /// # Errors
    /// All faults, each with its key.
    pub async fn check(
        &self,
        definition: &Value,
        author: RuleAuthor,
        origin: RuleOrigin,
    ) -> Result<Rule, Vec<String>> {
        let state = self.0.state.lock().await;
        state.configured.check(definition, author, origin)
    }

    /// True if `mesh.toml` has a rule of this owner and name.
    pub async fn is_configured(&self, id: &RuleId) -> bool {
        self.0.state.lock().await.configured.has(id)
    }

    /// Reads the rules by API that have changed.
    ///
    /// # Errors
    /// If the database refuses. The rules stay as they were.
    pub async fn refresh(&self) -> Result<(), Error> {
        if !self.0.has_api_rules {
            return Ok(());
        }
        let mut state = self.0.state.lock().await;
        let versions = self.0.store.rule_versions().await?;
        let is_known = |(id, version): &(&RuleId, &String)| {
            let known = state.by_api.get(id);
            known.is_some_and(|known| known.version == **version)
        };
        let new: Vec<String> = versions
            .iter()
            .filter(|rule| !is_known(rule))
            .map(|(_, version)| version.clone())
            .collect();
        if new.is_empty() && versions.len() == state.by_api.len() {
            return Ok(());
        }
        let read = self.0.store.rules_of_versions(new).await?;
        let State {
            configured, by_api, ..
        } = &mut *state;
        by_api.retain(|id, _| versions.contains_key(id));
        for (id, version, stored) in read {
            by_api.insert(id, ApiRule::new(version, stored, configured));
        }
        self.publish(&state);
        Ok(())
    }

    /// Reads the rules by API for the first time. Retries until shutdown.
    pub async fn load(&self, shutdown: &CancellationToken) {
        let mut interval = Backoff::fixed(RETRY_DELAY);
        while let Err(error) = self.refresh().await {
            let error = mesh_runtime::error_chain(&error);
            tracing::warn!(error, "rules by API not read, retrying");
            if !interval.wait(shutdown).await {
                return;
            }
        }
    }

    /// Follows the rules by API until shutdown.
    pub async fn follow(&self, shutdown: &CancellationToken) {
        if !self.0.has_api_rules {
            return;
        }
        let mut interval = Backoff::fixed(POLL_INTERVAL);
        while interval.wait(shutdown).await {
            if let Err(error) = self.refresh().await {
                let error = mesh_runtime::error_chain(&error);
                tracing::warn!(error, "rules by API not read, the former ones stay in use");
            }
        }
    }

    fn publish(&self, state: &State) {
        let by_api = state.by_api.iter();
        let by_api = by_api.map(|(id, rule)| (id.clone(), rule.rule.clone()));
        let rules = Arc::new(state.configured.with(by_api));
        let unusable = rules.unusable().len();
        let all = rules.all().count();
        metrics::rules(all, unusable);
        tracing::info!(rules = all, unusable, "rules loaded");
        self.note(state, &rules);
        self.0.rules.send_replace(rules);
    }

    fn note(&self, state: &State, rules: &Rules) {
        let file = state.file_problem.as_ref();
        let file = file.map(|problem| format!("{problem}; the former rules stay in use"));
        let unusable = rules.unusable();
        let by_api = unusable
            .iter()
            .take(MAX_NOTED)
            .map(|(id, reason)| format!("rule {id} by API is not used: {reason}"));
        let more = unusable.len().saturating_sub(MAX_NOTED);
        let more = (more > 0).then(|| format!("{more} more rules by API are not used"));
        let notes: Vec<String> = file.into_iter().chain(by_api).chain(more).collect();
        match notes.is_empty() {
            true => self.0.note.clear(),
            false => self.0.note.say(notes.join("; ")),
        }
    }
}
