//! A set of event types.

use std::ops::BitOr;

use mesh_events::EventType;

/// Event types, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeSet(u128);

const _: () = assert!(EventType::ALL.len() <= 128, "a bit for each type");

impl TypeSet {
    /// True if the type is in it.
    pub const fn contains(self, kind: EventType) -> bool {
        self.0 & 1 << kind as u32 != 0
    }

    /// True if no type is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its types, by category.
    pub fn iter(self) -> impl Iterator<Item = EventType> {
        let all = EventType::ALL.iter().copied();
        all.filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<EventType> for TypeSet {
    fn from_iter<T: IntoIterator<Item = EventType>>(types: T) -> Self {
        let types = types.into_iter();
        Self(types.fold(0, |bits, kind| bits | 1 << kind as u32))
    }
}

impl BitOr for TypeSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
