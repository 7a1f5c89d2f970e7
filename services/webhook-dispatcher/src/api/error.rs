//! Refusals of the Webhooks API. REST and gRPC give each its status.

use crate::config::{Fault, one_line};
use crate::error::Error;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The endpoint does not exist, or the caller may not see it.
    #[error("no webhook {0:?}; GET /v1/webhooks lists them, and another user's is OWNER/NAME")]
    NotFound(String),
    /// The delivery does not exist, or its retention has ended.
    #[error("no delivery {0:?} at this webhook")]
    NoDelivery(String),
    /// The caller lacks the permission.
    #[error("{0}")]
    Forbidden(String),
    /// The endpoint's current state does not permit it.
    #[error("{0}")]
    Conflict(String),
    /// The request is invalid.
    #[error("{}", one_line(.0))]
    Invalid(Vec<Fault>),
    /// A limit is reached for the moment.
    #[error("{problem}; try again in {after} s")]
    TooMany {
        /// The limit that is reached.
        problem: String,
        /// Seconds until the request may be repeated.
        after: u64,
    },
    /// The operator must configure something first.
    #[error("{0}")]
    Unprepared(String),
    /// Internal error.
    #[error(transparent)]
    Internal(#[from] Error),
}

impl ApiError {
    pub(super) fn invalid(key: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid(vec![Fault::new(key, problem)])
    }

    /// The refusal for an error about a key.
    pub(super) fn of<E: ToString>(key: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::invalid(key, error.to_string())
    }
}
