//! Protobuf messages in stored JSON, as base64. They are small, and an older reader ignores later fields.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

/// Serializes a message.
pub fn serialize<M: prost::Message, S: Serializer>(
    message: &M,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(message.encode_to_vec()))
}

/// Deserializes a message.
pub fn deserialize<'de, M: prost::Message + Default, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<M, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
    M::decode(bytes.as_slice()).map_err(D::Error::custom)
}
