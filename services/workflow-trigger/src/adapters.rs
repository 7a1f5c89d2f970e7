//! The database.

pub mod api_rules;
pub mod approvals;
pub mod arrays;
pub mod budgets;
pub mod bus;
pub mod copies;
pub mod ends;
pub mod intents;
pub mod outbox;
pub mod plan;
pub mod progress;
pub mod replaced;
pub mod restored;
pub mod rule_states;
pub mod schedules;
pub mod store;
