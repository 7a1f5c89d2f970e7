//! The API of a service: authentication, permissions, audit of reads, and error responses, for REST and gRPC.
//!
//! - [`Caller`] is an authenticated caller; its functions decide what may be seen and done.
//! - [`AuditedRead`] records the data of others in a response; it is audited before the response is sent.
//! - [`openapi`] and [`grpc`] hold what the services' descriptions and adapters share.
//! - `auth` authenticates: `tokens` of services, tokens of `oidc` issuers, peers of the Unix socket.

mod auth;
mod auth_state;
mod caller;
mod connection_limits;
mod coordinators_bucket;
mod forwarded_for;
pub mod grpc;
mod log_filter;
pub(crate) mod metrics;
mod metrics_format;
mod oidc;
pub mod openapi;
mod peer;
mod problem;
mod read_audit;
mod requests;
mod server;
mod tls;
mod tokens;

pub(crate) use auth_state::AuthState;
pub use caller::{AccountsByCluster, AuthMethod, Caller, Role, Visibility};
pub(crate) use coordinators_bucket::Coordinators;
pub use coordinators_bucket::{AccountParent, Coordinator};
pub use metrics_format::{OPENMETRICS, PROMETHEUS_TEXT, accepts_openmetrics};
pub use oidc::{OidcConfig, UserClaim};
pub use problem::{Problem, log_unavailable};
pub(crate) use read_audit::audited;
pub use read_audit::{AuditedRead, AuditedStream};
pub(crate) use server::{Endpoints, serve};
pub use tokens::TokenConfig;
