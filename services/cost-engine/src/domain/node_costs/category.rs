//! What a node is doing, and the categories of its cost.

/// What a node is doing, apart from its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeState {
    /// Usable.
    Active,
    /// Usable and kept free for a waiting job.
    Planned,
    /// Being powered up.
    Booting,
    /// Being powered down.
    PoweringDown,
    /// Powered down, and paid for: not a cloud node.
    PoweredDown,
    /// A cloud node that is powered down, or a removed node: it costs nothing.
    Off,
    /// No new runs; the present ones go on.
    Draining,
    /// No runs.
    Drained,
    /// Not usable.
    Down,
    /// In a maintenance reservation.
    Maintenance,
    /// Rebooting.
    Rebooting,
    /// Not watched.
    Unknown,
}

impl NodeState {
    /// All states.
    pub const ALL: [Self; 12] = [
        Self::Active,
        Self::Planned,
        Self::Booting,
        Self::PoweringDown,
        Self::PoweredDown,
        Self::Off,
        Self::Draining,
        Self::Drained,
        Self::Down,
        Self::Maintenance,
        Self::Rebooting,
        Self::Unknown,
    ];

    /// Name in the database and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Planned => "planned",
            Self::Booting => "booting",
            Self::PoweringDown => "powering_down",
            Self::PoweredDown => "powered_down",
            Self::Off => "off",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Maintenance => "maintenance",
            Self::Rebooting => "rebooting",
            Self::Unknown => "unknown",
        }
    }

    /// True from the power-down on, and for removed nodes.
    pub const fn is_power_down(self) -> bool {
        matches!(self, Self::PoweringDown | Self::PoweredDown | Self::Off)
    }

    /// Parses a name. One of a later version is unknown.
    pub fn from_name(name: &str) -> Self {
        let named = |state: &Self| state.as_str() == name;
        Self::ALL.into_iter().find(named).unwrap_or(Self::Unknown)
    }
}

/// Category of a node's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeCostCategory {
    /// Held by runs.
    Allocated,
    /// Usable and not held.
    Idle,
    /// Kept free for a waiting job.
    Planned,
    /// Powered up, until it was usable.
    Booting,
    /// Not held, from its last run until it was powered down.
    IdleBeforePowerDown,
    /// Powered down, and paid for.
    PoweredDown,
    /// Not held while draining.
    Draining,
    /// Drained.
    Drained,
    /// Not usable.
    Down,
    /// Maintenance.
    Maintenance,
    /// Rebooting.
    Rebooting,
    /// Not watched.
    Unknown,
    /// Negative: the shares of its runs add up to more than the node.
    OverRecovery,
}

impl NodeCostCategory {
    /// All categories.
    pub const ALL: [Self; 13] = [
        Self::Allocated,
        Self::Idle,
        Self::Planned,
        Self::Booting,
        Self::IdleBeforePowerDown,
        Self::PoweredDown,
        Self::Draining,
        Self::Drained,
        Self::Down,
        Self::Maintenance,
        Self::Rebooting,
        Self::Unknown,
        Self::OverRecovery,
    ];

    /// Name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Idle => "idle",
            Self::Planned => "planned",
            Self::Booting => "booting",
            Self::IdleBeforePowerDown => "idle_before_power_down",
            Self::PoweredDown => "powered_down",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Maintenance => "maintenance",
            Self::Rebooting => "rebooting",
            Self::Unknown => "unknown",
            Self::OverRecovery => "over_recovery",
        }
    }

    /// Category of the part that no run holds. `None` if it costs nothing.
    pub(super) const fn of_rest(state: NodeState, before_power_down: bool) -> Option<Self> {
        Some(match state {
            NodeState::Active | NodeState::Planned if before_power_down => {
                Self::IdleBeforePowerDown
            }
            NodeState::Active => Self::Idle,
            NodeState::Planned => Self::Planned,
            NodeState::Booting => Self::Booting,
            NodeState::PoweringDown => Self::IdleBeforePowerDown,
            NodeState::PoweredDown => Self::PoweredDown,
            NodeState::Off => return None,
            NodeState::Draining => Self::Draining,
            NodeState::Drained => Self::Drained,
            NodeState::Down => Self::Down,
            NodeState::Maintenance => Self::Maintenance,
            NodeState::Rebooting => Self::Rebooting,
            NodeState::Unknown => Self::Unknown,
        })
    }
}
