//! Checks of the committed OpenAPI descriptions.

use serde::Serialize;

/// Checks that the committed description of a service's API is what its code gives; with `UPDATE_OPENAPI` set, writes it.
///
/// # Panics
/// If it is not, or cannot be written.
pub fn assert_committed_openapi(service: &str, committed: &str, document: &impl Serialize) {
    let mut text = serde_json::to_string_pretty(document).unwrap();
    text.push('\n');
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(committed, &text).unwrap();
    }
    let found = std::fs::read_to_string(committed).unwrap_or_default();
    assert!(
        found == text,
        "services/{service}/openapi.json is not what the code gives; look at what changed, then: UPDATE_OPENAPI=1 cargo test -p {service} --test it openapi"
    );
}
