//! The shape of what Slurm printed, which reveals nothing of a job or a person.

/// Longest example.
const MAX_EXAMPLE_CHARS: usize = 120;

/// The shape of a text: runs of letters become `x`, runs of digits `0`, other characters stay.
pub(crate) fn shape(text: &str) -> String {
    let mut shape = String::new();
    let mut last = None;
    for c in text.chars() {
        let c = match c {
            _ if c.is_ascii_digit() => '0',
            _ if c.is_ascii_graphic() && !c.is_ascii_alphabetic() => c,
            _ if c.is_whitespace() => ' ',
            '\x1f' => '|',
            _ => 'x',
        };
        if Some(c) == last && matches!(c, 'x' | '0' | ' ') {
            continue;
        }
        if shape.len() == MAX_EXAMPLE_CHARS {
            shape.push('\u{2026}');
            break;
        }
        shape.push(c);
        last = Some(c);
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_contains_columns_but_no_values() {
        assert_eq!(
            shape("7|ml|alice.o'hara|/home/alice|2026-11-25T01:22:07|Ä ß|50%"),
            "0|x|x.x'x|/x/x|0-0-0x0:0:0|x x|0%"
        );
        assert_eq!(shape("12\x1falice\x1f\x1f"), "0|x||");
        assert_eq!(
            shape(&"a|".repeat(1_000)).chars().count(),
            MAX_EXAMPLE_CHARS + 1
        );
    }
}
