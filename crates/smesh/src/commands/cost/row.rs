//! Rows of a cost report, as the API answers them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::show;

/// Amounts of a report in millionths, by currency and key. Those of runs that all have no price are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub cluster: String,
    pub key: String,
    /// E-mail address or name of a person. Empty otherwise.
    pub name: String,
    pub currency: String,
    pub runs: u64,
    pub open_runs: u64,
    pub unpriced_runs: u64,
    pub completed: Option<i128>,
    /// By what ended the runs.
    pub lost: BTreeMap<String, i128>,
    pub not_completed: Option<i128>,
    pub unused: i128,
    pub adjustments: i128,
    pub in_flight: Option<i128>,
    pub total: Option<i128>,
}

impl Row {
    fn read(row: &Value) -> Self {
        let micros = |value: &Value| {
            let text = value.as_str().unwrap_or_default();
            text.parse::<i128>().unwrap_or_default()
        };
        let total = &row["total_micros"];
        let currency = show::value(&row["currency"]);
        // Of runs that all have no price nothing is said to be 0. Older services say 0 without a currency.
        let is_priced = !total.is_null() && !currency.is_empty();
        let cost = |value: &Value| (is_priced && !value.is_null()).then(|| micros(value));
        let lost = row["lost_micros"].as_object().into_iter().flatten();
        let count = |key: &str| row[key].as_u64().unwrap_or_default();
        Self {
            cluster: show::value(&row["cluster"]),
            key: show::value(&row["key"]),
            name: row["name"].as_str().unwrap_or_default().to_owned(),
            currency,
            runs: count("runs"),
            open_runs: count("open_runs"),
            unpriced_runs: count("unpriced_runs"),
            completed: cost(&row["completed_micros"]),
            lost: lost
                .map(|(kind, value)| (kind.clone(), micros(value)))
                .collect(),
            not_completed: cost(&row["not_completed_micros"]),
            unused: micros(&row["unused_micros"]),
            adjustments: micros(&row["adjustments_micros"]),
            in_flight: cost(&row["open_micros"]),
            total: cost(total),
        }
    }

    /// Its name for people: that of a person, else the key.
    pub fn label(&self) -> &str {
        let texts = [self.name.as_str(), self.key.as_str()];
        let label = texts.into_iter().find(|text| !text.is_empty());
        label.unwrap_or("(none)")
    }
}

pub fn rows(answer: &Value) -> Vec<Row> {
    let rows = answer["rows"].as_array().into_iter().flatten();
    rows.map(Row::read).collect()
}

/// `12.345678`
pub fn decimal(micros: i128) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    let size = micros.unsigned_abs();
    format!("{sign}{}.{:06}", size / 1_000_000, size % 1_000_000)
}
