//! Renamed keys: an old key is refused with an error that names the new one.

use figment::value::Value;
use figment::{Figment, Metadata};

/// Old and new names of keys, as paths within a section: `("first_wait", "retry.initial_interval")`. `[]` stands for each table of a list:
/// `endpoints[].first_wait`.
pub type RenamedKeys = &'static [(&'static str, &'static str)];

/// Renamed keys of `[mesh]`.
pub(super) const MESH: RenamedKeys = &[];

/// True if a value is from the environment, not from a file.
pub(super) fn is_from_environment(metadata: &Metadata) -> bool {
    metadata.source.is_none() && metadata.name.contains("environment")
}

/// A fault for each old key that is set in a section: where it is set, and its new name.
pub(super) fn faults(
    figment: &Figment,
    values: &Value,
    section: &str,
    renamed: RenamedKeys,
) -> Vec<String> {
    let mut faults = Vec::new();
    for (old, new) in renamed {
        for (index, value) in find(values, old) {
            let at = |path: &str| match index {
                Some(index) => path.replacen("[]", &format!("[{index}]"), 1),
                None => path.to_owned(),
            };
            let (old, new) = (at(old), at(new));
            let metadata = figment.get_metadata(value.tag());
            faults.push(match metadata.is_some_and(is_from_environment) {
                false => format!("[{section}] {old}: renamed to {new}"),
                true if index.is_none() => format!(
                    "environment variable {}: renamed to {}",
                    variable(section, &old),
                    variable(section, &new)
                ),
                true => format!(
                    "environment variable {}: {old} is renamed to {new}",
                    variable(section, old.split('[').next().unwrap_or_default())
                ),
            });
        }
    }
    faults
}

/// The values that a path names; those in a list with their index.
fn find<'a>(values: &'a Value, path: &str) -> Vec<(Option<usize>, &'a Value)> {
    let Some((list, key)) = path.split_once("[].") else {
        let value = values.find_ref(path);
        return value.into_iter().map(|value| (None, value)).collect();
    };
    let tables = values.find_ref(list).and_then(Value::as_array);
    let tables = tables.into_iter().flatten().enumerate();
    tables
        .filter_map(|(index, table)| Some((Some(index), table.find_ref(key)?)))
        .collect()
}

fn variable(section: &str, path: &str) -> String {
    let (section, path) = (section.replace('-', "_"), path.replace('.', "__"));
    format!("MESH_{section}__{path}").to_ascii_uppercase()
}
