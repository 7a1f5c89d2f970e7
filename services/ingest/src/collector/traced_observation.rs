//! Observations with their provenance.

use tracing::Span;

use crate::domain::Observation;

/// An observation with its provenance, before it is applied.
#[derive(Clone)]
pub struct TracedObservation {
    /// The observation itself.
    pub observation: Observation,
    /// Digest of the poll's row for which the record was read.
    pub digest: Option<u64>,
    /// Whether no record of Slurm supports it.
    pub inferred: bool,
    /// Spans of the doorbells that led to it.
    pub links: Vec<Span>,
}

impl TracedObservation {
    /// Creates an observation without a doorbell.
    pub const fn new(observation: Observation) -> Self {
        Self {
            observation,
            digest: None,
            inferred: false,
            links: Vec::new(),
        }
    }
}
