//! The rules and sources of `mesh.toml`. Rules by API are checked against them, and do not replace them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::rule::{self, RuleContext};
use crate::domain::index::Rules;
use crate::domain::rule::{Rule, RuleAuthor, RuleId, RuleOrigin};
use crate::domain::source::Source;

/// The checked rules and sources of `mesh.toml`.
#[derive(Clone, Debug, Default)]
pub struct ConfiguredRules {
    pub(super) cluster: String,
    pub(super) rules: BTreeMap<RuleId, Arc<Rule>>,
    pub(super) sources: Vec<Arc<Source>>,
}

impl ConfiguredRules {
    /// True if `mesh.toml` has a rule of this owner and name.
    pub fn has(&self, id: &RuleId) -> bool {
        self.rules.contains_key(id)
    }

    /// Checks a rule by API.
    ///
    /// # Errors
    /// All faults, each with its key.
    pub fn check(
        &self,
        definition: &Value,
        author: RuleAuthor,
        origin: RuleOrigin,
    ) -> Result<Rule, Vec<String>> {
        let owner = definition["owner"].as_str().unwrap_or_default();
        let sources = self.sources.iter().filter(|source| match author {
            RuleAuthor::Administrator => true,
            RuleAuthor::Owner => source.is_open_to(owner),
        });
        let sources: Vec<&str> = sources.map(|source| source.name.as_str()).collect();
        let context = RuleContext {
            cluster: &self.cluster,
            scripts: None,
            sources: &sources,
            author,
        };
        rule::check(context, definition, origin)
    }

    /// All rules in use: these, and those by API of other names. Of the rest the reasons.
    pub fn with(
        &self,
        by_api: impl IntoIterator<Item = (RuleId, Result<Arc<Rule>, String>)>,
    ) -> Rules {
        let mut rules: Vec<Arc<Rule>> = self.rules.values().cloned().collect();
        let mut unusable = BTreeMap::new();
        for (id, rule) in by_api {
            match rule {
                _ if self.has(&id) => {
                    let reason = "mesh.toml has a rule of this name, which is used instead";
                    unusable.insert(id, reason.to_owned());
                }
                Ok(rule) => rules.push(rule),
                Err(faults) => {
                    unusable.insert(id, faults);
                }
            }
        }
        Rules::new(rules, self.sources.iter().cloned()).with_unusable(unusable)
    }
}
