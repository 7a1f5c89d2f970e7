//! The controllers' report on themselves.

/// Status of the controllers, by their own report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ping {
    /// True if one of them is up.
    pub up: bool,
    /// Lines as `scontrol ping` prints them: `Slurmctld(primary) at vm is UP`.
    pub lines: Vec<String>,
}
