//! Who may call a service's API, and how it answers when something is wrong.

mod auth;
mod caller;
mod limit;
mod problem;
mod server;

pub use caller::{Accounts, Caller, Means, Role, Sight};
pub use problem::Problem;
pub(crate) use server::{Access, Endpoints, serve};
