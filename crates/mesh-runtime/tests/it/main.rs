//! Who may call an API, over real sockets, with a real OIDC provider.

mod oidc;
mod support;
mod unix;
