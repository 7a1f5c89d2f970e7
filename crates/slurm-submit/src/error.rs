//! Errors: of a field, and of a request to Slurm.

use serde::{Deserialize, Serialize};

/// A field of a submission or an update is not acceptable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Name of the field, as in [`JobFields::set`](crate::JobFields::set); `args[2]`, `environment.NAME`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

/// Why a request has no result. Only the first two mean that nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum SubmitError {
    /// Refused, by Slurm or by the submitter. The same request will be refused again.
    #[error("refused: {words}")]
    Refused {
        /// Slurm's words, or ours.
        words: String,
        /// Slurm's error number, where it is known.
        errno: Option<u32>,
    },
    /// Not done: Slurm could not be reached, or refuses at present. A retry may succeed.
    #[error("not done, retry later: {words}")]
    Transient {
        /// Slurm's words, or ours.
        words: String,
    },
    /// It may have been done, now or in the next minutes. Never submit again without looking for the key, and never release a job that was
    /// not recorded.
    #[error("unknown whether it was done: {words}")]
    Unknown {
        /// What happened.
        words: String,
    },
}

impl SubmitError {
    pub(crate) fn refused(words: impl Into<String>) -> Self {
        Self::Refused {
            words: words.into(),
            errno: None,
        }
    }

    pub(crate) fn transient(words: impl Into<String>) -> Self {
        Self::Transient {
            words: words.into(),
        }
    }

    pub(crate) fn unknown(words: impl Into<String>) -> Self {
        Self::Unknown {
            words: words.into(),
        }
    }

    /// Label for metrics, from a small closed set.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Transient { .. } => "transient",
            Self::Unknown { .. } => "unknown",
        }
    }
}

impl From<FieldError> for SubmitError {
    fn from(error: FieldError) -> Self {
        Self::refused(error.to_string())
    }
}
