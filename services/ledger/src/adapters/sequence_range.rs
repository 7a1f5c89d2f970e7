//! A range of ledger sequences.

use crate::domain::query::Query;

/// An inclusive range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SequenceRange {
    pub from: Option<i64>,
    pub to: Option<i64>,
}

impl SequenceRange {
    /// Returns the range after the cursor of a query.
    pub(super) fn beyond(query: &Query) -> Self {
        match query.after {
            Some(after) if query.descending => Self {
                to: Some(after.saturating_sub(1)),
                from: None,
            },
            after => Self {
                from: after.map(|after| after.saturating_add(1)),
                to: None,
            },
        }
    }
    pub(super) fn contains(self, other: Self) -> bool {
        let begins = self.from.is_none_or(|from| other.from >= Some(from));
        begins
            && self
                .to
                .is_none_or(|to| other.to.is_some_and(|other| other <= to))
    }

    /// Limits the range to the entries of a ledger.
    pub(super) fn up_to(self, head: i64) -> Self {
        self.and(Self {
            from: Some(1),
            to: Some(head),
        })
    }

    /// True if the range contains no sequence.
    pub(super) fn is_empty(self) -> bool {
        matches!((self.from, self.to), (Some(from), Some(to)) if from > to)
    }

    /// Returns the smallest range that contains all given ranges, or `None` if there are none.
    pub(super) fn around(ranges: &[Self]) -> Option<Self> {
        Some(Self {
            from: ranges.iter().map(|range| range.from).min()?,
            to: ranges.iter().map(|range| range.to).max()?,
        })
    }

    /// Returns the intersection.
    pub(super) fn and(self, other: Self) -> Self {
        let lower = [self.to, other.to].into_iter().flatten().min();
        Self {
            from: self.from.max(other.from),
            to: lower,
        }
    }

    /// Returns the first `count` sequences in page order.
    pub(super) fn near(self, count: i64, descending: bool) -> Self {
        let (from, to) = if descending {
            (self.to.map(|to| to.saturating_sub(count)), None)
        } else {
            (None, self.from.map(|from| from.saturating_add(count)))
        };
        self.and(Self { from, to })
    }
}
