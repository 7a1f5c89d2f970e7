//! HTTP statuses that count as delivered, if a receiver's owner configures them.

use std::ops::RangeInclusive;

use crate::attempt_outcome::Outcome;

/// Statuses that mean success. If empty, [`Outcome::of_status`] decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuccessCodes(Vec<RangeInclusive<u16>>);

/// Not a status, class or range.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no HTTP status; from 200 to 599, as \"202\", a class, as \"2xx\", or a range, as \"200-204\""
)]
pub struct InvalidCode(String);

impl SuccessCodes {
    /// Parses the configured statuses.
    ///
    /// # Errors
    /// The first that is invalid.
    pub fn parse(written: &[String]) -> Result<Self, InvalidCode> {
        let read = |text: &String| range(text).ok_or_else(|| InvalidCode(text.clone()));
        written.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Adjusts an outcome by the configured statuses.
    ///
    /// A 2xx that is not configured may come from an intermediary, so it is retried. Other statuses keep their
    /// meaning.
    pub fn judge(&self, outcome: Outcome, status: u16) -> Outcome {
        if self.0.is_empty() {
            return outcome;
        }
        let success = self.0.iter().any(|range| range.contains(&status));
        match outcome {
            _ if success => Outcome::Delivered,
            Outcome::Delivered => Outcome::Retry { after: None },
            other => other,
        }
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let status = |text: &str| {
        let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        let status = digits.then(|| text.parse().ok()).flatten()?;
        (200..600).contains(&status).then_some(status)
    };
    if let Some(class) = text.strip_suffix("xx") {
        let first = status(&format!("{class}00"))?;
        return Some(first..=first + 99);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (status(first)?, status(last)?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn codes(written: &[&str]) -> Result<SuccessCodes, InvalidCode> {
        SuccessCodes::parse(&written.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn statuses_classes_and_ranges_are_read() {
        let some = codes(&["202", "3xx", "404-410"]).unwrap();
        let judge = |status| some.judge(Outcome::of_status(status, None), status);
        for status in [202, 300, 399, 404, 410] {
            assert_eq!(judge(status), Outcome::Delivered, "{status}");
        }
        for status in [200, 204, 503] {
            assert_eq!(judge(status), Outcome::Retry { after: None }, "{status}");
        }
        assert!(matches!(judge(400), Outcome::Permanent { .. }));
        for text in [
            "", "2", "20", "2x", "1xx", "6xx", "99", "600", "-", "200-", "-200", "300-200", "0200",
            "+20", "abc", "2xx-3xx",
        ] {
            let error = codes(&["200", text]).unwrap_err();
            assert_eq!(error, InvalidCode(text.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn without_any_nothing_changes_and_with_2xx_neither(status in 100u16..600) {
            let outcome = Outcome::of_status(status, None);
            for written in [vec![], vec!["2xx"]] {
                prop_assert_eq!(codes(&written).unwrap().judge(outcome.clone(), status), outcome.clone());
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9x-]{0,8}") {
            if let Ok(codes) = codes(&[&text]) {
                let hit = (200..600).filter(|status| codes.0[0].contains(status)).count();
                prop_assert!(hit > 0 && codes.0[0].start() >= &200 && codes.0[0].end() < &600);
            }
        }
    }
}
