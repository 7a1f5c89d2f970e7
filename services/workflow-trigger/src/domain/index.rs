//! Rules by the types of events that may fire them, so that an event meets only the rules that can match.

use std::collections::BTreeMap;
use std::sync::Arc;

use event_filter::DecodedEvent;
use mesh_events::EventType;

use super::rule::{EventSelector, Rule, RuleId, fires_rules};
use super::source::Source;

/// The rules in use.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    by_id: BTreeMap<RuleId, Arc<Rule>>,
    by_type: BTreeMap<EventType, Vec<Arc<Rule>>>,
    by_source: BTreeMap<String, Vec<Arc<Rule>>>,
    sources: BTreeMap<String, Arc<Source>>,
    unusable: BTreeMap<RuleId, String>,
}

impl Rules {
    /// An index of rules and sources. Their ids and names are unique.
    pub fn new(
        rules: impl IntoIterator<Item = Arc<Rule>>,
        sources: impl IntoIterator<Item = Arc<Source>>,
    ) -> Self {
        let mut index = Self {
            sources: sources
                .into_iter()
                .map(|source| (source.name.clone(), source))
                .collect(),
            ..Self::default()
        };
        for rule in rules {
            if let EventSelector::Bus { filter, .. } = &rule.on {
                for kind in EventType::ALL
                    .iter()
                    .filter(|kind| fires_rules(**kind) && filter.selects(**kind))
                {
                    index
                        .by_type
                        .entry(*kind)
                        .or_default()
                        .push(Arc::clone(&rule));
                }
            }
            if let EventSelector::Source(selector) = &rule.on {
                let source = selector.source.clone();
                let of_source = index.by_source.entry(source).or_default();
                of_source.push(Arc::clone(&rule));
            }
            index.by_id.insert(rule.id.clone(), rule);
        }
        index
    }

    /// The same rules, beside those by API that cannot be used, with the reasons.
    #[must_use]
    pub fn with_unusable(self, unusable: BTreeMap<RuleId, String>) -> Self {
        Self { unusable, ..self }
    }

    /// The rules by API that cannot be used, with the reasons.
    pub const fn unusable(&self) -> &BTreeMap<RuleId, String> {
        &self.unusable
    }

    /// The rules that an event fires, before any guard.
    pub fn matching<'a>(
        &'a self,
        kind: EventType,
        event: &'a DecodedEvent,
    ) -> impl Iterator<Item = &'a Arc<Rule>> {
        let candidates = self.by_type.get(&kind).into_iter().flatten();
        candidates.filter(move |rule| rule.matches(kind, event))
    }

    /// The rules on events of a source.
    pub fn of_source(&self, source: &str) -> impl Iterator<Item = &Arc<Rule>> {
        self.by_source.get(source).into_iter().flatten()
    }

    /// A source by its name.
    pub fn source(&self, name: &str) -> Option<&Arc<Source>> {
        self.sources.get(name)
    }

    /// A rule by owner and name.
    pub fn get(&self, owner: &str, name: &str) -> Option<&Arc<Rule>> {
        self.by_id.get(&RuleId {
            owner: owner.to_owned(),
            name: name.to_owned(),
        })
    }

    /// All rules, by owner and name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.by_id.values()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}
