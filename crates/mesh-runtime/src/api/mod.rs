//! Who may call a service's API, what they may see, and how it answers when something is wrong. One module for every API, REST and gRPC.
//!
//! - [`Caller`] is who calls; every service decides by its functions what may be seen and done.
//! - [`AuditedRead`] is what an answer shows of others; it is written into the audit before it is shown.
//! - [`openapi`] and [`grpc`] are what descriptions and adapters of every service share.
//! - `auth` finds out who calls: `tokens` of services, tokens of `oidc` issuers, peers of the Unix socket.

mod access;
mod auth;
mod caller;
mod coordinators;
pub mod grpc;
mod limit;
pub(crate) mod metrics;
mod oidc;
pub mod openapi;
mod problem;
mod proxy;
mod reads;
mod server;
mod tokens;

pub(crate) use access::Access;
pub use caller::{AccountsByCluster, AuthMethod, Caller, Role, Visibility};
pub use coordinators::Coordinator;
pub(crate) use coordinators::Coordinators;
pub use oidc::{OidcConfig, UserClaim};
pub use problem::Problem;
pub(crate) use reads::audited;
pub use reads::{AuditedRead, AuditedStream};
pub(crate) use server::{Endpoints, serve};
pub use tokens::TokenConfig;
