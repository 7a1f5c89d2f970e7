//! Checks files of cost test vectors (`cost-vectors/1`) against the formulas of [`crate::domain`].
//!
//! A vector is a small scenario (prices, nodes, runs) with its expected amounts.

mod check;
mod schema;
mod world;

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use schema::{File, Vector};

/// Schema version of the files.
pub const SCHEMA: &str = "cost-vectors/1";

/// Why a file is not a valid set of vectors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not JSON, or the outer structure is wrong.
    #[error("read cost vectors")]
    File(#[source] serde_json::Error),
    /// Another schema version.
    #[error("schema is {found:?}; this version reads {SCHEMA:?}")]
    Schema {
        /// Schema named in the file.
        found: String,
    },
    /// A vector does not have the structure of its kind. The source names the field.
    #[error("vector {vector}")]
    Vector {
        /// Id of the vector, or its position if it has none.
        vector: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// The parts of a vector contradict each other.
    #[error("vector {vector}, field {field}: {problem}")]
    Field {
        /// Id of the vector.
        vector: String,
        /// The field.
        field: String,
        /// The fault, as text.
        problem: String,
    },
    /// Two vectors have the same id.
    #[error("duplicate vector {0}")]
    Duplicate(String),
    /// The file has no vectors.
    #[error("the file has no vectors")]
    Empty,
}

/// A value that differs from the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Id of the vector.
    pub vector: String,
    /// Its title.
    pub title: String,
    /// Name of the value.
    pub field: String,
    /// Value in the file.
    pub expected: String,
    /// Computed value.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            vector,
            title,
            field,
            expected,
            found,
        } = self;
        write!(
            f,
            "{vector} ({title}): {field}: expected {expected}, found {found}"
        )
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of vectors checked.
    pub checked: usize,
    /// Values that differ.
    pub differences: Vec<Difference>,
}

impl Report {
    /// True if all values are as expected.
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Checks the vectors of a file.
///
/// # Errors
/// If the text is not a valid file. The error names vector and field. Differing values are in the report, not errors.
pub fn check_vectors(json: &str) -> Result<Report, Error> {
    let file: File = serde_json::from_str(json).map_err(Error::File)?;
    if file.schema != SCHEMA {
        return Err(Error::Schema { found: file.schema });
    }
    if file.vectors.is_empty() {
        return Err(Error::Empty);
    }
    // Parses all vectors before checking any: a file is valid or invalid as a whole.
    let mut seen = BTreeSet::new();
    let vectors = file
        .vectors
        .into_iter()
        .enumerate()
        .map(|(at, value)| read(at, value))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(twice) = vectors.iter().find(|vector| !seen.insert(vector.id())) {
        return Err(Error::Duplicate(twice.id().to_owned()));
    }
    let mut report = Report::default();
    for vector in &vectors {
        report.differences.extend(check::check(vector)?);
        report.checked += 1;
    }
    Ok(report)
}

fn read(at: usize, value: Value) -> Result<Vector, Error> {
    let name = value
        .get("id")
        .and_then(Value::as_str)
        .map_or_else(|| format!("number {}", at + 1), str::to_owned);
    serde_json::from_value(value).map_err(|source| Error::Vector {
        vector: name,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTORS: &str = include_str!("../tests/data/cost_vectors.json");

    #[test]
    fn every_vector_comes_out_as_expected() {
        let report = check_vectors(VECTORS).unwrap();
        let differences: Vec<_> = report.differences.iter().map(ToString::to_string).collect();
        assert_eq!(differences, Vec::<String>::new());
        assert_eq!(report.checked, 57);
    }

    /// The vectors, with one of them changed.
    fn changed(id: &str, change: impl FnOnce(&mut Value)) -> String {
        let mut file: Value = serde_json::from_str(VECTORS).unwrap();
        let vectors = file["vectors"].as_array_mut().unwrap();
        vectors.retain(|vector| vector["id"] == id);
        change(&mut vectors[0]);
        file.to_string()
    }

    #[test]
    fn every_expected_figure_is_compared() {
        let file: Value = serde_json::from_str(VECTORS).unwrap();
        for vector in file["vectors"].as_array().unwrap() {
            let id = vector["id"].as_str().unwrap();
            for field in vector["expect"].as_object().unwrap().keys() {
                let text = changed(id, |vector| alter(&mut vector["expect"][field]));
                assert!(!check_vectors(&text).unwrap().passed(), "{id} {field}");
            }
        }
    }

    fn alter(value: &mut Value) {
        match value {
            Value::Number(number) => *value = (number.as_i64().unwrap() + 1).into(),
            Value::String(text) => text.push('7'),
            Value::Array(runs) => {
                for field in runs[0]
                    .as_object_mut()
                    .unwrap()
                    .values_mut()
                    .filter(|field| field.is_i64())
                {
                    alter(field);
                }
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn every_field_of_an_expected_run_is_compared() {
        for (field, wrong) in [
            ("exact_micro", "680000/3"),
            ("class", "open"),
            ("run_id", "other"),
        ] {
            let text = changed("CV001", |vector| {
                vector["expect"]["runs"][0][field] = wrong.into()
            });
            let report = check_vectors(&text).unwrap();
            assert!(!report.passed(), "{field}");
        }
    }

    #[track_caller]
    fn refused(text: &str, parts: &[&str]) {
        let error = check_vectors(text).unwrap_err();
        let mut message = error.to_string();
        if let Some(source) = std::error::Error::source(&error) {
            message = format!("{message}: {source}");
        }
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }

    #[test]
    fn unknown_and_missing_fields_are_reported() {
        refused("[]", &["read cost vectors"]);
        refused(
            "{\"schema\":\"cost-vectors/2\",\"vectors\":[]}",
            &["cost-vectors/2"],
        );
        refused(
            "{\"schema\":\"cost-vectors/1\",\"vectors\":[]}",
            &["no vectors"],
        );
        refused(
            &changed("CV001", |v| v["kind"] = "jobb".into()),
            &["CV001", "jobb"],
        );
        refused(
            &changed("CV001", |v| v["colour"] = "red".into()),
            &["CV001", "colour"],
        );
        refused(
            &changed("CV001", |v| v["runs"][0]["colour"] = "red".into()),
            &["CV001", "colour"],
        );
        refused(
            &changed("CV001", |v| v["runs"][0]["alloc"][0]["colour"] = 1.into()),
            &["CV001", "alloc", "colour"],
        );
        refused(
            &changed("CV001", |v| v["nodes"][0]["cap"]["tpu"] = 1.into()),
            &["CV001", "tpu"],
        );
        refused(
            &changed("CV001", |v| v["mode"] = "half_share".into()),
            &["CV001", "half_share"],
        );
        refused(
            &changed("CV001", |v| v["nodes"][0]["market"] = "black".into()),
            &["CV001", "black"],
        );
        refused(
            &changed("CV001", |v| v["runs"][0]["end"] = "soon".into()),
            &["CV001", "soon"],
        );
        refused(
            &changed("CV001", |v| v["runs"][0]["end"] = Value::Null),
            &["CV001", "runs[0].end"],
        );
        refused(
            &changed("CV001", |v| _ = v.as_object_mut().unwrap().remove("prices")),
            &["CV001", "prices"],
        );
        refused(
            &changed("CV001", |v| {
                _ = v["runs"][0].as_object_mut().unwrap().remove("alloc")
            }),
            &["CV001", "runs[0].alloc"],
        );
        refused(
            &changed("CV030", |v| v["prices"][1]["from"] = 0.into()),
            &["CV030", "prices[1]"],
        );
        refused(
            &changed("CV025", |v| v["weights"]["c16"]["cpu"][1] = 0.into()),
            &["CV025", "weights.c16.cpu"],
        );
        refused(
            &changed("CV047", |v| v["flag"] = "MIN_TRES".into()),
            &["CV047", "MIN_TRES"],
        );
        refused(
            &changed("CV047", |v| v["weights"]["cpu"]["weight"] = "x".into()),
            &["CV047", "weights.cpu"],
        );
    }

    #[test]
    fn a_running_job_is_open_until_now() {
        let text = changed("CV001", |vector| {
            vector["runs"][0]["end"] = Value::Null;
            vector["runs"][0]["state"] = "RUNNING".into();
            vector["now"] = 1_767_227_400.into();
            vector["expect"] = serde_json::json!({
                "runs": [{"run_id": "1.0", "exact_micro": "340000/1", "cost_micro": 340_000, "class": "open"}],
                "job_cost_micro": 340_000, "completed_micro": 0, "not_completed_micro": 0, "open_micro": 340_000
            });
        });
        assert_eq!(check_vectors(&text).unwrap().differences, []);
    }

    #[test]
    fn a_run_that_never_started_costs_nothing() {
        let text = changed("CV001", |vector| {
            vector["runs"][0]["start"] = Value::Null;
            vector["runs"][0]["alloc"] = serde_json::json!([]);
            vector["runs"][0]["state"] = "CANCELLED by 1000".into();
            vector["expect"] = serde_json::json!({
                "runs": [{"run_id": "1.0", "exact_micro": "0/1", "cost_micro": 0, "class": "not_completed"}],
                "job_cost_micro": 0, "completed_micro": 0, "not_completed_micro": 0, "open_micro": 0
            });
        });
        assert_eq!(check_vectors(&text).unwrap().differences, []);
    }

    #[test]
    fn an_error_where_a_cost_is_expected_is_a_difference() {
        let text = changed("CV001", |vector| {
            vector["prices"][0]["to"] = 1_767_225_700.into()
        });
        let report = check_vectors(&text).unwrap();
        assert!(
            report.differences[0].found.starts_with("price_missing"),
            "{report:?}"
        );
        let text = changed("CV041", |vector| vector["prices"][0]["to"] = Value::Null);
        assert_eq!(
            check_vectors(&text).unwrap().differences[0].expected,
            "price_missing"
        );
    }
}
