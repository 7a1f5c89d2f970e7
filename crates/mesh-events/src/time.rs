//! Protobuf timestamps.

use chrono::{DateTime, Utc};
use pbjson_types::Timestamp;

/// A protobuf timestamp of a moment.
pub fn timestamp(time: DateTime<Utc>) -> Timestamp {
    Timestamp {
        seconds: time.timestamp(),
        nanos: time.timestamp_subsec_nanos().cast_signed(),
    }
}

/// The moment of a protobuf timestamp; `None` if it is out of range.
pub fn from_timestamp(time: &Timestamp) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(time.seconds, time.nanos.try_into().ok()?)
}
