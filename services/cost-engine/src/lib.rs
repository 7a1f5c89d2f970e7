//! Stub.
pub mod domain;
pub mod vectors;
