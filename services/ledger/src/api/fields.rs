//! `fields=`: selects parts of each entry by path.

use mesh_events::Event;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_runtime::api::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// First segments of paths: `seq`, and the attributes of every CloudEvent of the ledger.
const ROOTS: [&str; 10] = [
    "seq",
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "dataschema",
    "datacontenttype",
    "data",
];
/// Maximum number of paths in a request.
const MAX_PATHS: usize = 64;

/// Paths into an entry: `seq`, `type`, `data.owner.user`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields(Vec<Vec<String>>);

impl Fields {
    /// Parses `seq,id,data.owner.user`.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let paths: Vec<Vec<String>> = text
            .split(',')
            .map(|path| path.trim().split('.').map(str::to_owned).collect())
            .collect();
        let wrong = paths.iter().find(|path| {
            !ROOTS.contains(&path[0].as_str())
                || path.iter().any(String::is_empty)
                || (path[0] != "data" && path.len() > 1)
        });
        if let Some(wrong) = wrong {
            return Err(Problem::bad_request(format!(
                "fields: {:?} is not a field of an entry; allowed: {}, and paths below data such as data.owner.user",
                wrong.join("."),
                ROOTS.join(", ")
            )));
        }
        if paths.len() > MAX_PATHS {
            return Err(Problem::bad_request(format!(
                "fields: too many paths ({}); allowed: {MAX_PATHS}",
                paths.len()
            )));
        }
        Ok(Self(paths))
    }

    /// Returns only these parts of an entry. Parts that the entry does not have are omitted.
    pub(super) fn select(&self, seq: u64, event: &Value) -> Value {
        let mut chosen = json!({});
        for path in &self.0 {
            if path[0] == "seq" {
                chosen["seq"] = seq.into();
            } else if let Some(value) = lookup(event, path) {
                put(&mut chosen["event"], path, value);
            }
        }
        chosen
    }

    /// True if the sequence is requested.
    pub(super) fn with_seq(&self) -> bool {
        self.0.iter().any(|path| path[0] == "seq")
    }

    /// Returns only these parts of an event as a message, or `None` if it has none of them.
    pub(super) fn event(&self, event: &Event) -> Result<Option<Event>, Problem> {
        self.message(event, |attribute| match attribute {
            "id" => Some("id"),
            "source" => Some("cluster"),
            "type" => Some("type"),
            "subject" => Some("entity"),
            "time" => Some("occurredAt"),
            _ => None,
        })
    }

    /// Returns only these parts of an audit entry as a message, or `None` if it has none of them.
    pub(super) fn audit(&self, entry: &AuditEntry) -> Result<Option<AuditEntry>, Problem> {
        self.message(entry, |attribute| match attribute {
            "id" => Some("id"),
            "source" => Some("cluster"),
            "type" => Some("kind"),
            "subject" => Some("service"),
            "time" => Some("at"),
            _ => None,
        })
    }

    /// Converts through proto3 JSON, because the paths use its names. `made_of` returns the field
    /// that an attribute is derived from, if any.
    fn message<M: Serialize + DeserializeOwned>(
        &self,
        message: &M,
        made_of: fn(&str) -> Option<&'static str>,
    ) -> Result<Option<M>, Problem> {
        let whole = serde_json::to_value(message).map_err(|error| Problem::internal(&error))?;
        let mut chosen = Value::Null;
        for path in &self.0 {
            let attribute = made_of(&path[0]).map(|field| vec![field.to_owned()]);
            let path = match &attribute {
                Some(path) => path.as_slice(),
                None if path[0] == "data" => &path[1..],
                None => continue,
            };
            if let Some(value) = lookup(&whole, path) {
                put(&mut chosen, path, value);
            }
        }
        if chosen.is_null() {
            return Ok(None);
        }
        let chosen = serde_json::from_value(chosen).map_err(|error| Problem::internal(&error))?;
        Ok(Some(chosen))
    }

    /// Returns the column names of a table.
    pub(super) fn columns(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|path| path.join("."))
    }

    /// Returns the cells of a table row.
    pub(super) fn cells(&self, seq: u64, event: &Value) -> Vec<String> {
        let cell = |path: &Vec<String>| {
            if path[0] == "seq" {
                return seq.to_string();
            }
            match lookup(event, path) {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            }
        };
        self.0.iter().map(cell).collect()
    }
}

fn lookup<'a>(event: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(event, |value, step| value.get(step))
}

fn put(mut place: &mut Value, path: &[String], value: &Value) {
    for step in path {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[step.as_str()];
    }
    *place = value.clone();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requested_fields_are_returned() {
        let event = json!({"id": "x", "type": "t", "data": {"owner": {"user": "alice", "uid": 1}, "n": [1]}});
        let fields = Fields::parse("seq, type,data.owner.user,data.owner.account").unwrap();
        assert_eq!(
            fields.select(7, &event),
            json!({"seq": 7, "event": {"type": "t", "data": {"owner": {"user": "alice"}}}})
        );
        assert_eq!(fields.cells(7, &event), ["7", "t", "alice", ""]);
        let whole = Fields::parse("data.n,data.owner").unwrap();
        assert_eq!(
            whole.cells(7, &event),
            ["[1]", "{\"uid\":1,\"user\":\"alice\"}"]
        );
    }

    #[test]
    fn unknown_fields_are_refused() {
        for text in ["colour", "", "seq,", "data..x", "id.x", "event.id"] {
            let problem = Fields::parse(text).unwrap_err();
            assert!(problem.detail.starts_with("fields: "), "{text}");
        }
        assert!(Fields::parse(&vec!["seq"; 65].join(",")).is_err());
    }
}
