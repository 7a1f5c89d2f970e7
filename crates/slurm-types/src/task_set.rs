//! Sets of array task indexes: `1-10:2,15%4`, and the bitmap that newer sacct prints.

use std::{collections::BTreeSet, fmt, str::FromStr};

/// Slurm's largest array index is 4 000 000 (`MAX_ARRAY_SIZE`); larger numbers are refused, so a set stays bounded.
pub const MAX_TASK: u32 = 4_000_001;

/// A set of array task indexes and the throttle (`%N`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaskSet {
    tasks: BTreeSet<u32>,
    /// Limit of concurrently running tasks (`%4`).
    pub throttle: Option<u32>,
    /// True if the text ended in `...`: Slurm truncated it (to 64 characters unless `SLURM_BITSTR_LEN` allows more), so tasks are missing.
    pub truncated: bool,
}

/// The text is not a set of tasks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read array tasks {text:?}: {problem}")]
pub struct ParseTaskSetError {
    text: String,
    problem: &'static str,
}

impl TaskSet {
    /// A set of these tasks, without throttle.
    pub fn new(tasks: impl IntoIterator<Item = u32>) -> Self {
        Self {
            tasks: tasks.into_iter().collect(),
            throttle: None,
            truncated: false,
        }
    }

    /// The tasks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.tasks.iter().copied()
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// True if the set has no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// True if the set contains the task.
    pub fn contains(&self, task: u32) -> bool {
        self.tasks.contains(&task)
    }

    /// The tasks of this set that are not in the other, e.g. those that left an array's pending remainder between two polls.
    pub fn difference(&self, other: &Self) -> Self {
        Self::new(self.tasks.difference(&other.tasks).copied())
    }

    /// The tasks that both sets have.
    pub fn intersection(&self, other: &Self) -> Self {
        Self::new(self.tasks.intersection(&other.tasks).copied())
    }

    fn parse_bitmap(
        hex: &str,
        error: impl Fn(&'static str) -> ParseTaskSetError,
    ) -> Result<Self, ParseTaskSetError> {
        if hex.is_empty() || hex.len() > MAX_TASK as usize / 4 + 1 {
            return Err(error("bitmap is empty or too long"));
        }
        let mut tasks = BTreeSet::new();
        for (position, digit) in hex.bytes().rev().enumerate() {
            let bits = (digit as char)
                .to_digit(16)
                .ok_or_else(|| error("bitmap has a character that is not a hex digit"))?;
            let base = u32::try_from(position * 4).map_err(|_| error("bitmap is too long"))?;
            tasks.extend(
                (0..4)
                    .filter(|bit| bits & (1 << bit) != 0)
                    .map(|bit| base + bit),
            );
        }
        Ok(Self {
            tasks,
            throttle: None,
            truncated: false,
        })
    }
}

impl FromStr for TaskSet {
    type Err = ParseTaskSetError;

    /// Parses `1,3,5-9:2%4` or a bitmap `0xC` (sacct of 24.11 and later: bit n is task n).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |problem| ParseTaskSetError {
            text: text.chars().take(64).collect(),
            problem,
        };
        let trimmed = text.trim();
        let (ranges, throttle) = match trimmed.rsplit_once('%') {
            Some((ranges, throttle)) => (
                ranges,
                Some(index(throttle).ok_or_else(|| error("throttle is not a number"))?),
            ),
            None => (trimmed, None),
        };
        if let Some(hex) = ranges.strip_prefix("0x") {
            let set = Self::parse_bitmap(hex, error)?;
            return Ok(Self { throttle, ..set });
        }
        let (ranges, truncated) = match ranges.strip_suffix("...") {
            // A truncated text may end inside a number, so the last item cannot be trusted.
            Some(cut) => (cut.rsplit_once(',').map_or("", |(whole, _)| whole), true),
            None => (ranges, false),
        };
        let mut tasks = Vec::new();
        for range in ranges
            .split(',')
            .filter(|_| !(truncated && ranges.is_empty()))
        {
            let (span, step) = match range.split_once(':') {
                Some((span, step)) => (
                    span,
                    index(step).ok_or_else(|| error("step is not a number"))?,
                ),
                None => (range, 1),
            };
            let (low, high) = match span.split_once('-') {
                Some((low, high)) => (index(low), index(high)),
                None => (index(span), index(span)),
            };
            let (Some(low), Some(high)) = (low, high) else {
                return Err(error("index is not a number"));
            };
            if low > high || high > MAX_TASK || step == 0 {
                return Err(error("range is reversed, too large or has step 0"));
            }
            tasks.extend((low..=high).step_by(step as usize));
            // Slurm writes each task once; a text that repeats large ranges would cost unbounded time.
            if tasks.len() > MAX_TASK as usize + 1 {
                return Err(error("tasks are listed more than once"));
            }
        }
        Ok(Self {
            tasks: tasks.into_iter().collect(),
            throttle,
            truncated,
        })
    }
}

impl fmt::Display for TaskSet {
    /// Writes runs as `low-high`: short, and the same text for equal sets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tasks = self.tasks.iter().copied().peekable();
        let mut first = true;
        while let Some(low) = tasks.next() {
            let mut high = low;
            while tasks.peek() == Some(&(high + 1)) {
                high += 1;
                tasks.next();
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            if high > low {
                write!(f, "{low}-{high}")?;
            } else {
                write!(f, "{low}")?;
            }
        }
        if self.truncated {
            f.write_str(if first { "..." } else { ",..." })?;
        }
        match self.throttle {
            Some(throttle) => write!(f, "%{throttle}"),
            None => Ok(()),
        }
    }
}

fn index(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tasks(text: &str) -> Vec<u32> {
        text.parse::<TaskSet>().unwrap().iter().collect()
    }

    #[test]
    fn ranges_steps_and_throttle_are_read() {
        assert_eq!(tasks("1-10:3,15%4"), [1, 4, 7, 10, 15]);
        assert_eq!("1-10:3,15%4".parse::<TaskSet>().unwrap().throttle, Some(4));
        assert_eq!(tasks("0xC"), [2, 3]);
        assert_eq!(tasks("0x10001"), [0, 16]);
        for text in [
            "", "a", "1-", "5-1", "1,,2", "0x", "0xg", "1:0", "1-5:0", "99999999", "1%",
        ] {
            assert!(text.parse::<TaskSet>().is_err(), "{text}");
        }
    }

    #[test]
    fn repeated_ranges_are_bounded() {
        assert_eq!(tasks("1-3,2-4"), [1, 2, 3, 4]);
        let large = "0-4000000,".repeat(1000) + "1";
        assert!(large.parse::<TaskSet>().is_err());
    }

    #[test]
    fn truncated_text_has_only_complete_items() {
        let set: TaskSet = "1,2,30...".parse().unwrap();
        assert!(set.truncated);
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 2]);
        assert!("...".parse::<TaskSet>().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn format_then_parse_is_identity(
            tasks in proptest::collection::btree_set(0_u32..5000, 1..200), throttle in proptest::option::of(1_u32..100),
        ) {
            let set = TaskSet { throttle, ..TaskSet::new(tasks) };
            prop_assert_eq!(set.to_string().parse::<TaskSet>(), Ok(set));
        }

        #[test]
        fn any_text_is_survived(text in "[0-9x,:%.-]{0,40}") {
            if let Ok(set) = text.parse::<TaskSet>() {
                prop_assert_eq!(set.to_string().parse(), Ok(set));
            }
        }
    }
}
