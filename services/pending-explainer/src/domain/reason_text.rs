//! Texts about a reason, and parts of their sentences: amounts, durations, lists, and names from outside.

use chrono::{DateTime, Utc};
use slurm_types::HostList;

/// Longest summary, so that it fits into a chat message with other content.
pub const MAX_SUMMARY_CHARS: usize = 300;

/// Longest name from outside (partition, reservation, dependency, …) in a sentence.
const MAX_NAME_CHARS: usize = 48;

/// Texts about a reason.
pub struct ReasonText {
    /// One or two sentences for the owner.
    pub summary: String,
    /// Advice for the owner.
    pub advice: String,
    /// Objects that the reason names.
    pub evidence: Vec<String>,
}

/// Builds a text from a sentence and its advice.
pub fn with_advice(summary: impl Into<String>, advice: impl Into<String>) -> Option<ReasonText> {
    Some(ReasonText {
        summary: summary.into(),
        advice: advice.into(),
        evidence: Vec::new(),
    })
}

/// Adds evidence.
pub fn with(
    reason_text: Option<ReasonText>,
    evidence: impl IntoIterator<Item = String>,
) -> Option<ReasonText> {
    reason_text.map(|mut reason_text| {
        reason_text.evidence.extend(evidence);
        reason_text
    })
}

/// Truncates a text to at most `max` characters, with a mark.
pub fn clip(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(max.saturating_sub(1)).collect();
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// Prepares a name from outside for a sentence: one line, of limited length.
pub fn name(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    clip(line.trim(), MAX_NAME_CHARS)
}

/// `QOS small`, or `the QOS` if the record does not name one.
pub fn named(noun: &str, text: &str) -> String {
    let text = name(text);
    if text.is_empty() {
        format!("the {noun}")
    } else {
        format!("{noun} {text}")
    }
}

/// `reservation course`, or `reservation` if it has no name. Used after "its".
pub fn own(noun: &str, text: &str) -> String {
    format!("{noun} {}", name(text)).trim_end().to_owned()
}

/// Capitalises the first letter.
pub fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

/// `1 CPU`, `4 CPUs`.
pub fn count(amount: u64, one: &str, many: &str) -> String {
    format!("{amount} {}", if amount == 1 { one } else { many })
}

/// The verb for a number of things.
pub const fn verb(amount: u64) -> &'static str {
    if amount == 1 { "is" } else { "are" }
}

/// Formats MiB in the largest unit that stays exact to one decimal.
pub fn memory(mib: u64) -> String {
    match mib {
        0..1024 => format!("{mib} MiB"),
        1024..1_048_576 => tenths(mib, 1024, "GiB"),
        _ => tenths(mib, 1_048_576, "TiB"),
    }
}

fn tenths(amount: u64, unit: u64, unit_name: &str) -> String {
    // Rounded up: 1.5 GiB do not satisfy a request of 1.51 GiB.
    let tenths = amount.saturating_mul(10).div_ceil(unit);
    if tenths.is_multiple_of(10) {
        format!("{} {unit_name}", tenths / 10)
    } else {
        format!("{}.{} {unit_name}", tenths / 10, tenths % 10)
    }
}

/// A duration in its two largest units: `3 d 4 h`, `2 h 5 min`, `45 s`.
pub fn duration(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let Some(first) = UNITS.iter().position(|(size, _)| seconds >= *size) else {
        return "0 s".to_owned();
    };
    let (size, unit_name) = UNITS[first];
    let mut text = format!("{} {unit_name}", seconds / size);
    // Seconds next to minutes would suggest a false precision.
    if let Some((next, unit_name)) = UNITS.get(first + 1).filter(|(next, _)| *next > 1) {
        let rest = seconds % size / next;
        if rest > 0 {
            text.push_str(&format!(" {rest} {unit_name}"));
        }
    }
    text
}

/// A time limit in minutes, or `None` for no limit.
pub fn time_limit(minutes: Option<u32>) -> String {
    minutes.map_or_else(
        || "no time limit".to_owned(),
        |minutes| duration(u64::from(minutes) * 60),
    )
}

/// A moment and its distance from now: `2026-11-22 03:00 UTC (in 2 h)`.
pub fn moment(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let stamp = at.format("%Y-%m-%d %H:%M UTC");
    match u64::try_from((at - now).num_seconds()) {
        Ok(seconds) if seconds > 0 => format!("{stamp} (in {})", duration(seconds)),
        _ => stamp.to_string(),
    }
}

/// `a`, `a and b`, `a, b and 3 more`.
pub fn list(items: &[String], max: usize) -> String {
    let visible = &items[..items.len().min(max)];
    let hidden = items.len() - visible.len();
    match (visible, hidden) {
        ([], _) => String::new(),
        (visible, 0) => match visible.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
            None => String::new(),
        },
        (visible, hidden) => format!("{} and {hidden} more", visible.join(", ")),
    }
}

/// A host list for a sentence: in Slurm's form if short, else its first nodes and the number of the others.
pub fn nodes(text: &str) -> String {
    let text = text.trim();
    if text.chars().count() <= MAX_NAME_CHARS {
        return name(text);
    }
    match HostList::expand(text) {
        Ok(nodes) => list(&nodes.iter().map(|node| name(node)).collect::<Vec<_>>(), 3),
        Err(_) => name(text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_show_their_two_largest_units() {
        let cases = [
            (0, "0 s"),
            (45, "45 s"),
            (60, "1 min"),
            (119, "1 min"),
            (7_500, "2 h 5 min"),
            (7_200, "2 h"),
            (273_600, "3 d 4 h"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn memory_is_never_rounded_down() {
        let cases = [
            (100, "100 MiB"),
            (1024, "1 GiB"),
            (1025, "1.1 GiB"),
            (8192, "8 GiB"),
            (1_572_864, "1.5 TiB"),
        ];
        for (mib, text) in cases {
            assert_eq!(memory(mib), text);
        }
    }

    #[test]
    fn lists_say_how_many_they_leave_out() {
        let items = ["a", "b", "c", "d"].map(str::to_owned);
        assert_eq!(list(&items[..1], 3), "a");
        assert_eq!(list(&items[..3], 3), "a, b and c");
        assert_eq!(list(&items, 2), "a, b and 2 more");
    }

    #[test]
    fn long_host_lists_are_counted() {
        assert_eq!(nodes("n[1-400]"), "n[1-400]");
        let long = "rack1-node[001-099],rack2-node[001-099],rack3-node[001-099]";
        assert_eq!(
            nodes(long),
            "rack1-node001, rack1-node002, rack1-node003 and 294 more"
        );
    }

    proptest! {
        #[test]
        fn clipped_texts_keep_their_bound(text in "\\PC{0,80}", max in 1usize..60) {
            prop_assert!(clip(&text, max).chars().count() <= max);
        }

        #[test]
        fn names_stay_on_one_line(text in ".{0,200}") {
            let name = name(&text);
            prop_assert!(name.chars().count() <= MAX_NAME_CHARS && !name.contains(['\n', '\r', '\t']));
        }
    }
}
