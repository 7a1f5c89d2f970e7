//! All jobs with the columns that pollers of squeue ask for, some of which are texts of users.
//!
//! No user can forge a row or a column: the separators contain a random number that is different in each call.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use crate::record::JobListing;

/// Letters of squeue's `--format`, each of which is a column (22.05 to 26.05).
pub const LISTING_LETTERS: &str = "aAbBcCdDeEfFgGhHiIjJkKlLmMnNoOpPqQrRStTuUvVwWxXyYzZ";

/// What separates rows and columns of one call.
pub(crate) struct ListingSeparators {
    row: String,
    column: String,
}

impl ListingSeparators {
    pub(crate) fn new() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let number = format!("{:016x}{:016x}", random(), random());
        Self {
            row: format!("\x1e{number}"),
            column: format!("\x1f{number}"),
        }
    }

    pub(crate) fn format(&self) -> String {
        let columns: Vec<String> = LISTING_LETTERS
            .chars()
            .map(|letter| format!("%{letter}"))
            .collect();
        format!("{}{}", self.row, columns.join(&self.column))
    }

    /// Titles and jobs. `None` if a row has other columns.
    pub(crate) fn parse(&self, output: &str) -> Option<JobListing> {
        let columns = |row: &str| {
            let row = row.strip_suffix('\n').unwrap_or(row);
            let columns: Vec<String> = row.split(&self.column).map(str::to_owned).collect();
            (columns.len() == LISTING_LETTERS.len()).then_some(columns)
        };
        let mut rows = output.split(&self.row).skip(1).map(columns);
        Some(JobListing {
            titles: rows.next()??,
            jobs: rows.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_users_forge_neither_rows_nor_columns() {
        let separators = ListingSeparators::new();
        let row = |text: &str| {
            let columns = vec![text; LISTING_LETTERS.len()];
            format!("{}{}\n", separators.row, columns.join(&separators.column))
        };
        let evil = "a\n\x1e0123456789abcdef\x1fb";
        let output = row("TITLE") + &row(evil) + &row("");
        let listing = separators.parse(&output).expect("complete");
        assert_eq!(
            (listing.titles[0].as_str(), listing.jobs.len()),
            ("TITLE", 2)
        );
        assert_eq!(listing.jobs[0][3], evil);
        // Another call has another number.
        assert_eq!(ListingSeparators::new().parse(&output), None);
        let cut = output.rsplit_once(&separators.column).expect("columns").0;
        assert_eq!(separators.parse(cut), None);
    }
}
