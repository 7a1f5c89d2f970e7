//! Job states: a base state and flags, in every form Slurm prints them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The base state of a job: the low eight bits of Slurm's state value. Unchanged from 21.08 to 26.05.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "the names are Slurm's own; data/job_states.tsv describes each"
)]
pub enum JobBaseState {
    Pending = 0,
    Running = 1,
    Suspended = 2,
    Completed = 3,
    Cancelled = 4,
    Failed = 5,
    Timeout = 6,
    NodeFail = 7,
    Preempted = 8,
    BootFail = 9,
    Deadline = 10,
    OutOfMemory = 11,
}

impl JobBaseState {
    /// Every base state, in Slurm's order.
    pub const ALL: [Self; 12] = [
        Self::Pending,
        Self::Running,
        Self::Suspended,
        Self::Completed,
        Self::Cancelled,
        Self::Failed,
        Self::Timeout,
        Self::NodeFail,
        Self::Preempted,
        Self::BootFail,
        Self::Deadline,
        Self::OutOfMemory,
    ];

    /// Slurm's keyword.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completed => "COMPLETED",
            Self::Cancelled => "CANCELLED",
            Self::Failed => "FAILED",
            Self::Timeout => "TIMEOUT",
            Self::NodeFail => "NODE_FAIL",
            Self::Preempted => "PREEMPTED",
            Self::BootFail => "BOOT_FAIL",
            Self::Deadline => "DEADLINE",
            Self::OutOfMemory => "OUT_OF_MEMORY",
        }
    }

    /// Slurm's compact code (`squeue %t`).
    pub const fn code(self) -> &'static str {
        match self {
            Self::Pending => "PD",
            Self::Running => "R",
            Self::Suspended => "S",
            Self::Completed => "CD",
            Self::Cancelled => "CA",
            Self::Failed => "F",
            Self::Timeout => "TO",
            Self::NodeFail => "NF",
            Self::Preempted => "PR",
            Self::BootFail => "BF",
            Self::Deadline => "DL",
            Self::OutOfMemory => "OOM",
        }
    }

    /// Finished in Slurm's sense: above `SUSPENDED` (`IS_JOB_FINISHED`).
    pub const fn finished(self) -> bool {
        self as u8 > Self::Suspended as u8
    }
}

impl fmt::Display for JobBaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One flag of the state; the discriminant is Slurm's bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "the names are Slurm's own; data/job_states.tsv describes each"
)]
pub enum JobFlag {
    LaunchFailed = 8,
    /// Bit 9 since 25.05; until 24.05 the same bit was the internal `UPDATE_DB`, which is read as this flag's bit too.
    GetenvFailed = 9,
    Requeued = 10,
    RequeueHold = 11,
    SpecialExit = 12,
    Resizing = 13,
    Configuring = 14,
    Completing = 15,
    Stopped = 16,
    ReconfigFail = 17,
    PowerUpNode = 18,
    Revoked = 19,
    RequeueFed = 20,
    ResvDelHold = 21,
    Signaling = 22,
    StageOut = 23,
    Expediting = 24,
}

impl JobFlag {
    /// Every flag with Slurm's keyword and compact code (empty where Slurm has none), in the order of the bits.
    pub const ALL: [(Self, &'static str, &'static str); 17] = [
        (Self::LaunchFailed, "LAUNCH_FAILED", ""),
        (Self::GetenvFailed, "GETENV_FAILED", ""),
        (Self::Requeued, "REQUEUED", "RQ"),
        (Self::RequeueHold, "REQUEUE_HOLD", "RH"),
        (Self::SpecialExit, "SPECIAL_EXIT", "SE"),
        (Self::Resizing, "RESIZING", "RS"),
        (Self::Configuring, "CONFIGURING", "CF"),
        (Self::Completing, "COMPLETING", "CG"),
        (Self::Stopped, "STOPPED", "ST"),
        (Self::ReconfigFail, "RECONFIG_FAIL", ""),
        (Self::PowerUpNode, "POWER_UP_NODE", ""),
        (Self::Revoked, "REVOKED", "RV"),
        (Self::RequeueFed, "REQUEUE_FED", "RF"),
        (Self::ResvDelHold, "RESV_DEL_HOLD", "RD"),
        (Self::Signaling, "SIGNALING", "SI"),
        (Self::StageOut, "STAGE_OUT", "SO"),
        (Self::Expediting, "EXPEDITING", ""),
    ];

    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// The flags of a job's state, at Slurm's bit positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobFlags(u32);

impl JobFlags {
    /// True if the flag is set.
    pub const fn contains(self, flag: JobFlag) -> bool {
        self.0 & flag.bit() != 0
    }

    /// Sets the flag.
    pub const fn insert(&mut self, flag: JobFlag) {
        self.0 |= flag.bit();
    }

    /// True if no flag is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The flags that are set, in the order of their bits.
    pub fn iter(self) -> impl Iterator<Item = JobFlag> {
        JobFlag::ALL
            .into_iter()
            .map(|(flag, _, _)| flag)
            .filter(move |flag| self.contains(*flag))
    }
}

/// A job's state as one response of Slurm reports it.
///
/// `squeue`, `scontrol` and `sacct` print **one** keyword, and a flag hides the base state: `COMPLETING` does not reveal how the job ended.
/// The base state is then `None`, which must never be read as an end. Unknown keywords are stored in [`unknown`](Self::unknown).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct JobState {
    /// The base state, if the text states or implies it.
    pub base: Option<JobBaseState>,
    /// The flags in the text. Single-keyword forms show at most one.
    pub flags: JobFlags,
    /// Keywords that are neither a known base state nor a known flag.
    pub unknown: Vec<String>,
}

impl JobState {
    /// Parses any printed form: `RUNNING`, `CG`, `RUNNING,CONFIGURING,POWER_UP_NODE`, `CANCELLED by 20002`, `CANCELLED+`.
    pub fn parse(text: &str) -> Self {
        Self::parse_accounting(text).0
    }

    /// Like [`parse`](Self::parse), and returns the uid that cancelled the job: sacct prints `CANCELLED by <uid>`.
    pub fn parse_accounting(text: &str) -> (Self, Option<u32>) {
        let (names, by) = match text.split_once(" by ") {
            Some((names, uid)) => (names, uid.trim().parse().ok()),
            None => (text, None),
        };
        (Self::from_names(names.split([',', ' ', '|'])), by)
    }

    /// Reads a list of keywords, as in JSON of data parser v0.0.40 and later (`["RUNNING","CONFIGURING"]`).
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut state = Self::default();
        for keyword in names {
            // sacct marks a truncated column with a plus sign.
            let keyword = keyword
                .trim_start()
                .trim_end_matches(|c: char| c == '+' || c.is_whitespace());
            if keyword.is_empty() {
                continue;
            }
            if let Some(base) = JobBaseState::ALL
                .into_iter()
                .find(|base| matches(keyword, base.name(), base.code()))
            {
                state.base = Some(base);
            } else if let Some((flag, ..)) = JobFlag::ALL
                .into_iter()
                .find(|(_, name, code)| matches(keyword, name, code))
            {
                state.flags.insert(flag);
            } else if keyword.eq_ignore_ascii_case("UPDATE_DB") {
                state.flags.insert(JobFlag::GetenvFailed);
            } else {
                state.unknown.push(keyword.to_owned());
            }
        }
        if state.base.is_none() {
            state.base = state.implied_base();
        }
        state
    }

    /// The state of a known base without flags.
    pub const fn of(base: JobBaseState) -> Self {
        Self {
            base: Some(base),
            flags: JobFlags(0),
            unknown: Vec::new(),
        }
    }

    /// Flags that occur with only one base state imply it. `COMPLETING`, `STAGE_OUT`, `REVOKED`, `EXPEDITING`, and the `REQUEUED` stored by
    /// accounting imply none.
    fn implied_base(&self) -> Option<JobBaseState> {
        let any = |flags: &[JobFlag]| flags.iter().any(|flag| self.flags.contains(*flag));
        // A completing job's next state is hidden, whatever other flag is set.
        if any(&[JobFlag::Completing, JobFlag::StageOut, JobFlag::Revoked]) {
            return None;
        }
        if any(&[
            JobFlag::Configuring,
            JobFlag::Resizing,
            JobFlag::Stopped,
            JobFlag::Signaling,
        ]) {
            return Some(JobBaseState::Running);
        }
        if any(&[
            JobFlag::RequeueHold,
            JobFlag::SpecialExit,
            JobFlag::RequeueFed,
            JobFlag::ResvDelHold,
        ]) {
            return Some(JobBaseState::Pending);
        }
        None
    }

    /// True if a flag is set.
    pub const fn has(&self, flag: JobFlag) -> bool {
        self.flags.contains(flag)
    }

    /// True if this is the base state.
    pub fn is(&self, base: JobBaseState) -> bool {
        self.base == Some(base)
    }

    /// Finished in Slurm's sense: the base state is known and above `SUSPENDED`, or the job was revoked. Its epilogs may still run.
    pub fn finished(&self) -> bool {
        self.base.is_some_and(JobBaseState::finished) || self.has(JobFlag::Revoked)
    }

    /// Finished, with nothing of the run left to clean up. Final for this run only: the owner may requeue the job as long as its record is
    /// in memory (`MinJobAge`).
    pub fn is_terminal(&self) -> bool {
        self.finished() && !self.has(JobFlag::Completing)
    }

    /// True if an accounting row or a jobcomp record with this state belongs to a run that is over. In addition to the finished states that
    /// is `REQUEUED`, which accounting stores for the run before a plain requeue.
    pub fn ends_run_in_accounting(&self) -> bool {
        self.finished() || (self.base.is_none() && self.has(JobFlag::Requeued))
    }
}

fn matches(keyword: &str, name: &str, code: &str) -> bool {
    keyword.eq_ignore_ascii_case(name) || (!code.is_empty() && keyword.eq_ignore_ascii_case(code))
}

impl fmt::Display for JobState {
    /// Writes Slurm's full form: base state, then flags, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = self.base.map(JobBaseState::name);
        let flags = JobFlag::ALL
            .iter()
            .filter(|(flag, ..)| self.flags.contains(*flag))
            .map(|(_, name, _)| *name);
        let mut separator = "";
        for keyword in base
            .into_iter()
            .chain(flags)
            .chain(self.unknown.iter().map(String::as_str))
        {
            write!(f, "{separator}{keyword}")?;
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for JobState {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::parse(text))
    }
}

impl From<String> for JobState {
    fn from(text: String) -> Self {
        Self::parse(&text)
    }
}

impl From<JobState> for String {
    fn from(state: JobState) -> Self {
        state.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data;

    #[test]
    fn enums_and_table_agree() {
        let mut seen = 0;
        for row in data::rows(data::JOB_STATES) {
            let [name, code, kind, value, terminal, ..] = row[..] else {
                panic!("short row {row:?}")
            };
            let value: u8 = value.parse().unwrap();
            match kind {
                "base" => {
                    let base = JobBaseState::ALL[usize::from(value)];
                    assert_eq!((base.name(), base.code(), base as u8), (name, code, value));
                    assert_eq!(base.finished(), terminal == "yes", "{name}");
                }
                "flag" => {
                    let state = JobState::parse(name);
                    let set: Vec<_> = state.flags.iter().collect();
                    assert_eq!(set.len(), 1, "{name}");
                    assert_eq!(set[0] as u8, value, "{name}");
                    assert_eq!(state.is_terminal(), terminal == "yes", "{name}");
                    if !code.is_empty() {
                        assert_eq!(JobState::parse(code), state, "{name}");
                    }
                }
                other => panic!("unknown kind {other}"),
            }
            seen += 1;
        }
        assert_eq!(seen, 30);
        // UPDATE_DB shares its bit with GETENV_FAILED.
        assert_eq!(JobBaseState::ALL.len() + JobFlag::ALL.len() + 1, seen);
    }

    #[test]
    fn completing_never_claims_an_end() {
        let state = JobState::parse("COMPLETING");
        assert_eq!(state.base, None);
        assert!(!state.finished() && !state.is_terminal());
        let full = JobState::parse("FAILED,COMPLETING");
        assert!(full.finished() && !full.is_terminal());
        assert_eq!(
            JobState::parse("PENDING,COMPLETING").base,
            Some(JobBaseState::Pending)
        );
    }

    #[test]
    fn sacct_reports_the_canceller() {
        let (state, by) = JobState::parse_accounting("CANCELLED by 20002");
        assert_eq!(
            (state.base, by),
            (Some(JobBaseState::Cancelled), Some(20_002))
        );
        assert!(JobState::parse("CANCELLED+").is(JobBaseState::Cancelled));
    }

    #[test]
    fn accounting_requeued_ends_a_run_but_a_requeued_pending_job_does_not() {
        assert!(JobState::parse("REQUEUED").ends_run_in_accounting());
        assert!(!JobState::parse("PENDING,REQUEUED").ends_run_in_accounting());
        assert!(!JobState::parse("RUNNING").ends_run_in_accounting());
    }

    #[test]
    fn unknown_keywords_are_stored() {
        let state = JobState::parse("RUNNING,BRAND_NEW");
        assert_eq!(state.unknown, ["BRAND_NEW"]);
        assert!(state.is(JobBaseState::Running));
        assert_eq!(JobState::parse(&state.to_string()), state);
    }

    proptest! {
        #[test]
        fn format_then_parse_is_identity(base in 0_usize..12, bits in proptest::collection::vec(0_usize..17, 0..4)) {
            let mut state = JobState::of(JobBaseState::ALL[base]);
            bits.into_iter().for_each(|bit| state.flags.insert(JobFlag::ALL[bit].0));
            prop_assert_eq!(JobState::parse(&state.to_string()), state);
        }

        #[test]
        fn any_text_is_survived(text in ".*") {
            let state = JobState::parse(&text);
            prop_assert_eq!(JobState::parse(&state.to_string()).to_string(), state.to_string());
        }
    }
}
