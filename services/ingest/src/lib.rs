//! stub docs
pub mod domain;
