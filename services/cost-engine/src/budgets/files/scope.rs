//! Reads the scope of one budget.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use super::keys::Keys;
use crate::budgets::ScopeKey;

impl Keys<'_, '_> {
    pub fn scope(&mut self) -> Option<BTreeMap<ScopeKey, BTreeSet<String>>> {
        let value = self.take("scope")?;
        let place = value.span();
        let Value::Table(table) = value.into_inner() else {
            self.add_at(
                place,
                "scope",
                "is not a table such as { account = \"nlp\" }",
            );
            return None;
        };
        let (mut scope, mut is_subtree) = (BTreeMap::new(), false);
        for (name, value) in table {
            let key = format!("scope.{name}");
            if name == "subtree" {
                match value.as_bool() {
                    Some(flag) => is_subtree = flag,
                    None => self.add_at(place.clone(), &key, "is not true or false"),
                }
                continue;
            }
            let Some(scope_key) = ScopeKey::ALL.into_iter().find(|key| key.as_str() == name) else {
                let known = ScopeKey::ALL.map(ScopeKey::as_str).join(", ");
                self.add_at(
                    place.clone(),
                    &key,
                    format!("is not one of {known}, subtree"),
                );
                continue;
            };
            let problem = match names(&value) {
                None => Some("is not a name or an array of names"),
                Some(tags)
                    if scope_key == ScopeKey::Tag && !tags.iter().all(|tag| tag.contains('=')) =>
                {
                    Some("is not a tag such as \"project=atlas\"")
                }
                Some(names) => {
                    scope.insert(scope_key, names);
                    None
                }
            };
            if let Some(problem) = problem {
                self.add_at(place.clone(), &key, problem);
            }
        }
        if is_subtree {
            match scope.remove(&ScopeKey::Account) {
                Some(accounts) => {
                    scope.insert(ScopeKey::Subtree, accounts);
                }
                None if self.has_fault("scope.account") => {}
                None => {
                    let problem = "has no `account` beside it";
                    self.add_at(place.clone(), "scope.subtree", problem);
                }
            }
        }
        if scope.is_empty() && !self.has_scope_fault() {
            let problem = "is empty: name a cluster to cover all of its costs";
            self.add_at(place.clone(), "scope", problem);
        }
        // The same name can be another person on another cluster.
        let clusters = scope.get(&ScopeKey::Cluster).map_or(0, BTreeSet::len);
        if scope.contains_key(&ScopeKey::User) && clusters != 1 {
            let beside = match clusters {
                0 => "has no `cluster` beside it",
                _ => "has several clusters beside it",
            };
            let problem = format!(
                "{beside}: a Unix user is one person on one cluster only; for a person on all clusters name an `identity`"
            );
            self.add_at(place, "scope.user", problem);
        }
        Some(scope)
    }

    fn has_scope_fault(&self) -> bool {
        let prefix = self.key("scope.");
        let mut found = self.faults.found[self.first_fault..].iter();
        found.any(|fault| fault.key.starts_with(&prefix))
    }
}

fn names(value: &Value) -> Option<BTreeSet<String>> {
    let names: Vec<&str> = match value {
        Value::String(name) => vec![name],
        Value::Array(values) => values.iter().map(Value::as_str).collect::<Option<_>>()?,
        _ => return None,
    };
    let is_valid = !names.is_empty() && names.iter().all(|name| !name.is_empty());
    is_valid.then(|| names.into_iter().map(str::to_owned).collect())
}
