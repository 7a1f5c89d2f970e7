//! Classifies costs by the outcome of the run.

use std::fmt;

/// Class of a run's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The run ended COMPLETED.
    Completed,
    /// It ended otherwise.
    NotCompleted,
    /// It has not ended.
    Open,
}

impl Class {
    /// Class of a run in this Slurm state.
    ///
    /// Accounting writes `CANCELLED by 1000`, and full forms append flags (`RUNNING,CONFIGURING`), so only the first word counts. An
    /// unknown state (of a later Slurm) counts as not completed, because it has no known result.
    pub fn of_state(state: &str) -> Self {
        match state.split([' ', ',', '+']).next().unwrap_or_default() {
            "COMPLETED" => Self::Completed,
            // STOPPED keeps its CPUs. RESIZING closes one accounting record and opens the next. Both runs continue.
            "PENDING" | "RUNNING" | "SUSPENDED" | "STOPPED" | "RESIZING" | "CONFIGURING"
            | "COMPLETING" | "SIGNALING" | "STAGE_OUT" => Self::Open,
            _ => Self::NotCompleted,
        }
    }

    /// Class of a stored final cost.
    pub fn of_final(name: &str) -> Self {
        if name == Self::Completed.as_str() {
            Self::Completed
        } else {
            Self::NotCompleted
        }
    }

    /// Name in cost events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::NotCompleted => "not_completed",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_completed_is_completed() {
        for (state, class) in [
            ("COMPLETED", Class::Completed),
            ("CANCELLED by 1000", Class::NotCompleted),
            ("REQUEUED", Class::NotCompleted),
            ("NODE_FAIL", Class::NotCompleted),
            ("SOME_NEW_STATE", Class::NotCompleted),
            ("RUNNING,CONFIGURING", Class::Open),
            ("SUSPENDED", Class::Open),
        ] {
            assert_eq!(Class::of_state(state), class, "{state}");
        }
    }
}
