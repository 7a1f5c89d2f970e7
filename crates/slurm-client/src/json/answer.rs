//! The document around the records: errors, warnings, version, and the records one by one.
//!
//! A list of 10,000 jobs has 92 MB (26.05). So each item is parsed, converted to a record and dropped before the next one.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value;
use slurm_types::UnixTime;

use super::Fields;

/// The document's fields around the records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Envelope {
    /// Errors: Slurm's number and message.
    pub(crate) errors: Vec<(Option<i64>, String)>,
    /// Warnings.
    pub(crate) warnings: Vec<String>,
    /// The controller's clock when it answered (v0.0.40 and later).
    pub(crate) last_update: Option<UnixTime>,
    /// `22.05.8`. The numbers beside it are scrambled: `{major: 22, micro: 8, minor: 5}` is 22.05.8.
    pub(crate) release: String,
    /// Cluster (v0.0.40 and later).
    pub(crate) cluster: String,
    /// `accounting_storage/slurmdbd` (v0.0.40 and later).
    pub(crate) accounting_storage: String,
    /// The controller's clock in an answer about statistics.
    pub(crate) clock: Option<UnixTime>,
}

/// A document with a list of records.
#[derive(Clone, Debug)]
pub(crate) struct Answer<T> {
    /// The fields around them.
    pub(crate) envelope: Envelope,
    /// The records; `None` if the document has no such list.
    pub(crate) items: Option<Vec<T>>,
}

impl Envelope {
    /// True if slurmrestd reports that an empty list means no change (v0.0.39 and later; older ones answer 304).
    pub(crate) fn nothing_changed(&self) -> bool {
        self.warnings
            .iter()
            .any(|warning| warning.contains("No job changes since update_time"))
    }

    /// True if an error has this number of Slurm's.
    pub(crate) fn has_error(&self, number: i64) -> bool {
        self.errors.iter().any(|(known, _)| *known == Some(number))
    }

    /// The errors as one text.
    pub(crate) fn error_text(&self) -> String {
        let texts: Vec<&str> = self.errors.iter().map(|(_, text)| text.as_str()).collect();
        texts.join("; ")
    }

    fn take(&mut self, key: &str, value: &Value) {
        let mut fields = Fields::new(value);
        match key {
            "errors" => self.errors = value.as_array().into_iter().flatten().map(error).collect(),
            "warnings" => {
                self.warnings = value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|warning| Fields::new(warning).raw("description"))
                    .collect();
            }
            // The whole document is the object here: `last_update` may be a plain number or a triple.
            "last_update" => {
                let document = serde_json::json!({ "last_update": value });
                self.last_update = Fields::new(&document).time("last_update");
            }
            "meta" => {
                self.release = fields.first(&["slurm.release", "Slurm.release"]);
                self.cluster = fields.text("slurm.cluster");
                self.accounting_storage = fields.text("plugin.accounting_storage");
            }
            "statistics" => self.clock = fields.time("req_time"),
            _ => {}
        }
    }
}

/// `{description, error_number, error, source}`; v0.0.36 has `{error, error_code}`.
fn error(value: &Value) -> (Option<i64>, String) {
    let mut fields = Fields::new(value);
    let number = fields
        .signed("error_number")
        .or_else(|| fields.signed("error_code"));
    let (error, description) = (fields.raw("error"), fields.raw("description"));
    let text = match (error.is_empty(), description.is_empty()) {
        (false, false) => format!("{error} ({description})"),
        (true, true) => "an error without text".to_owned(),
        _ => error + &description,
    };
    (number, text)
}

/// Parses a document and converts every item of `list` to a record.
pub(crate) fn answer<T>(
    body: &[u8],
    list: &str,
    read: impl FnMut(&Value) -> T,
) -> Result<Answer<T>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let answer = Document { list, read }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(answer)
}

/// Parses a document without any list.
pub(crate) fn envelope(body: &[u8]) -> Result<Envelope, serde_json::Error> {
    answer(body, "", |_| ()).map(|answer| answer.envelope)
}

struct Document<'a, F> {
    list: &'a str,
    read: F,
}

impl<'de, T, F: FnMut(&Value) -> T> DeserializeSeed<'de> for Document<'_, F> {
    type Value = Answer<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Answer<T>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T, F: FnMut(&Value) -> T> Visitor<'de> for Document<'_, F> {
    type Value = Answer<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a document of slurmrestd")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Answer<T>, A::Error> {
        let mut answer = Answer {
            envelope: Envelope::default(),
            items: None,
        };
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                list if list == self.list => {
                    answer.items = map.next_value_seed(Items(&mut self.read))?;
                }
                "errors" | "warnings" | "last_update" | "meta" | "statistics" => {
                    let value: Value = map.next_value()?;
                    answer.envelope.take(&key, &value);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(answer)
    }
}

struct Items<'a, F>(&'a mut F);

impl<'de, T, F: FnMut(&Value) -> T> DeserializeSeed<'de> for Items<'_, F> {
    type Value = Option<Vec<T>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T, F: FnMut(&Value) -> T> Visitor<'de> for Items<'_, F> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of records")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element::<Value>()? {
            if !item.is_object() {
                return Err(A::Error::custom("an item of the list is not an object"));
            }
            items.push((self.0)(&item));
        }
        Ok(Some(items))
    }
}
