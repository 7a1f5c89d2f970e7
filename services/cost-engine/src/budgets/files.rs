//! Reads budgets from the TOML files of a folder. All faults are reported at once, with file, line, budget and key.

mod keys;
mod scope;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Spanned, Value};

use super::Budget;
use super::error::{BudgetFault, BudgetsError};
use crate::price_book::value::Faults;
use keys::Keys;

/// True for the budget files of a folder: `*.toml`, without hidden ones.
pub fn is_budget_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".toml") && !name.starts_with('.')
}

/// The budget files of a folder, by name.
///
/// # Errors
/// If the folder cannot be read.
pub fn list_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if is_budget_file(&path) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Loads the budgets of a file or of all files of a folder. `currency` is that of the price book, if it is known.
///
/// # Errors
/// If something cannot be read or has faults. Lists all faults.
pub fn load(path: &Path, currency: Option<&str>) -> Result<Vec<Budget>, BudgetsError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        |source| BudgetsError::Read { path, source }
    };
    let files = match path.is_dir() {
        true => list_files(path).map_err(unreadable(path))?,
        false => vec![path.to_owned()],
    };
    let mut reader = Reader::new(currency);
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(unreadable(&file))?;
        reader.read(&text, &file.display().to_string());
    }
    reader.finish()
}

/// Parses a budget of the API. `None` if the text has none.
///
/// # Errors
/// All faults.
pub(crate) fn parse_one(text: &str, currency: &str) -> Result<Option<Budget>, BudgetsError> {
    let mut reader = Reader::new(Some(currency));
    reader.read(text, "the request");
    Ok(reader.finish()?.pop())
}

/// Parses the text of one file.
///
/// # Errors
/// All faults of the text.
pub fn parse(text: &str) -> Result<Vec<Budget>, BudgetsError> {
    let mut reader = Reader::new(None);
    reader.read(text, "budgets.toml");
    reader.finish()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetsFile {
    #[serde(default)]
    budget: Vec<Spanned<BudgetTable>>,
}

type BudgetTable = BTreeMap<String, Spanned<Value>>;

/// Reads files one after the other, because names and currencies are compared across files.
struct Reader {
    budgets: Vec<Budget>,
    /// File of each budget, by name.
    names: BTreeMap<String, String>,
    /// The currency, and where it is from.
    currency: Option<(String, String)>,
    faults: Vec<BudgetFault>,
}

impl Reader {
    fn new(currency: Option<&str>) -> Self {
        let of_book = |currency: &str| (currency.to_owned(), "the price book".to_owned());
        Self {
            budgets: Vec::new(),
            names: BTreeMap::new(),
            currency: currency.map(of_book),
            faults: Vec::new(),
        }
    }

    fn finish(self) -> Result<Vec<Budget>, BudgetsError> {
        if self.faults.is_empty() {
            Ok(self.budgets)
        } else {
            Err(BudgetsError::Invalid(self.faults))
        }
    }

    fn read(&mut self, text: &str, file: &str) {
        let mut faults = Faults::new(text);
        match toml::from_str::<BudgetsFile>(text) {
            Ok(parsed) => {
                for table in parsed.budget {
                    self.budget(table, file, &mut faults);
                }
            }
            Err(error) => faults.add(error.span().unwrap_or_default(), "", error.message()),
        }
        faults.found.sort_by_key(|fault| fault.line);
        let named = |fault| BudgetFault {
            file: file.to_owned(),
            fault,
        };
        self.faults.extend(faults.found.into_iter().map(named));
    }

    fn budget(&mut self, table: Spanned<BudgetTable>, file: &str, faults: &mut Faults<'_>) {
        let place = table.span();
        let mut keys = Keys {
            budget: format!("line {}", faults.line(&place)),
            first_fault: faults.found.len(),
            table: table.into_inner(),
            faults,
        };
        let name = keys.name();
        if let Some(name) = &name {
            keys.budget = format!("{name:?}");
            if let Some(other) = self.names.insert(name.clone(), file.to_owned()) {
                keys.add_at(
                    place.clone(),
                    "name",
                    format!("is also a budget of {other}"),
                );
            }
        }
        self.compare_currency(&mut keys, file);
        let zone = keys.zone();
        let scope = keys.scope();
        let periodicity = keys.periodicity(zone);
        let amount = keys.amount();
        let (counts, thresholds) = (keys.counts(), keys.thresholds());
        let forecast = keys.forecast();
        let (is_for_owners, is_for_coordinators) = keys.notify();
        for (key, missing) in [
            ("name", name.is_none()),
            ("scope", scope.is_none()),
            ("amount", amount.is_none()),
        ] {
            if missing && !keys.has_fault(key) {
                keys.add_at(place.clone(), key, "is missing");
            }
        }
        if periodicity.is_none()
            && !["period", "from", "to"]
                .iter()
                .any(|key| keys.has_fault(key))
        {
            keys.add_at(
                place.clone(),
                "period",
                "is missing: write a period, or `from` and `to`",
            );
        }
        for key in std::mem::take(&mut keys.table) {
            keys.add_at(key.1.span(), &key.0, "is not a key of a budget");
        }
        if let (Some(name), Some(scope), Some(periodicity), Some(amount)) =
            (name, scope, periodicity, amount)
        {
            self.budgets.push(Budget {
                name,
                scope,
                periodicity,
                zone,
                amount,
                counts,
                thresholds,
                forecast,
                is_for_owners,
                is_for_coordinators,
            });
        }
    }

    /// Amounts of one currency only.
    fn compare_currency(&mut self, keys: &mut Keys<'_, '_>, file: &str) {
        let Some((text, place)) = keys.text("currency") else {
            return;
        };
        match &self.currency {
            Some((known, source)) if *known != text => {
                let problem = format!("{text:?} is not the currency of {source}, {known:?}");
                keys.add_at(place, "currency", problem);
            }
            Some(_) => {}
            None => self.currency = Some((text, format!("another budget in {file}"))),
        }
    }
}

#[cfg(test)]
mod tests;
