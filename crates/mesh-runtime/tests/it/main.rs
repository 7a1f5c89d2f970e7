//! Authentication and limits of an API, over real sockets, with a real OIDC provider.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod connections;
mod leading;
mod oidc;
mod reload;
mod support;
mod tls;
mod unix;
