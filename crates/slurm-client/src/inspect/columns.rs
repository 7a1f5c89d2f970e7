//! Splits tables without bars into columns, or refuses: a value must never end up in a neighbour's column.
//!
//! Slurm pads columns to a width that only the caller of the command knew, to the right (`squeue`, `sacct`) or to the left (`squeue -O`,
//! the last column of most). So in every row a column either begins where its name begins, or ends where its name ends. If both are
//! possible and give different values, the table is ambiguous. Pure.

/// Columns whose values may begin with a blank, since users wrote them.
const FREE_TEXTS: [&str; 8] = [
    "NAME",
    "COMMENT",
    "ADMIN_COMMENT",
    "SYSTEM_COMMENT",
    "COMMAND",
    "WORK_DIR",
    "EXTRA",
    "REASON",
];

/// A column boundary that cannot be determined.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ambiguous {
    /// The name left of it.
    pub left: String,
    /// The name right of it.
    pub right: String,
}

/// Splits rows below the names of their columns.
pub(super) fn cut(header: &str, rows: &[&str]) -> Result<Vec<Vec<String>>, Ambiguous> {
    let names = tokens(header);
    let name = |at: usize| header[names[at].0..names[at].1].to_owned();
    if names.len() > 1 && header.split(' ').all(|name| !name.is_empty()) {
        return single_spaces(names.len(), rows).ok_or_else(|| Ambiguous {
            left: name(0),
            right: name(1),
        });
    }
    let padded_left = header.starts_with(' ');
    let mut table = Table {
        names: &names,
        rows,
        padded_left,
        fixed: false,
    };
    let begins = |at| FREE_TEXTS.contains(&name(at).as_str()) || table.is_left_aligned(at);
    let fixed = !padded_left && (0..names.len()).all(begins);
    table.fixed = fixed;
    let mut starts = vec![0];
    for left in 0..names.len() - 1 {
        starts.push(table.boundary(left).ok_or_else(|| Ambiguous {
            left: name(left),
            right: name(left + 1),
        })?);
    }
    let values = |row: &&str| {
        let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
        let cells = starts.iter().zip(ends);
        cells
            .map(|(start, end)| slice(row, *start, end).trim().to_owned())
            .collect()
    };
    Ok(rows.iter().map(values).collect())
}

/// Splits rows below a ruler (`------- ---`), whose dashes show every width.
pub(super) fn ruled(ruler: &str, line: &str) -> Vec<String> {
    let columns = tokens(ruler);
    let last = columns.len().saturating_sub(1);
    let cells = columns.iter().enumerate().map(|(at, (start, end))| {
        let end = if at == last { usize::MAX } else { *end };
        slice(line, *start, end).trim().to_owned()
    });
    cells.collect()
}

/// `squeue -o "%i %P %j"`: without padding, a row has exactly as many spaces as its header unless a value contains one.
fn single_spaces(columns: usize, rows: &[&str]) -> Option<Vec<Vec<String>>> {
    let rows = rows.iter().map(|row| {
        let values: Vec<String> = row.split(' ').map(str::to_owned).collect();
        (values.len() == columns).then_some(values)
    });
    rows.collect()
}

/// Start and end of each word, in bytes, as Slurm counts when it pads.
fn tokens(line: &str) -> Vec<(usize, usize)> {
    let base = line.as_ptr() as usize;
    line.split_whitespace()
        .map(|token| {
            let start = token.as_ptr() as usize - base;
            (start, start + token.len())
        })
        .collect()
}

/// The existing bytes from `start` to `end`; a character across the edge belongs to the left.
fn slice(line: &str, start: usize, end: usize) -> &str {
    let edge = |at: usize| line.ceil_char_boundary(at.min(line.len()));
    &line[edge(start)..edge(end)]
}

struct Table<'a> {
    names: &'a [(usize, usize)],
    rows: &'a [&'a str],
    /// The header begins with a blank, which only left padding causes.
    padded_left: bool,
    /// Every value begins where its name does, as in `squeue -O`, which has no separator between columns.
    fixed: bool,
}

impl Table<'_> {
    /// Start of the column right of `left`.
    fn boundary(&self, left: usize) -> Option<usize> {
        let (end, start) = (self.names[left].1, self.names[left + 1].0);
        let uncut: Vec<usize> = (end..=start).filter(|at| self.cuts_no_token(*at)).collect();
        let right_aligned = uncut.contains(&end) && self.is_right_aligned(left);
        let same = |from: usize, to: usize| self.rows.iter().all(|row| is_blank(row, from, to));
        if self.fixed {
            // A value as wide as its column touches the next.
            return (!right_aligned || same(end, start)).then_some(start);
        }
        let (first, last) = (*uncut.first()?, *uncut.last()?);
        if same(first, last) {
            return Some(first);
        }
        let left_aligned = uncut.contains(&start) && self.is_left_aligned(left + 1);
        match (right_aligned, left_aligned) {
            (true, true) if self.padded_left => Some(end),
            (true, false) => Some(end),
            (false, true) => Some(start),
            _ => None,
        }
    }

    fn cuts_no_token(&self, at: usize) -> bool {
        let cuts = |row: &&str| !is_blank(row, at - 1, at) && !is_blank(row, at, at + 1);
        !self.rows.iter().any(cuts)
    }

    /// True if every value begins where the name begins.
    fn is_left_aligned(&self, column: usize) -> bool {
        let start = self.names[column].0;
        let next = self.names.get(column + 1).map_or(usize::MAX, |next| next.0);
        let begins = |row: &&str| !is_blank(row, start, start + 1) || is_blank(row, start, next);
        self.rows.iter().all(begins)
    }

    /// True if every value ends where the name ends, before a blank.
    fn is_right_aligned(&self, column: usize) -> bool {
        let end = self.names[column].1;
        let before = column
            .checked_sub(1)
            .map_or(0, |before| self.names[before].1);
        let ends = |row: &&str| {
            is_blank(row, end, end + 1)
                && (!is_blank(row, end - 1, end) || is_blank(row, before, end))
        };
        self.rows.iter().all(ends)
    }
}

/// True if these bytes are blanks or beyond the row's end.
fn is_blank(row: &str, start: usize, end: usize) -> bool {
    let bytes = row.as_bytes();
    let (start, end) = (start.min(bytes.len()), end.min(bytes.len()));
    bytes[start..end].iter().all(|byte| *byte == b' ')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(header: &str, row: &str, expected: &[&str]) {
        let rows = cut(header, &[row]).unwrap();
        assert_eq!(rows, [expected], "{header:?} {row:?}");
    }

    #[test]
    fn columns_to_the_right_and_to_the_left_are_cut() {
        check(
            "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
            "            510001       cpu    a b c    alice  R       0:03      1 n1",
            &["510001", "cpu", "a b c", "alice", "R", "0:03", "1", "n1"],
        );
        // squeue -O: 20 bytes each, and nothing between them.
        check(
            "JOBID               NAME                PARTITION           STATE               ",
            "510003              averyveryverylongnamcpu                 PENDING             ",
            &["510003", "averyveryverylongnam", "cpu", "PENDING"],
        );
        check(
            "JOBID               NAME                PARTITION           STATE               ",
            "510001              a b c               cpu                 RUNNING             ",
            &["510001", "a b c", "cpu", "RUNNING"],
        );
        check(
            "JOBID   NAME  ST   REASON              ",
            "510003  averyvPD   JobHeldUser         ",
            &["510003", "averyv", "PD", "JobHeldUser"],
        );
        check(
            "JOBID NAME ST",
            "510003 averylongname PD",
            &["510003", "averylongname", "PD"],
        );
    }

    #[test]
    fn ambiguous_columns_are_refused() {
        // squeue -o "%i %j %t" with a name of two words: to which column does "b" belong?
        assert!(cut("JOBID NAME ST", &["510003 a b PD"]).is_err());
        // squeue -O: is "aa0A" one value, or a full column and the next?
        let header = "JOBID       NAME      STATE";
        let error = cut(header, &["a00aa0      0a 0 0 aa0A"]).unwrap_err();
        assert_eq!(
            (error.left.as_str(), error.right.as_str()),
            ("NAME", "STATE")
        );
    }

    proptest! {
        #[test]
        fn a_padded_table_comes_back_or_is_refused(
            cells in proptest::collection::vec(("[a-z0-9]{1,7}( [a-z]{1,3})?", "[a-z0-9 ]{0,14}", "[A-Z]{1,9}"), 1..6),
            left in any::<bool>(),
        ) {
            let line = |a: &str, b: &str, c: &str| match left {
                true => format!("{a:<12.12}{b:<10.10}{c}"),
                false => format!("{a:>12.12} {b:>10.10} {c}"),
            };
            let text: Vec<String> = cells.iter().map(|(a, b, c)| line(a, b, c)).collect();
            let rows: Vec<&str> = text.iter().map(String::as_str).collect();
            if let Ok(found) = cut(&line("JOBID", "NAME", "STATE"), &rows) {
                for ((a, b, c), found) in cells.iter().zip(found) {
                    let cut = |text: &str, width: usize| text[..text.len().min(width)].trim().to_owned();
                    prop_assert_eq!(found, [cut(a, 12), cut(b, 10), c.clone()]);
                }
            }
        }

        #[test]
        fn any_text_is_survived(header in "[A-Z ]{1,30}[A-Z]", rows in proptest::collection::vec(".{0,40}", 0..4)) {
            let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
            drop(cut(&header, &rows));
            drop(ruled(&header, "ä b c"));
        }
    }
}
