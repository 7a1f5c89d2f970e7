//! Pure: which rules an event fires, what they do, and what forbids it. No IO, no clock, no randomness.

pub mod action;
pub mod approval;
pub mod array;
pub mod budget;
pub mod event_job;
pub mod firing;
pub mod guards;
pub mod index;
pub mod intent;
pub mod message;
pub mod notice;
pub mod planned_action;
pub mod recorded;
pub mod retry;
pub mod rule;
pub mod schedule;
pub mod signature;
pub mod source;
