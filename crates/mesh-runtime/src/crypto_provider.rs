//! The TLS provider of the process.

/// Installs ring as the TLS provider; call it once, before any TLS.
pub fn install_crypto_provider() {
    // A second call finds the provider installed, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
}
