//! `[[workflow-trigger.rules]]`: from the text to a checked rule.

mod action;
mod selector;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use event_filter::Template;
use serde::Deserialize;
use serde_json::Value;

use crate::domain::action::Action;
use crate::domain::rule::{
    Concurrency, EventSelector, Rule, RuleAuthor, RuleId, RuleLimits, RuleOrigin, RunAs,
};
use selector::OnConfig;

const MAX_RULES: usize = 10_000;
const MAX_EVENT_AGE: Duration = Duration::from_secs(3_600);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleConfig {
    name: String,
    owner: String,
    #[serde(default)]
    description: String,
    #[serde(default = "one")]
    generation: u32,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    allow_self: bool,
    #[serde(default)]
    run_as: RunAs,
    on: OnConfig,
    action: BTreeMap<String, Value>,
    #[serde(default)]
    limits: RuleLimitsConfig,
}

const fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RuleLimitsConfig {
    per_hour: u32,
    running: Option<u32>,
    queue: Option<String>,
    concurrency: Option<Concurrency>,
    #[serde(with = "humantime_serde")]
    max_event_age: Option<Duration>,
    budget: bool,
}

impl Default for RuleLimitsConfig {
    fn default() -> Self {
        Self {
            per_hour: 60,
            running: None,
            queue: None,
            concurrency: None,
            max_event_age: None,
            budget: true,
        }
    }
}

/// What a rule is checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleContext<'a> {
    /// The cluster in which rules act.
    pub cluster: &'a str,
    /// Folder of the scripts. `None`: the rule has the text of its script.
    pub scripts: Option<&'a Path>,
    /// The sources that it may name.
    pub sources: &'a [&'a str],
    /// Who made it.
    pub author: RuleAuthor,
}

/// Checks all rules of `mesh.toml`. Collects every fault.
pub(super) fn all(context: RuleContext<'_>, written: &[Value]) -> Result<Vec<Rule>, Vec<String>> {
    let mut rules: Vec<Rule> = Vec::with_capacity(written.len());
    let mut faults = Vec::new();
    if written.len() > MAX_RULES {
        faults.push(format!("workflow-trigger.rules: at most {MAX_RULES}"));
    }
    let mut ids = BTreeSet::new();
    for (place, value) in written.iter().enumerate() {
        let name = match value.get("name").and_then(Value::as_str) {
            Some(name) => format!("rule {name:?}"),
            None => format!("rule {}", place + 1),
        };
        match check(context, value, RuleOrigin::File) {
            Ok(rule) if !ids.insert(rule.id.clone()) => {
                faults.push(format!(
                    "{name}: name: {:?} has another rule of this name",
                    rule.id.owner
                ));
            }
            Ok(rule) => rules.push(rule),
            Err(problems) => {
                faults.extend(problems.into_iter().map(|fault| format!("{name}: {fault}")));
            }
        }
    }
    match faults.is_empty() {
        true => Ok(rules),
        false => Err(faults),
    }
}

/// Checks a rule. Collects its faults, each with its key.
pub(super) fn check(
    context: RuleContext<'_>,
    value: &Value,
    origin: RuleOrigin,
) -> Result<Rule, Vec<String>> {
    let config: RuleConfig = serde_path_to_error::deserialize(value).map_err(|error| {
        let key = error.path().to_string();
        let fault = error.into_inner().to_string();
        vec![match key.as_str() {
            "." => fault,
            key => format!("{key}: {fault}"),
        }]
    })?;
    let mut check = Check {
        context,
        faults: Vec::new(),
    };
    let cluster = context.cluster;
    let id = RuleId {
        owner: check.word("owner", config.owner),
        name: check.word("name", config.name),
    };
    let is_elsewhere = |name: &String| name != cluster;
    let is_of_others = config.on.clusters.iter().any(is_elsewhere);
    if config.run_as == RunAs::OwnerOfEvent {
        check.as_owner_of_event(&config.on, is_of_others);
    }
    let on = check.selector(config.on, &id);
    let action = check.action(config.action, &id.owner);
    check.limits(&config.limits);
    if let Some(on) = &on {
        check.of_events(on, &config.limits, config.allow_self);
        if let Some((Action::Retry(policy), _)) = &action {
            check.retry_of(policy, on);
        }
        if let Some((Action::Retry(_) | Action::Act(_), _)) = &action
            && is_of_others
        {
            // The same job id is another job here.
            let problem = format!("only {cluster:?}: this rule acts on jobs, which it does here");
            check.fault("on.clusters", problem);
        }
    }
    if let Some((action, approval)) = &action {
        check.concurrency(&config.limits, action, approval.is_some());
    }
    let queue = config.limits.queue.as_deref();
    let queue = queue.and_then(|text| check.template("limits.queue", text));
    match (on, action, check.faults.is_empty()) {
        (Some(on), Some((action, approval)), true) => Ok(Rule {
            id,
            description: config.description,
            generation: config.generation,
            on,
            action,
            approval,
            limits: RuleLimits {
                per_hour: config.limits.per_hour,
                running: config.limits.running,
                queue,
                concurrency: config.limits.concurrency.unwrap_or_default(),
                max_event_age: config.limits.max_event_age.unwrap_or(MAX_EVENT_AGE),
                budget: config.limits.budget,
            },
            dry_run: config.dry_run,
            allow_self: config.allow_self,
            run_as: config.run_as,
            origin,
            definition: Arc::new(without_script(value)),
        }),
        _ => Err(check.faults),
    }
}

fn without_script(value: &Value) -> Value {
    let mut value = value.clone();
    let action = value.get_mut("action").and_then(Value::as_object_mut);
    if let Some(action) = action {
        action.remove("script");
    }
    value
}

/// Collects the faults of one rule.
struct Check<'a> {
    context: RuleContext<'a>,
    faults: Vec<String>,
}

impl Check<'_> {
    fn fault(&mut self, key: &str, problem: impl fmt::Display) {
        self.faults.push(format!("{key}: {problem}"));
    }

    fn word(&mut self, key: &str, text: String) -> String {
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if text.is_empty() || text.len() > 64 || !text.chars().all(is_valid) {
            self.fault(key, "1 to 64 letters, digits, `.`, `_` and `-`");
        }
        text
    }

    fn limits(&mut self, limits: &RuleLimitsConfig) {
        if limits.per_hour == 0 {
            self.fault("limits.per_hour", "at least 1");
        }
        if limits.running == Some(0) {
            self.fault("limits.running", "at least 1");
        }
        if !limits.budget && self.context.author == RuleAuthor::Owner {
            self.fault(
                "limits.budget",
                "only administrators make rules that ignore budgets",
            );
        }
    }

    fn concurrency(&mut self, limits: &RuleLimitsConfig, action: &Action, is_approved: bool) {
        let Some(concurrency) = limits.concurrency else {
            return;
        };
        if limits.queue.is_none() {
            self.fault(
                "limits.concurrency",
                "only with limits.queue, the key of the runs that belong together",
            );
        }
        if concurrency != Concurrency::Replace {
            return;
        }
        if limits.running.is_some() {
            let problem = "not with concurrency = \"replace\", which lets one run at a time";
            self.fault("limits.running", problem);
        }
        if !matches!(action, Action::Submit(_)) {
            let problem = "replace: only with submit, whose job can be cancelled";
            self.fault("limits.concurrency", problem);
        }
        if is_approved {
            let problem =
                "replace: not with action.approve: what is not approved would replace what was";
            self.fault("limits.concurrency", problem);
        }
    }

    /// A rule that acts as others says on whose jobs.
    fn as_owner_of_event(&mut self, on: &OnConfig, is_of_others: bool) {
        if self.context.author == RuleAuthor::Owner {
            self.fault("run_as", "only rules of administrators act as others");
        }
        if on.types.is_empty() || !on.source.is_empty() {
            self.fault("run_as", "only with on.types: it needs the event of a job");
        }
        if on.users.is_empty() {
            self.fault(
                "on.users",
                "name the users as whom the rule may act, or [\"*\"]",
            );
        }
        if on.accounts.is_empty() && on.partitions.is_empty() {
            self.fault(
                "run_as",
                "name on.accounts or on.partitions, in which the rule may act as others",
            );
        }
        if is_of_others {
            let cluster = self.context.cluster;
            let problem =
                format!("only {cluster:?}: a user of another cluster may be another person");
            self.fault("on.clusters", problem);
        }
    }

    /// Refuses what is about events, where a rule has none.
    fn of_events(&mut self, on: &EventSelector, limits: &RuleLimitsConfig, allow_self: bool) {
        let is_of_jobs = matches!(on, EventSelector::Bus { .. });
        if allow_self && !is_of_jobs {
            self.fault("allow_self", "only with on.types");
        }
        let has_age = is_of_jobs || matches!(on, EventSelector::Source(_));
        if limits.max_event_age.is_some() && !has_age {
            self.fault("limits.max_event_age", "only with on.types and on.source");
        }
    }

    fn template(&mut self, key: &str, text: &str) -> Option<Template> {
        Template::new(text)
            .map_err(|error| self.fault(key, error))
            .ok()
    }
}

#[cfg(test)]
mod tests;
