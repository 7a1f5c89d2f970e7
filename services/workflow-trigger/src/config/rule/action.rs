//! `[action]` of a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use event_filter::Template;
use mesh_events::EventType;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde_json::Value;
use slurm_submit::JobFields;
use slurm_types::parse_mem_mib;

use super::Check;
use crate::domain::action::{Action, JobAct, JobVerb, NotifyAction, PublishAction, SubmitAction};
use crate::domain::approval::Approval;
use crate::domain::message::named;
use crate::domain::retry::RetryPolicy;
use crate::domain::rule::EventSelector;

/// Slurm's own limit for scripts is 4 MiB.
const MAX_SCRIPT_BYTES: u64 = 1024 * 1024;
/// Of a script in the rule itself, which is stored and read with it.
const MAX_INLINE_SCRIPT_BYTES: usize = 64 * 1024;
const NO_INTERPRETER: &str = "no `#!` in its first line: Slurm would run it without an interpreter";
const MIN_APPROVAL: Duration = Duration::from_secs(1);
/// Within the retention of runs.
const MAX_APPROVAL: Duration = Duration::from_secs(7 * 86_400);
const ENVIRONMENT_PREFIX: &str = "MESH_EVENT_";
/// Fields that `update` changes.
const CHANGEABLE: [&str; 5] = ["time", "memory", "nodes", "partition", "exclude"];

/// Text, or a number that is written without quotes.
#[derive(Debug)]
struct Text(String);

/// What the keys of an action besides the fields of a job say.
#[derive(Debug, Default)]
struct ActionConfig {
    submit: Option<String>,
    script: Option<String>,
    publish: Option<String>,
    notify: Option<Text>,
    approve: Option<ApproveConfig>,
    data: BTreeMap<String, Text>,
    act: Vec<(JobVerb, String)>,
    retry: Option<RetryConfig>,
    signal_name: String,
    batch_only: bool,
    args: Vec<Text>,
    environment: BTreeMap<String, Text>,
    fields: BTreeMap<String, Template>,
    /// All keys.
    written: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ApproveConfig {
    by: BTreeSet<String>,
    #[serde(with = "humantime_serde")]
    within: Duration,
    not_requester: bool,
}

impl Default for ApproveConfig {
    fn default() -> Self {
        Self {
            by: BTreeSet::new(),
            within: Duration::from_secs(86_400),
            not_requester: false,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryConfig {
    memory: Option<String>,
    memory_max: Option<String>,
    time: Option<String>,
    time_max: Option<String>,
    partition: Option<String>,
    #[serde(default)]
    exit_codes: Vec<u32>,
    #[serde(default = "three")]
    attempts: u32,
}

const fn three() -> u32 {
    3
}

impl Check<'_> {
    pub(super) fn action(
        &mut self,
        written: BTreeMap<String, Value>,
        owner: &str,
    ) -> Option<(Action, Option<Approval>)> {
        let mut config = ActionConfig::default();
        for (key, value) in written {
            let path = format!("action.{key}");
            if let Err(fault) = self.action_key(&mut config, &key, &path, value) {
                self.fault(&path, fault);
            }
            config.written.push(key);
        }
        let approval = config.approve.take();
        let approval = approval.map(|approve| self.approval(approve, owner));
        let action = self.verb(config)?;
        Some((action, approval))
    }

    /// The one thing that the action does.
    fn verb(&mut self, mut config: ActionConfig) -> Option<Action> {
        let verbs = config.act.len()
            + usize::from(config.submit.is_some())
            + usize::from(config.publish.is_some())
            + usize::from(config.notify.is_some())
            + usize::from(config.retry.is_some());
        if verbs != 1 {
            self.fault(
                "action",
                "exactly one of submit, requeue, hold, release, cancel, signal, update, publish, notify, retry",
            );
            return None;
        }
        if let Some(script) = config.submit.take() {
            let keys = [&["script", "args", "environment"][..], &JobFields::NAMES].concat();
            self.only(&config.written, "submit", &keys);
            return self.submit(&script, config);
        }
        if let Some(retry) = config.retry.take() {
            self.only(&config.written, "retry", &[]);
            return self.retry(retry).map(Action::Retry);
        }
        if let Some(event_type) = config.publish.take() {
            self.only(&config.written, "publish", &["data"]);
            return self.publish(event_type, config.data).map(Action::Publish);
        }
        if let Some(Text(text)) = config.notify.take() {
            self.only(&config.written, "notify", &["data"]);
            let data = self.data(config.data);
            let text = self.template("action.notify", &text)?;
            return Some(Action::Notify(NotifyAction { text, data: data? }));
        }
        let (verb, job) = config.act.pop()?;
        self.act(verb, &job, config)
    }

    /// Refuses each key that an action does not use.
    fn only(&mut self, written: &[String], verb: &str, used: &[&str]) {
        let is_used = |key: &str| [verb, "approve"].contains(&key) || used.contains(&key);
        for key in written.iter().filter(|key| !is_used(key)) {
            let used = match (verb, used) {
                (_, []) => "no further key but approve".to_owned(),
                ("submit", _) => "script, args, environment, fields of a job, approve".to_owned(),
                (_, used) => format!("{}, approve", used.join(", ")),
            };
            let problem = format!("not with {verb}, which uses {used}");
            self.fault(&format!("action.{key}"), problem);
        }
    }

    fn action_key(
        &mut self,
        config: &mut ActionConfig,
        key: &str,
        path: &str,
        value: Value,
    ) -> Result<(), String> {
        if let Some(verb) = JobVerb::ALL.into_iter().find(|verb| verb.as_str() == key) {
            config.act.push((verb, read::<Text>(value)?.0));
            return Ok(());
        }
        match key {
            "submit" => config.submit = Some(read(value)?),
            "script" => config.script = Some(read(value)?),
            "publish" => config.publish = Some(read(value)?),
            "notify" => config.notify = Some(read(value)?),
            "approve" => config.approve = Some(read(value)?),
            "data" => config.data = read(value)?,
            "retry" => config.retry = Some(read(value)?),
            "signal_name" => config.signal_name = read(value)?,
            "batch_only" => config.batch_only = read(value)?,
            "args" => config.args = read(value)?,
            "environment" => config.environment = read(value)?,
            field if JobFields::NAMES.contains(&field) => {
                let Text(text) = read(value)?;
                // One without expressions is checked now.
                if !text.contains("{{")
                    && let Err(error) = JobFields::default().set(field, &text)
                {
                    return Err(error.problem);
                }
                if let Some(template) = self.template(path, &text) {
                    config.fields.insert(field.to_owned(), template);
                }
            }
            _ => {
                return Err(format!(
                    "unknown key; there are submit, requeue, hold, release, cancel, signal, update, publish, notify, data, retry, approve, signal_name, batch_only, script, args, environment, {}",
                    JobFields::NAMES.join(", ")
                ));
            }
        }
        Ok(())
    }

    fn submit(&mut self, name: &str, config: ActionConfig) -> Option<Action> {
        let mut args = Vec::new();
        for (place, Text(text)) in config.args.iter().enumerate() {
            args.extend(self.template(&format!("action.args[{place}]"), text));
        }
        let mut environment = BTreeMap::new();
        for (name, Text(text)) in config.environment {
            let key = format!("action.environment.{name}");
            let is_word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if !name.starts_with(ENVIRONMENT_PREFIX) || !name.chars().all(is_word) {
                self.fault(
                    &key,
                    format!("capitals, digits and _, beginning with {ENVIRONMENT_PREFIX}"),
                );
            }
            if let Some(template) = self.template(&key, &text) {
                environment.insert(name, template);
            }
        }
        let script = match self.script(name, config.script) {
            Ok(text) => text,
            Err((key, problem)) => {
                self.fault(key, problem);
                return None;
            }
        };
        Some(Action::Submit(SubmitAction {
            script: script.into(),
            args,
            environment,
            fields: config.fields,
        }))
    }

    /// The text of a script, or the key that is wrong.
    fn script(&self, name: &str, inline: Option<String>) -> Result<String, (&'static str, String)> {
        if !is_script_name(name) {
            let problem = match self.context.scripts {
                Some(_) => "the name of a file in the folder workflow-trigger.scripts",
                None => "the name of the script, without `..` and without a leading slash",
            };
            return Err(("action.submit", problem.to_owned()));
        }
        match (inline, self.context.scripts) {
            (Some(text), _) => inline_script(text).map_err(|problem| ("action.script", problem)),
            (None, Some(folder)) => {
                read_script(folder, name).map_err(|problem| ("action.submit", problem))
            }
            (None, None) => Err((
                "action.script",
                "missing: a rule by API has the text of its script".to_owned(),
            )),
        }
    }

    fn publish(
        &mut self,
        event_type: String,
        data: BTreeMap<String, Text>,
    ) -> Option<PublishAction> {
        if let Err(problem) = named("type", &event_type) {
            self.fault("action.publish", problem);
        }
        Some(PublishAction {
            event_type,
            data: self.data(data)?,
        })
    }

    fn data(&mut self, data: BTreeMap<String, Text>) -> Option<BTreeMap<String, Template>> {
        let mut templates = BTreeMap::new();
        for (name, Text(text)) in data {
            let template = self.template(&format!("action.data.{name}"), &text)?;
            templates.insert(name, template);
        }
        Some(templates)
    }

    fn approval(&mut self, config: ApproveConfig, owner: &str) -> Approval {
        let ApproveConfig {
            mut by,
            within,
            not_requester,
        } = config;
        for user in &by {
            self.word("action.approve.by", user.clone());
        }
        if !(MIN_APPROVAL..=MAX_APPROVAL).contains(&within) {
            self.fault("action.approve.within", "from 1s to 7d");
        }
        if by.is_empty() {
            by.insert(owner.to_owned());
        }
        Approval {
            by,
            within,
            not_requester,
        }
    }

    fn act(&mut self, verb: JobVerb, job: &str, config: ActionConfig) -> Option<Action> {
        let used: &[&str] = match verb {
            JobVerb::Update => &CHANGEABLE,
            JobVerb::Signal => &["signal_name", "batch_only"],
            JobVerb::Requeue | JobVerb::Hold | JobVerb::Release | JobVerb::Cancel => &[],
        };
        self.only(&config.written, verb.as_str(), used);
        if verb == JobVerb::Update && config.fields.is_empty() {
            self.fault("action.update", "nothing to change");
        }
        let is_signal = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
        let signal = config.signal_name;
        let is_valid = (1..=10).contains(&signal.len()) && signal.chars().all(is_signal);
        if verb == JobVerb::Signal && !is_valid {
            self.fault("action.signal_name", "a signal such as USR1");
        }
        let job = self.template(&format!("action.{}", verb.as_str()), job)?;
        Some(Action::Act(JobAct {
            verb,
            job,
            signal,
            is_batch_only: config.batch_only,
            changes: config.fields,
        }))
    }

    fn retry(&mut self, config: RetryConfig) -> Option<RetryPolicy> {
        for (key, is_unused, needed) in [
            (
                "memory_max",
                config.memory_max.is_some() && config.memory.is_none(),
                "memory",
            ),
            (
                "time_max",
                config.time_max.is_some() && config.time.is_none(),
                "time",
            ),
        ] {
            if is_unused {
                self.fault(
                    &format!("action.retry.{key}"),
                    format!("only with {needed}"),
                );
            }
        }
        let memory_factor = self.factor("action.retry.memory", config.memory.as_deref());
        let time_factor = self.factor("action.retry.time", config.time.as_deref());
        let memory_max_mib = config.memory_max.and_then(|text| {
            let mib = parse_mem_mib(&text).filter(|mib| *mib > 0);
            if mib.is_none() {
                self.fault("action.retry.memory_max", "a size such as 256G");
            }
            mib
        });
        let time_max_minutes = config.time_max.and_then(|text| {
            let mut fields = JobFields::default();
            if let Err(error) = fields.set("time", &text) {
                self.fault("action.retry.time_max", error.problem);
            }
            fields.time
        });
        if let Some(partition) = &config.partition
            && let Err(error) = JobFields::default().set("partition", partition)
        {
            self.fault("action.retry.partition", error.problem);
        }
        if !(1..=10).contains(&config.attempts) {
            self.fault("action.retry.attempts", "from 1 to 10");
        }
        Some(RetryPolicy {
            memory_factor,
            memory_max_mib,
            time_factor,
            time_max_minutes,
            partition: config.partition,
            exit_codes: config.exit_codes,
            attempts: config.attempts,
        })
    }

    /// Refuses what a retry does not use, by the events that fire the rule.
    pub(super) fn retry_of(&mut self, policy: &RetryPolicy, on: &EventSelector) {
        let EventSelector::Bus { filter, .. } = on else {
            return self.fault(
                "action.retry",
                "only with on.types: it needs the event of a job",
            );
        };
        for (key, is_set, kind) in [
            (
                "memory",
                policy.memory_factor.is_some(),
                EventType::JobOutOfMemory,
            ),
            ("time", policy.time_factor.is_some(), EventType::JobTimeout),
            (
                "exit_codes",
                !policy.exit_codes.is_empty(),
                EventType::JobFailed,
            ),
        ] {
            if is_set && !filter.selects(kind) {
                let problem = format!("only with {kind}, which on.types does not select");
                self.fault(&format!("action.retry.{key}"), problem);
            }
        }
    }

    fn factor(&mut self, key: &str, text: Option<&str>) -> Option<f64> {
        let text = text?;
        let factor = text.strip_prefix('x').and_then(|text| text.parse().ok());
        let factor = factor.filter(|factor| (1.01..=10.0).contains(factor));
        if factor.is_none() {
            self.fault(key, "a factor such as x1.5, from x1.01 to x10");
        }
        factor
    }
}

/// Reads a value. The error tells the key inside it.
fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| match error.path().to_string() {
        path if path == "." => error.into_inner().to_string(),
        path => format!("{path}: {}", error.into_inner()),
    })
}

fn is_script_name(name: &str) -> bool {
    let is_normal = |part| matches!(part, std::path::Component::Normal(_));
    !name.is_empty() && Path::new(name).components().all(is_normal)
}

fn inline_script(text: String) -> Result<String, String> {
    if text.len() > MAX_INLINE_SCRIPT_BYTES {
        return Err(format!("larger than {MAX_INLINE_SCRIPT_BYTES} bytes"));
    }
    match text.starts_with("#!") {
        true if text.contains('\0') => Err("a script has no NUL".to_owned()),
        true => Ok(text),
        false => Err(NO_INTERPRETER.to_owned()),
    }
}

fn read_script(folder: &Path, name: &str) -> Result<String, String> {
    let path = folder.join(name);
    let read = || {
        let size = std::fs::metadata(&path)?.len();
        if size > MAX_SCRIPT_BYTES {
            return Ok(Err(format!("larger than {MAX_SCRIPT_BYTES} bytes")));
        }
        std::fs::read_to_string(&path).map(Ok)
    };
    let text = read().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))??;
    match text.starts_with("#!") {
        true => Ok(text),
        false => Err(format!("{}: {NO_INTERPRETER}", path.display())),
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a whole number")
            }
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}
