//! Keywords of Slurm and of events: stored as text, held as constants.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use slurm_types::JobBaseState;

/// Slurm's keyword for a state. Empty before a record was read, and for a state that this version does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateName(&'static str);

impl StateName {
    /// Nodes of an earlier run are still being cleaned up.
    pub const COMPLETING: Self = Self("COMPLETING");

    /// Returns the keyword.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl From<JobBaseState> for StateName {
    fn from(base: JobBaseState) -> Self {
        Self(base.name())
    }
}

impl Serialize for StateName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for StateName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'_, str>::deserialize(deserializer)?;
        if name == Self::COMPLETING.0 {
            return Ok(Self::COMPLETING);
        }
        let base = JobBaseState::ALL
            .into_iter()
            .find(|base| base.name() == name);
        Ok(base.map(Self::from).unwrap_or_default())
    }
}

/// Serializes the event type of a run's end as its last word; empty if there is none.
pub(super) mod end {
    use std::borrow::Cow;

    use mesh_events::EventType;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(in super::super) fn serialize<S: Serializer>(
        event: &Option<EventType>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(event.map_or("", EventType::event))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<EventType>, D::Error> {
        let name = Cow::<'_, str>::deserialize(deserializer)?;
        let mut kinds = EventType::ALL.iter().copied();
        Ok(kinds.find(|kind| kind.is_end() && kind.event() == name))
    }
}
