//! gRPC stubs of the services' query APIs; the messages are in `mesh-events`.

/// Generated from `proto/` by `cargo xtask codegen`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
#[rustfmt::skip]
pub mod ledger {
    include!("generated/mesh.ledger.v1.rs");
}

/// Generated from `proto/` by `cargo xtask codegen`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
#[rustfmt::skip]
pub mod webhook {
    include!("generated/mesh.webhook.v1.rs");
}
