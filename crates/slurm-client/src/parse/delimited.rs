//! Columns with texts of users, split so that no text can pass for another column or row.
//!
//! A job's name may contain newlines, control characters, and anything that looks like Slurm's output. So the separator is drawn at random
//! for every call and cannot be known when a job is named. Rows end in a newline, but names may contain newlines as well. Since the first
//! column never contains one, the **last** newline between two separators is the end of the row.

use std::hash::{BuildHasher, Hasher, RandomState};

/// An unpredictable separator.
#[derive(Clone, Debug)]
pub(crate) struct Separator(String);

impl Separator {
    /// A new one. `RandomState` is keyed from the system's random source.
    pub(crate) fn random() -> Self {
        let number = RandomState::new().build_hasher().finish();
        Self(format!("<{number:016x}>"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A squeue format of these columns.
    pub(crate) fn join(&self, columns: &[&str]) -> String {
        columns.join(&self.0)
    }
}

/// The rows of output with `columns` columns; the first never contains a newline. `None` if the output does not have that structure.
pub(crate) fn delimited<'a>(
    text: &'a str,
    separator: &Separator,
    columns: usize,
) -> Option<Vec<Vec<&'a str>>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let text = text.strip_suffix('\n').unwrap_or(text);
    let pieces: Vec<&str> = text.split(separator.as_str()).collect();
    let per_row = columns.checked_sub(1).filter(|gaps| *gaps > 0)?;
    if pieces.len() == 1 || !(pieces.len() - 1).is_multiple_of(per_row) {
        return None;
    }
    let mut rows = Vec::with_capacity((pieces.len() - 1) / per_row);
    let mut first = pieces[0];
    for chunk in pieces[1..].chunks(per_row) {
        let mut row = Vec::with_capacity(columns);
        row.push(first);
        row.extend_from_slice(chunk);
        let is_last = rows.len() + 1 == (pieces.len() - 1) / per_row;
        if !is_last {
            let (value, next) = row.pop()?.rsplit_once('\n')?;
            row.push(value);
            first = next;
        }
        rows.push(row);
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_names_stay_in_their_column() {
        let separator = Separator::random();
        let join = |columns: &[&str]| separator.join(columns) + "\n";
        let text = join(&["1", "alice", "evil\n2|root|\n"]) + &join(&["2", "bob", "plain"]);
        let rows = delimited(&text, &separator, 3).unwrap();
        assert_eq!(
            rows,
            [
                vec!["1", "alice", "evil\n2|root|\n"],
                vec!["2", "bob", "plain"]
            ]
        );
        assert_eq!(delimited("", &separator, 3), Some(vec![]));
        assert_eq!(delimited("noise\n", &separator, 3), None);
        assert_eq!(delimited(&join(&["1", "2"]), &separator, 3), None);
    }

    proptest! {
        #[test]
        fn joined_rows_come_back(names in proptest::collection::vec(("[0-9]{1,5}", "(?s).*", "(?s).*"), 1..20)) {
            let separator = Separator::random();
            let text: String = names.iter().map(|(id, a, b)| separator.join(&[id, a, b]) + "\n").collect();
            let rows = delimited(&text, &separator, 3).unwrap();
            let back: Vec<_> = rows.iter().map(|row| (row[0].to_owned(), row[1].to_owned(), row[2].to_owned())).collect();
            prop_assert_eq!(back, names);
        }
    }
}
