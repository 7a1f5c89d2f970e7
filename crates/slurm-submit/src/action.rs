//! Actions on existing jobs.

use serde::{Deserialize, Serialize};

use crate::FieldError;
use crate::fields::{check_count, check_hostlist, check_mib, check_minutes, check_name};

/// An action on a job, as its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// `scontrol requeue`
    Requeue,
    /// `scontrol requeuehold`: back into the queue, held, so that it can be changed before it is released.
    RequeueHold,
    /// `scontrol hold`
    Hold,
    /// `scontrol release`
    Release,
    /// `scancel`
    Cancel,
    /// `scancel --signal`
    Signal {
        /// Name or number: `USR1`, `10`.
        signal: String,
        /// To the batch script only, not to the steps.
        batch: bool,
    },
    /// `scontrol update`
    Update(JobUpdate),
}

impl Action {
    /// Checks the values.
    ///
    /// # Errors
    /// Names the first field that is not acceptable.
    pub fn validate(&self) -> Result<(), FieldError> {
        match self {
            Self::Signal { signal, .. } => {
                let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
                match (1..=12).contains(&signal.len()) && signal.chars().all(plain) {
                    true => Ok(()),
                    false => Err(FieldError::new(
                        "signal",
                        "expected a name or number, as USR1 or 10",
                    )),
                }
            }
            Self::Update(update) => update.validate(),
            Self::Requeue | Self::RequeueHold | Self::Hold | Self::Release | Self::Cancel => Ok(()),
        }
    }
}

/// New values of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobUpdate {
    /// Time limit in minutes.
    pub time: Option<u32>,
    /// Memory per node in MiB.
    pub memory: Option<u64>,
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Partition.
    pub partition: Option<String>,
    /// Nodes not to run on.
    pub exclude: Option<String>,
}

impl JobUpdate {
    fn validate(&self) -> Result<(), FieldError> {
        if *self == Self::default() {
            return Err(FieldError::new("update", "it changes nothing"));
        }
        self.time
            .map_or(Ok(()), |time| check_minutes("time", time))?;
        self.memory.map_or(Ok(()), |mib| check_mib("memory", mib))?;
        self.nodes
            .map_or(Ok(()), |count| check_count("nodes", count))?;
        self.partition
            .as_ref()
            .map_or(Ok(()), |name| check_name("partition", name))?;
        self.exclude
            .as_ref()
            .map_or(Ok(()), |nodes| check_hostlist("exclude", nodes))
    }
}

/// Result of an action on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acted {
    /// Done, or already so.
    Done,
    /// The controller has no such job.
    Absent,
    /// The job has another key: nothing was done.
    OtherKey,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_values_are_refused_by_name() {
        let update = |change: fn(&mut JobUpdate)| {
            let mut update = JobUpdate::default();
            change(&mut update);
            Action::Update(update)
        };
        let signal = |signal: &str| Action::Signal {
            signal: signal.to_owned(),
            batch: false,
        };
        for (action, field) in [
            (signal("USR1 --user=bob"), "signal"),
            (signal(""), "signal"),
            (update(|_| ()), "update"),
            (update(|update| update.time = Some(0)), "time"),
            (update(|update| update.memory = Some(0)), "memory"),
            (update(|update| update.nodes = Some(0)), "nodes"),
            (
                update(|update| update.partition = Some("cpu Account=x".to_owned())),
                "partition",
            ),
            (
                update(|update| update.exclude = Some("n1 UserId=0".to_owned())),
                "exclude",
            ),
        ] {
            let error = action.validate().expect_err(field);
            assert_eq!(error.field, field);
        }
        assert_eq!(signal("USR1").validate(), Ok(()));
    }
}
