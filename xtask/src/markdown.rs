//! Tables of the generated Markdown pages.

use std::fmt::Write as _;

pub fn row(table: &mut String, cells: &[&str]) {
    writeln!(table, "| {} |", cells.join(" | ")).expect("writing to a string does not fail");
}

/// Escapes text for a table cell: placeholders like `<path>` are not HTML.
pub fn cell(text: &str) -> String {
    let mut is_code = false;
    let mut cell = String::new();
    for c in text.chars() {
        is_code ^= c == '`';
        match c {
            '|' => cell.push_str("\\|"),
            '<' if !is_code => cell.push_str("&lt;"),
            c => cell.push(c),
        }
    }
    cell
}
