//! Node states: a base state and flags, in every form Slurm prints them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The base state of a node: the low four bits of Slurm's state value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "the names are Slurm's own; data/node_states.tsv describes each"
)]
pub enum NodeBaseState {
    Unknown = 0,
    Down = 1,
    Idle = 2,
    Allocated = 3,
    Error = 4,
    Mixed = 5,
    Future = 6,
}

impl NodeBaseState {
    /// Every base state with Slurm's keyword.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Unknown, "UNKNOWN"),
        (Self::Down, "DOWN"),
        (Self::Idle, "IDLE"),
        (Self::Allocated, "ALLOCATED"),
        (Self::Error, "ERROR"),
        (Self::Mixed, "MIXED"),
        (Self::Future, "FUTURE"),
    ];

    /// Slurm's keyword.
    pub const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// One flag of a node's state; the discriminant is Slurm's bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "the names are Slurm's own; data/node_states.tsv describes each"
)]
pub enum NodeFlag {
    External = 4,
    Reserved = 5,
    Undrain = 6,
    Cloud = 7,
    Resume = 8,
    Drain = 9,
    Completing = 10,
    NotResponding = 11,
    PoweredDown = 12,
    Fail = 13,
    PoweringUp = 14,
    Maintenance = 15,
    RebootRequested = 16,
    RebootCanceled = 17,
    PoweringDown = 18,
    DynamicFuture = 19,
    RebootIssued = 20,
    Planned = 21,
    InvalidReg = 22,
    PowerDown = 23,
    PowerUp = 24,
    PowerDrain = 25,
    DynamicNorm = 26,
    Blocked = 27,
}

impl NodeFlag {
    /// Every flag with Slurm's keyword, in the order of the bits.
    pub const ALL: [(Self, &'static str); 24] = [
        (Self::External, "EXTERNAL"),
        (Self::Reserved, "RESERVED"),
        (Self::Undrain, "UNDRAIN"),
        (Self::Cloud, "CLOUD"),
        (Self::Resume, "RESUME"),
        (Self::Drain, "DRAIN"),
        (Self::Completing, "COMPLETING"),
        (Self::NotResponding, "NOT_RESPONDING"),
        (Self::PoweredDown, "POWERED_DOWN"),
        (Self::Fail, "FAIL"),
        (Self::PoweringUp, "POWERING_UP"),
        (Self::Maintenance, "MAINTENANCE"),
        (Self::RebootRequested, "REBOOT_REQUESTED"),
        (Self::RebootCanceled, "REBOOT_CANCELED"),
        (Self::PoweringDown, "POWERING_DOWN"),
        (Self::DynamicFuture, "DYNAMIC_FUTURE"),
        (Self::RebootIssued, "REBOOT_ISSUED"),
        (Self::Planned, "PLANNED"),
        (Self::InvalidReg, "INVALID_REG"),
        (Self::PowerDown, "POWER_DOWN"),
        (Self::PowerUp, "POWER_UP"),
        (Self::PowerDrain, "POWER_DRAIN"),
        (Self::DynamicNorm, "DYNAMIC_NORM"),
        (Self::Blocked, "BLOCKED"),
    ];

    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// The flags of a node's state, at Slurm's bit positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeFlags(u32);

impl NodeFlags {
    /// True if the flag is set.
    pub const fn contains(self, flag: NodeFlag) -> bool {
        self.0 & flag.bit() != 0
    }

    /// True if any of them is set.
    pub fn any(self, flags: &[NodeFlag]) -> bool {
        flags.iter().any(|flag| self.contains(*flag))
    }

    /// Sets the flag.
    pub const fn insert(&mut self, flag: NodeFlag) {
        self.0 |= flag.bit();
    }

    /// The flags that are set, in the order of their bits.
    pub fn iter(self) -> impl Iterator<Item = NodeFlag> {
        NodeFlag::ALL
            .into_iter()
            .map(|(flag, _)| flag)
            .filter(move |flag| self.contains(*flag))
    }
}

/// A node's state as one response of Slurm reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct NodeState {
    /// The base state; `None` if the text has none that this version knows.
    pub base: Option<NodeBaseState>,
    /// The flags.
    pub flags: NodeFlags,
    /// Keywords that are neither a known base state nor a known flag.
    pub unknown: Vec<String>,
}

impl NodeState {
    /// Parses scontrol's `IDLE+CLOUD+POWERED_DOWN`, sinfo's keywords and codes (`drng`, `mix`) and their suffix symbols (`idle~`).
    pub fn parse(text: &str) -> Self {
        Self::from_names(text.split(['+', ',', ' ']))
    }

    /// Reads a number as slurmdbd stores it: the base state in the lowest four bits (`NODE_STATE_BASE` of `slurm.h`), flags above. `None`
    /// if the base state is unknown.
    pub fn from_bits(bits: u32) -> Option<Self> {
        let base = NodeBaseState::ALL.get((bits & 0x0f) as usize)?.0;
        Some(Self {
            base: Some(base),
            flags: NodeFlags(bits & !0x0f),
            unknown: Vec::new(),
        })
    }

    /// Reads a list of keywords, as in JSON of data parser v0.0.39 and later.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut state = Self::default();
        for keyword in names {
            state.add(keyword.trim());
        }
        state
    }

    fn add(&mut self, text: &str) {
        let keyword = text.trim_end_matches(['$', '^', '@', '#', '%', '~', '!', '*', '-', '?']);
        for symbol in text[keyword.len()..].chars() {
            self.add_symbol(symbol);
        }
        if keyword.is_empty() {
            return;
        }
        let upper = keyword.to_ascii_uppercase();
        if let Some((base, _)) = NodeBaseState::ALL.iter().find(|(_, name)| *name == upper) {
            self.base = Some(*base);
        } else if let Some((flag, _)) = NodeFlag::ALL.iter().find(|(_, name)| *name == upper) {
            self.flags.insert(*flag);
        } else if !self.add_short_name(&upper) {
            self.unknown.push(keyword.to_owned());
        }
    }

    /// sinfo's suffixes (`sinfo` manual, "NODE STATE CODES").
    fn add_symbol(&mut self, symbol: char) {
        match symbol {
            '$' => self.flags.insert(NodeFlag::Maintenance),
            '^' => self.flags.insert(NodeFlag::RebootIssued),
            '@' => self.flags.insert(NodeFlag::RebootRequested),
            '#' => self.flags.insert(NodeFlag::PoweringUp),
            '%' => self.flags.insert(NodeFlag::PoweringDown),
            '~' => self.flags.insert(NodeFlag::PoweredDown),
            '!' => self.flags.insert(NodeFlag::PowerDown),
            '*' => self.flags.insert(NodeFlag::NotResponding),
            '-' => self.flags.insert(NodeFlag::Planned),
            // sinfo and scontrol have no separate letter for POWER_DRAIN.
            _ => self.flags.insert(NodeFlag::PowerDrain),
        }
    }

    /// sinfo's keywords for a combination, and the older names of flags.
    fn add_short_name(&mut self, upper: &str) -> bool {
        let (base, flag) = match upper {
            "ALLOC" => (Some(NodeBaseState::Allocated), None),
            "MIX" => (Some(NodeBaseState::Mixed), None),
            "UNK" => (Some(NodeBaseState::Unknown), None),
            "FUTR" => (Some(NodeBaseState::Future), None),
            "ERR" => (Some(NodeBaseState::Error), None),
            "DRAINED" => (Some(NodeBaseState::Idle), Some(NodeFlag::Drain)),
            "DRAINING" | "DRNG" => (Some(NodeBaseState::Mixed), Some(NodeFlag::Drain)),
            "FAILING" | "FAILG" => (Some(NodeBaseState::Mixed), Some(NodeFlag::Fail)),
            "COMP" => (Some(NodeBaseState::Idle), Some(NodeFlag::Completing)),
            "MAINT" => (None, Some(NodeFlag::Maintenance)),
            "RESV" => (None, Some(NodeFlag::Reserved)),
            "PLND" => (None, Some(NodeFlag::Planned)),
            "INVAL" => (None, Some(NodeFlag::InvalidReg)),
            "BOOT" | "REBOOT" => (None, Some(NodeFlag::RebootIssued)),
            "POWER_SAVING" | "POW_DN" => (None, Some(NodeFlag::PoweredDown)),
            "POW_UP" => (None, Some(NodeFlag::PoweringUp)),
            "BLOCK" => (None, Some(NodeFlag::Blocked)),
            "NO_RESPOND" => (None, Some(NodeFlag::NotResponding)),
            _ => return false,
        };
        // sinfo's DRAIN and FAIL are flags of the same name, found before.
        if let Some(base) = base {
            self.base = self.base.or(Some(base));
        }
        if let Some(flag) = flag {
            self.flags.insert(flag);
        }
        true
    }

    /// True if a flag is set.
    pub const fn has(&self, flag: NodeFlag) -> bool {
        self.flags.contains(flag)
    }

    /// True if jobs hold the node: allocated, mixed, or still completing.
    pub fn has_jobs(&self) -> bool {
        matches!(
            self.base,
            Some(NodeBaseState::Allocated | NodeBaseState::Mixed)
        ) || self.has(NodeFlag::Completing)
    }
}

impl fmt::Display for NodeState {
    /// Writes scontrol's form: base state, then flags, joined by plus signs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = self.base.map(NodeBaseState::name);
        let flags = NodeFlag::ALL
            .iter()
            .filter(|(flag, _)| self.flags.contains(*flag))
            .map(|(_, name)| *name);
        let mut separator = "";
        for keyword in base
            .into_iter()
            .chain(flags)
            .chain(self.unknown.iter().map(String::as_str))
        {
            write!(f, "{separator}{keyword}")?;
            separator = "+";
        }
        Ok(())
    }
}

impl FromStr for NodeState {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::parse(text))
    }
}

impl From<String> for NodeState {
    fn from(text: String) -> Self {
        Self::parse(&text)
    }
}

impl From<NodeState> for String {
    fn from(state: NodeState) -> Self {
        state.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Lifecycle, ProvisioningStage, data};

    #[test]
    fn enums_and_table_agree() {
        let mut seen = 0;
        for row in data::rows(data::NODE_STATES) {
            let [name, kind, value, ..] = row[..] else {
                panic!("short row {row:?}")
            };
            let value: u8 = value.parse().unwrap();
            match kind {
                "base" => assert_eq!(
                    (
                        NodeBaseState::ALL[usize::from(value)].1,
                        NodeBaseState::ALL[usize::from(value)].0 as u8
                    ),
                    (name, value)
                ),
                "flag" => assert!(
                    NodeFlag::ALL
                        .iter()
                        .any(|(flag, keyword)| *keyword == name && *flag as u8 == value),
                    "{name}"
                ),
                other => panic!("unknown kind {other}"),
            }
            seen += 1;
        }
        assert_eq!(seen, NodeBaseState::ALL.len() + NodeFlag::ALL.len());
    }

    #[test]
    fn sinfo_keywords_and_symbols_are_parsed() {
        assert_eq!(NodeState::parse("idle~").to_string(), "IDLE+POWERED_DOWN");
        assert_eq!(NodeState::parse("down*").to_string(), "DOWN+NOT_RESPONDING");
        assert_eq!(
            NodeState::parse("drng").lifecycle(false),
            Lifecycle::Draining
        );
        assert_eq!(
            NodeState::parse("alloc#").provisioning_stage(),
            Some(ProvisioningStage::Booting)
        );
        assert_eq!(NodeState::parse("NEW_BASE+DRAIN").unknown, ["NEW_BASE"]);
    }

    proptest! {
        #[test]
        fn format_then_parse_is_identity(base in 0_usize..7, bits in proptest::collection::vec(0_usize..24, 0..5)) {
            let mut state = NodeState { base: Some(NodeBaseState::ALL[base].0), ..NodeState::default() };
            bits.into_iter().for_each(|bit| state.flags.insert(NodeFlag::ALL[bit].0));
            prop_assert_eq!(NodeState::parse(&state.to_string()), state);
        }

        #[test]
        fn any_text_is_survived(text in ".*") {
            let _ = NodeState::parse(&text).lifecycle(false);
        }
    }
}
