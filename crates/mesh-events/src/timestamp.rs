//! Protobuf timestamps.

use chrono::{DateTime, Utc};
use pbjson_types::Timestamp;

/// Converts a time to a protobuf timestamp.
pub fn timestamp(time: DateTime<Utc>) -> Timestamp {
    Timestamp {
        seconds: time.timestamp(),
        nanos: time.timestamp_subsec_nanos().cast_signed(),
    }
}

/// Converts a protobuf timestamp to a time; `None` if it is out of range.
pub fn from_timestamp(time: &Timestamp) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(time.seconds, time.nanos.try_into().ok()?)
}
