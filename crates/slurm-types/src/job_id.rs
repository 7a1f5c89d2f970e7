//! Job ids and the forms in which Slurm prints them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::task_set::{ParseTaskSetError, TaskSet};

/// Slurm's id of one job record. Every array task that has left the array's record has its own id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(u32);

impl JobId {
    /// An id from its number. Zero is no job id: Slurm uses it for "none".
    pub const fn new(id: u32) -> Option<Self> {
        match id {
            0 | crate::no_val::NO_VAL | crate::no_val::INFINITE => None,
            id => Some(Self(id)),
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = ParseJobRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        number(text)
            .and_then(Self::new)
            .ok_or_else(|| ParseJobRefError::new(text, None))
    }
}

/// A reference to a job as people and commands write it: `123`, `123_4`, `123_[1-5%2]`, `123+1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobRef {
    /// `123`
    Job(JobId),
    /// `123_4`: one task of an array.
    ArrayTask {
        /// Id of the array.
        array: JobId,
        /// Index of the task.
        task: u32,
    },
    /// `123_[1-5%2]`: the tasks that are still in the array's own record.
    ArrayTasks {
        /// Id of the array.
        array: JobId,
        /// The tasks.
        tasks: TaskSet,
    },
    /// `123+1`: a component of a heterogeneous job.
    HetComponent {
        /// Id of the leader.
        leader: JobId,
        /// Position of the component, 0 for the leader.
        offset: u32,
    },
}

impl JobRef {
    /// The first id: the job's, the array's or the leader's.
    pub const fn root(&self) -> JobId {
        match self {
            Self::Job(id)
            | Self::ArrayTask { array: id, .. }
            | Self::ArrayTasks { array: id, .. } => *id,
            Self::HetComponent { leader, .. } => *leader,
        }
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(id) => id.fmt(f),
            Self::ArrayTask { array, task } => write!(f, "{array}_{task}"),
            Self::ArrayTasks { array, tasks } => write!(f, "{array}_[{tasks}]"),
            Self::HetComponent { leader, offset } => write!(f, "{leader}+{offset}"),
        }
    }
}

impl FromStr for JobRef {
    type Err = ParseJobRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |source| ParseJobRefError::new(text, source);
        let trimmed = text.trim();
        if let Some((leader, offset)) = trimmed.split_once('+') {
            let leader = leader.parse()?;
            let offset = number(offset).ok_or_else(|| error(None))?;
            return Ok(Self::HetComponent { leader, offset });
        }
        let Some((array, tasks)) = trimmed.split_once('_') else {
            return trimmed.parse().map(Self::Job);
        };
        let array = array.parse()?;
        if let Some(inner) = tasks
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            let tasks = inner.parse().map_err(|source| error(Some(source)))?;
            return Ok(Self::ArrayTasks { array, tasks });
        }
        let task = number(tasks).ok_or_else(|| error(None))?;
        Ok(Self::ArrayTask { array, task })
    }
}

/// The text is not a job reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read job id {text:?}: expected 123, 123_4, 123_[1-5] or 123+1")]
pub struct ParseJobRefError {
    text: String,
    #[source]
    source: Option<ParseTaskSetError>,
}

impl ParseJobRefError {
    fn new(text: &str, source: Option<ParseTaskSetError>) -> Self {
        Self {
            text: text.chars().take(64).collect(),
            source,
        }
    }
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, root: u32) {
        let parsed: JobRef = text.parse().unwrap();
        assert_eq!(parsed.root().get(), root, "{text}");
        assert_eq!(parsed.to_string(), text);
    }

    #[test]
    fn every_printed_form_is_read() {
        check("123", 123);
        check("123_4", 123);
        check("123_[1-5%2]", 123);
        check("123_[1,3,5,7,9%2]", 123);
        check("123+1", 123);
        for text in [
            "",
            "0",
            "x",
            "1_",
            "_1",
            "1_[",
            "1_[]",
            "+1",
            "1+",
            "4294967294",
            "-1",
            "1_2_3",
            "1 2",
        ] {
            assert!(text.parse::<JobRef>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".*") {
            if let Ok(job) = text.parse::<JobRef>() {
                prop_assert_eq!(job.to_string().parse(), Ok(job));
            }
        }

        #[test]
        fn tasks_round_trip(array in 1_u32..67_108_864, task in 0_u32..4_000_001) {
            let text = format!("{array}_{task}");
            prop_assert_eq!(text.parse::<JobRef>().unwrap().to_string(), text);
        }
    }
}
