//! HTTP requests to receivers that users name, such as webhooks.
//!
//! - [`Client`] sends a request: one deadline for name resolution, connection, request and response. Redirects are not
//!   followed, proxy settings of the environment are ignored, and at most 16 KiB of a response body are read.
//! - [`address`]: addresses that may be reached. Only global unicast ones are, unless the operator allows a subnet.
//! - [`Network`]: DNS servers, certificate authorities and the egress proxy, as the operator configures them; [`Network::new`] checks the configuration.
//! - [`Failure`]: why there was no response, with a remedy.
//!
//! Deliberately absent: what is sent, signatures, retries.

pub mod address;
mod bypass;
mod client;
mod failure;
mod network;
mod resolver;
mod settings;
mod system;

pub use bypass::{Bypass, InvalidRule, Rule};
pub use client::{Answer, Client, ClientError, Request};
pub use failure::{Failure, FailureKind};
pub use network::{Network, Proxy};
pub use settings::{InvalidSetting, ProxyConfig};
