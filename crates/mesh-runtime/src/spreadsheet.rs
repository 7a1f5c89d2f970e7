//! Texts in CSV tables that people open as spreadsheets.

/// A text that no spreadsheet takes for a formula. Spreadsheets evaluate cells that begin like one, and a job may have such a name. A
/// leading apostrophe makes it a text (OWASP, CSV injection).
pub fn harmless_cell(text: String) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        format!("'{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_like_formulas_are_text() {
        for formula in ["=cmd|' /C calc'!A0", "@x", "+1", "-1", "\tx", "\rx"] {
            assert_eq!(harmless_cell(formula.into()), format!("'{formula}"));
        }
        for text in ["a=b", "", "x\n=1"] {
            assert_eq!(harmless_cell(text.into()), text);
        }
    }
}
