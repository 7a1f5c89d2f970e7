//! The short differential test, on a real Slurm cluster. Requires root.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod soak;
