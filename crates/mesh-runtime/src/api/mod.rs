//! Who may call a service's API, and how it answers when something is wrong.

mod auth;
mod limit;
mod problem;
mod server;

pub use auth::{Caller, Role};
pub use problem::Problem;
pub(crate) use server::{Access, Endpoints, serve};
