//! Fields that few runs have, in a separate allocation that other runs do without.

use std::ops::{Deref, DerefMut};

use mesh_events::is_default;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::End;

/// Fields that most runs lack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RareFields {
    /// Time of the last published suspend, in Unix seconds.
    #[serde(rename = "sp", default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<i64>,
    /// Time of the last published resume, in Unix seconds.
    #[serde(rename = "rs", default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<i64>,
    /// Seconds that it was running before the last suspend, as far as that was seen.
    #[serde(rename = "ps", default, skip_serializing_if = "Option::is_none")]
    pub ran: Option<i64>,
    /// Times of published resizes, in Unix seconds.
    #[serde(rename = "rz", default, skip_serializing_if = "Vec::is_empty")]
    pub resized: Vec<i64>,
    /// Number of published corrections.
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    pub corrections: u64,
    /// End as first published, if a record has changed it since.
    #[serde(rename = "fe", default, skip_serializing_if = "Option::is_none")]
    pub first_end: Option<End>,
    /// Seconds waited for its usage, its canceller or its submitted tasks since accounting's first answer.
    #[serde(rename = "uw", default, skip_serializing_if = "is_default")]
    pub waited_for_accounting: u64,
    /// Tasks that an array's own record still has, in Slurm's notation.
    #[serde(rename = "tk", default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<String>,
    /// Tasks that left the array's record and were not seen since.
    #[serde(rename = "lf", default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
    /// Tasks whose cancellation was published before accounting was asked about the submission, which lists them again.
    #[serde(rename = "cx", default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<String>,
    /// Unix second in the id of the last cancellation of single tasks. Two in one second would have one id.
    #[serde(rename = "cs", default, skip_serializing_if = "Option::is_none")]
    pub cancelled_at: Option<i64>,
    /// Whether no record has shown the published start.
    #[serde(rename = "bi", default, skip_serializing_if = "is_default")]
    pub start_is_inferred: bool,
}

static NONE: RareFields = RareFields {
    suspended: None,
    resumed: None,
    ran: None,
    resized: Vec::new(),
    corrections: 0,
    first_end: None,
    waited_for_accounting: 0,
    remaining: None,
    left: None,
    cancelled: None,
    cancelled_at: None,
    start_is_inferred: false,
};

/// A [`RareFields`] that takes only a pointer while it is empty.
#[derive(Clone, Debug, Default)]
pub struct RareFieldsBox(Option<Box<RareFields>>);

impl RareFieldsBox {
    /// Whether nothing is allocated.
    #[cfg(test)]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Frees an empty allocation.
    pub fn shrink(&mut self) {
        if **self == NONE {
            self.0 = None;
        }
    }
}

impl Deref for RareFieldsBox {
    type Target = RareFields;

    fn deref(&self) -> &RareFields {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for RareFieldsBox {
    fn deref_mut(&mut self) -> &mut RareFields {
        self.0.get_or_insert_default()
    }
}

impl From<RareFields> for RareFieldsBox {
    fn from(state: RareFields) -> Self {
        let mut rare = Self(Some(Box::new(state)));
        rare.shrink();
        rare
    }
}

impl PartialEq for RareFieldsBox {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for RareFieldsBox {}

impl Serialize for RareFieldsBox {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RareFieldsBox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RareFields::deserialize(deserializer).map(Self::from)
    }
}
