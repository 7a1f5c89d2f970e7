//! The contract as a consumer sees it.

mod json;
mod subjects;
