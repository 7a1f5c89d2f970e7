//! `Key=value Key=value …` lines of `scontrol -o`.

/// The `Key=value` words of a text that belongs to Slurm. A word without `=` belongs to the value before it, so values may contain spaces
/// (`OS=Linux 6.1 #1 SMP`).
pub(crate) fn pairs(text: &str) -> Vec<(&str, &str)> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    // End of the last value in `text`, to extend it.
    let mut value_start = 0;
    for (at, token) in tokens(text) {
        match token.split_once('=').filter(|(key, _)| is_key(key)) {
            Some((key, value)) => {
                value_start = at + key.len() + 1;
                pairs.push((key, value));
            }
            None => {
                if let Some((_, value)) = pairs.last_mut() {
                    *value = &text[value_start..at + token.len()];
                }
            }
        }
    }
    pairs
}

fn tokens(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let base = text.as_ptr() as usize;
    text.split_ascii_whitespace()
        .map(move |token| (token.as_ptr() as usize - base, token))
}

/// Keys look like `JobId`, `CPUs/Task`, `ReqB:S:C:T`, `JOB_GRES`, `MCS_label`.
fn is_key(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_uppercase())
        && token
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"/:_-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_may_hold_spaces_and_equal_signs() {
        assert_eq!(
            pairs(" OS=Linux 6.1 #1 SMP  TRES=cpu=1,mem=2M CPUs/Task=1 Empty= Last=x "),
            [
                ("OS", "Linux 6.1 #1 SMP"),
                ("TRES", "cpu=1,mem=2M"),
                ("CPUs/Task", "1"),
                ("Empty", ""),
                ("Last", "x")
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(?s).*") {
            let _ = pairs(&text);
        }
    }
}
