//! Compact sets of tasks.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use roaring::RoaringBitmap;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A set of task indexes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tasks(RoaringBitmap);

impl Tasks {
    /// Adds a task.
    pub fn insert(&mut self, task: u32) {
        self.0.insert(task);
    }

    /// Removes a task.
    pub fn remove(&mut self, task: u32) {
        self.0.remove(task);
    }

    /// True if the set contains the task.
    pub fn contains(&self, task: u32) -> bool {
        self.0.contains(task)
    }

    /// Number of tasks.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tasks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter()
    }

    /// Adds all tasks of another set.
    pub fn add(&mut self, other: &Self) {
        self.0 |= &other.0;
    }

    /// Number of tasks that are in none of the others.
    pub fn len_without<'a>(&self, others: impl Iterator<Item = &'a Self>) -> u64 {
        let mut left = self.0.clone();
        for other in others {
            left -= &other.0;
        }
        left.len()
    }

    /// Ranges in the syntax of `--array`, such as `3,17-19`. Truncated after a whole range, with `…`.
    pub fn ranges(&self, max: usize) -> String {
        let mut text = String::new();
        let mut tasks = self.0.iter().peekable();
        while let Some(first) = tasks.next() {
            let mut last = first;
            while let Some(next) = tasks.next_if(|next| *next == last + 1) {
                last = next;
            }
            let before = text.len();
            let comma = if before == 0 { "" } else { "," };
            // Writing to a string does not fail.
            let written = if first == last {
                write!(text, "{comma}{first}")
            } else {
                write!(text, "{comma}{first}-{last}")
            };
            if written.is_err() || text.len() > max {
                text.truncate(before);
                text.push('…');
                break;
            }
        }
        text
    }
}

impl Serialize for Tasks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut compact = self.0.clone();
        compact.optimize();
        let mut bytes = Vec::with_capacity(compact.serialized_size());
        compact
            .serialize_into(&mut bytes)
            .map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for Tasks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(text).map_err(D::Error::custom)?;
        let mut tasks =
            RoaringBitmap::deserialize_from(bytes.as_slice()).map_err(D::Error::custom)?;
        tasks.remove_run_compression();
        Ok(Self(tasks))
    }
}
