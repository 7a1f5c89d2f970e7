//! Reads one object of a response, field by field. A field of an unknown shape is left out and counted.

use serde_json::Value;
use slurm_types::{ExitCode, Tres, UnixTime, no_val};

use crate::record::Oddities;

/// Reads fields of one object by name; `a.b` is the field `b` of the object `a`.
pub(crate) struct Fields<'a> {
    object: &'a Value,
    /// Fields with an unknown shape.
    pub(crate) oddities: Oddities,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(object: &'a Value) -> Self {
        Self {
            object,
            oddities: Oddities::default(),
        }
    }

    /// The field, unless it is missing or null.
    pub(crate) fn get(&self, path: &str) -> Option<&'a Value> {
        path.split('.')
            .try_fold(self.object, |value, key| value.get(key))
            .filter(|value| !value.is_null())
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.get(path).is_some()
    }

    /// Notes the field as one of an unknown shape.
    fn odd<T>(&mut self, path: &str, nothing: T) -> T {
        let printed = self.get(path).map(Value::to_string);
        self.oddities.note(path, &printed.unwrap_or_default());
        nothing
    }

    /// A user's text, unchanged; empty if there is none.
    pub(crate) fn raw(&mut self, path: &str) -> String {
        match self.get(path) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(_) => self.odd(path, String::new()),
        }
    }

    /// A text of Slurm's; its placeholders for "none" become empty.
    pub(crate) fn text(&mut self, path: &str) -> String {
        crate::parse::text(&self.raw(path))
    }

    /// The first of these texts that is not empty.
    pub(crate) fn first(&mut self, paths: &[&str]) -> String {
        paths
            .iter()
            .map(|path| self.text(path))
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    }

    /// A whole number, plain or `{set, infinite, number}`. `None` if it is not set or unlimited.
    pub(crate) fn signed(&mut self, path: &str) -> Option<i64> {
        let value = self.get(path)?;
        let number = match value {
            Value::Object(triple) if triple.get("number").is_some() => {
                if triple.get("set").and_then(Value::as_bool) != Some(true) {
                    return None;
                }
                triple.get("number")?
            }
            number => number,
        };
        // Some floats hold whole numbers (v0.0.40 has `5.0` for tasks per TRES).
        match number
            .as_i64()
            .or_else(|| number.as_f64().map(|float| float as i64))
        {
            Some(number) => Some(number),
            None => self.odd(path, None),
        }
    }

    /// A number that is at least 0. Slurm's "no value" of 32 bits gives `None`.
    pub(crate) fn number<T: TryFrom<i64>>(&mut self, path: &str) -> Option<T> {
        let number = self.signed(path)?;
        if number < 0 || u32::try_from(number).is_ok_and(|n| no_val::real_u32(n).is_none()) {
            return None;
        }
        T::try_from(number).ok()
    }

    /// A number above 0: Slurm's ids and limits have 0 for "none".
    pub(crate) fn positive<T: TryFrom<i64> + Default + PartialEq>(
        &mut self,
        path: &str,
    ) -> Option<T> {
        self.number(path).filter(|number| *number != T::default())
    }

    /// True if the number is "unlimited".
    pub(crate) fn infinite(&self, path: &str) -> bool {
        self.get(path)
            .and_then(|triple| triple.get("infinite"))
            .and_then(Value::as_bool)
            == Some(true)
    }

    /// A time; 0 gives `None`, even with `set: true` (24.11).
    pub(crate) fn time(&mut self, path: &str) -> Option<UnixTime> {
        self.positive(path).map(UnixTime::from_secs)
    }

    /// A list of words, or one word (22.05); a text with commas is a list as well.
    pub(crate) fn strings(&mut self, path: &str) -> Vec<String> {
        match self.get(path) {
            None => Vec::new(),
            Some(Value::String(text)) => crate::parse::list(text),
            Some(Value::Array(items)) => {
                let strings: Vec<String> = items
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect();
                if strings.len() != items.len() {
                    return self.odd(path, strings);
                }
                strings
            }
            Some(_) => self.odd(path, Vec::new()),
        }
    }

    /// `true`, 1, or a list with `true` in it.
    pub(crate) fn flag(&mut self, path: &str) -> bool {
        match self.get(path) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(Value::Number(number)) => number.as_i64() != Some(0),
            Some(Value::Array(items)) => items.iter().any(|item| item.as_str() == Some("true")),
            Some(_) => self.odd(path, false),
        }
    }

    /// Resources as a text.
    pub(crate) fn tres(&mut self, path: &str) -> Tres {
        let (tres, odd) = Tres::parse_lossy(&self.text(path));
        self.oddities.note_tres(path, &odd);
        tres
    }

    /// Resources as a list of `{type, name, count}`; memory in MiB. Negative counts mean "not known" (energy on 26.05).
    pub(crate) fn tres_list(&mut self, path: &str) -> Tres {
        let mut tres = Tres::default();
        let Some(list) = self.get(path) else {
            return tres;
        };
        let Some(items) = list.as_array() else {
            return self.odd(path, tres);
        };
        for item in items {
            let mut item = Fields::new(item);
            let count = item.signed("count").and_then(|n| u64::try_from(n).ok());
            if let (Some(name), Some(count)) = (item.tres_name(), count) {
                tres.set(name, count);
            }
            self.oddities.note_within(path, &item.oddities);
        }
        tres
    }

    /// Name of a resource: `mem`, `gres/gpu`.
    pub(crate) fn tres_name(&mut self) -> Option<String> {
        let (kind, name) = (self.text("type"), self.text("name"));
        match (kind.is_empty(), name.is_empty()) {
            (true, _) => self.odd("type", None),
            (false, true) => Some(kind),
            (false, false) => Some(format!("{kind}/{name}")),
        }
    }

    /// An exit code: a wait status (22.05) or `{status, return_code, signal}`.
    pub(crate) fn exit_code(&mut self, path: &str) -> Option<ExitCode> {
        let value = self.get(path)?;
        if !value.is_object() || value.get("number").is_some() {
            return self.number::<u32>(path).map(ExitCode::from_wait_status);
        }
        let mut code = Fields::new(value);
        let signal = code
            .positive("signal.id")
            .or_else(|| code.positive("signal.signal_id"));
        let exit = code.number("return_code");
        self.oddities.note_within(path, &code.oddities);
        // Status PENDING has neither; Slurm's commands print 0:0 then.
        let pending = code
            .strings("status")
            .iter()
            .any(|string| string == "PENDING");
        (signal.is_some() || exit.is_some() || pending).then(|| ExitCode {
            exit: exit.unwrap_or(0),
            signal: signal.unwrap_or(0),
        })
    }
}
